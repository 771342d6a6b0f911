"""Makes a copy with a planted bug run the kernel (native or in Python) that has the bug.

A bug in a Python function that the native kernel replaces would never run if the native kernel were present, so the
copy is made without the kernel. A bug in the native kernel itself is compiled once, and the result is kept under a hash
of its source.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from raftmq_wire import kernel

SOURCE = "raftmq_wire/kernel/_native.pyx"
BUILD_FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
"""Files that setuptools reads in addition to the source."""
PASSED_BY = frozenset(
    {
        "cluster/broker/sends/send_service.py",
        "cluster/replication/message_head.py",
        "cluster/remoting/router.py",
        "cluster/remoting/handlers/send.py",
        "cluster/remoting/connection/server.py",
        "cluster/replication/command_queue.py",
        "cluster/replication/proposals.py",
        "cluster/replication/repeated_sends.py",
        "cluster/replication/topic_slots.py",
        "raftmq_wire/codec.py",
        "raftmq_wire/message_format.py",
        "statemachine/payload.py",
    }
)
"""Python files without a `@twin` or `@shortcut` whose work the native kernel may do instead for a plain send. A bug in
such a file may never run if the native kernel is present.
"""
_TIMEOUT_S = 600


class KernelError(ValueError):
    """Raised if the native kernel with the bug in it cannot be built or used here; the message says why."""


def has_twin(text: str) -> bool:
    """Returns True if the native kernel replaces something in the Python file with this text."""
    return any(line.strip() in ("@twin", "@shortcut") for line in text.splitlines())


def remove(copy: Path) -> None:
    """Deletes the native kernel below `copy`, so that the packages there run the kernel in Python."""
    for path in copy.glob("raftmq_wire/kernel/_native.*.so"):
        path.unlink()


def settle(copy: Path, texts: Mapping[str, str], root: Path) -> None:
    """Makes sure that the files changed in `copy` (name -> text) are the code that runs. `root`: the tree that was
    copied.

    Raises KernelError if the native kernel was changed and cannot be built or used.
    """
    if SOURCE in texts:
        remove(copy)
        built = compiled(texts[SOURCE], root)
        shutil.copy(built, copy / "raftmq_wire/kernel" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}")
    elif any(file in PASSED_BY or has_twin(text) for file, text in texts.items()):
        remove(copy)


def compiled(source: str, root: Path) -> Path:
    """Returns the path of the native module built from this source. Compiles it unless an earlier call has: the modules
    are kept in `root`/build/kernels. Raises KernelError.
    """
    if os.environ.get(kernel.VARIABLE) == "python":
        raise KernelError(f"the bug is in the native kernel, and {kernel.VARIABLE}=python excludes that one")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    kept = root / "build/kernels" / f"{hashlib.sha256(source.encode()).hexdigest()}{suffix}"
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory(prefix="raftmq-kernel-") as name:
        tree = Path(name)
        try:
            for file in BUILD_FILES:
                shutil.copy(root / file, tree)
        except FileNotFoundError as error:
            raise KernelError(f"{error.filename} is not there: the kernel is built from a source tree only") from error
        (tree / SOURCE).parent.mkdir(parents=True)
        (tree / SOURCE).write_text(source)
        command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        built = list(tree.glob("raftmq_wire/kernel/_native.*.so"))
        if not built:
            raise KernelError(f"the native kernel was not built: {done.stderr.strip()}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        half = kept.with_suffix(f".{os.getpid()}")  # several copies may be made at once: each renames a complete file
        shutil.copy(built[0], half)
        half.rename(kept)
    return kept
