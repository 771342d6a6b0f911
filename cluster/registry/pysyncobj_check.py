"""Checks that the installed pysyncobj is the reviewed version, file by file, because the registry overrides its private
methods (cluster/registry/hardened.py).

With another version, a method of the same name could mean something else, and nobody would notice the error.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

from raftmq_wire.errors import ExitCode, LocalError

VERSION = "0.3.17"
DIGESTS = {
    "config.py": "fbbc7ff9f18e4d15a7fd563376e42f5b",
    "dns_resolver.py": "4b88da2b45e20fbb299fb7a21f259536",
    "encryptor.py": "db20725465efdfc6d7a3b5b2112f53bc",
    "fast_queue.py": "8477fe5fdf36d9766df933310d3d66ee",
    "journal.py": "9cf1eaf6acc704581a4cf7d3de330a40",
    "monotonic.py": "d116df70e1f81bcab1fb89191fe2fe18",
    "node.py": "e4a3f027cd8291f558334bb9c977e952",
    "pickle.py": "e9327780738065cec5d600484b936c91",
    "pipe_notifier.py": "587d964bfa5d62320f3541cbb283ff3e",
    "poller.py": "f69ac749fb410670282fd9520c5805ff",
    "serializer.py": "4d39fde2f15000ad8f507ec229ebd4f6",
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe",
    "tcp_connection.py": "7784ed8da031369fe36f805cb186a2e9",
    "tcp_server.py": "bde2f216c1a585029188d0438b44762e",
    "transport.py": "0c9d89f9c4781ec9772df8011d7975a1",
}
"""Name of a file of pysyncobj -> the first hex digits of its SHA-256."""
_FIX = f"pip install pysyncobj=={VERSION}"


def installed() -> Path:
    """Returns the folder of pysyncobj, without importing it. Raises LocalError if there is none."""
    found = importlib.util.find_spec("pysyncobj")
    if found is None or found.origin is None:
        raise LocalError("pysyncobj is not installed", "the registry runs on it", _FIX, ExitCode.REFUSED)
    return Path(found.origin).parent


def check(folder: Path, version: str) -> None:
    """Raises LocalError if the pysyncobj in `folder` is not the reviewed one: another version, or a file that
    differs."""
    if version != VERSION:
        raise LocalError(
            f"pysyncobj {version} is installed",
            f"the registry overrides private methods of {VERSION}, and of no other version",
            _FIX,
            ExitCode.REFUSED,
        )
    for name, digest in DIGESTS.items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest()[: len(digest)] != digest:
            raise LocalError(
                f"{path} is not that of pysyncobj {VERSION}",
                "the registry overrides private methods, and what they do must be known",
                f"pip install --force-reinstall pysyncobj=={VERSION}",
                ExitCode.REFUSED,
            )


def check_installed() -> None:
    """Raises LocalError unless the reviewed version of pysyncobj is installed."""
    folder = installed()
    check(folder, importlib.metadata.version("pysyncobj"))
