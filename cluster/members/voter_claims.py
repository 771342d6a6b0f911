"""Keeps DATA/CLAIMS of the node that made the cluster: the initial voters that other machines have yet to make.

`raftmq init --first` makes the first node, and chooses the uuids of all voters. The machine that makes another voter
claims it with a random token, which it keeps on its own disk. A claim never expires. If the same token comes again,
because the first attempt was interrupted, the claim succeeds again; any other token is refused. So each initial voter
is made only once. A machine whose disk was emptied has lost its token, and cannot make its node again. A node that was
not made by `--first` has no such file, and accepts no claims.

The file is JSON (docs/disk-format.md): {"format": 10, "claims": {"2": "", "3": "TOKEN"}}. The token of a voter that is
not claimed yet is "".
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from cluster.config.local_layout import replace_file
from raftmq_wire.errors import ExitCode, LocalError

CLAIMS: Final = "CLAIMS"
FORMAT: Final = 10
FILE_MAX: Final = 64 << 10
TOKEN_DIGITS: Final = 32
PURPOSE: Final = b"raftmq claim 10\0"

_LOCK = threading.Lock()


def proof_of(key: bytes, node: int, token: str) -> str:
    """Returns the proof, in hex, that the claiming machine has the cluster's secret."""
    return hmac.digest(key, PURPOSE + f"{node} {token}".encode(), "sha256").hex()


def is_proven(keys: Sequence[bytes], node: int, token: str, proof: str) -> bool:
    """Returns True if the proof was made with one of the keys. The comparison takes constant time."""
    return any(hmac.compare_digest(proof_of(key, node, token).encode(), proof.encode()) for key in keys)


def open_claims(directory: Path, nodes: Iterable[int]) -> None:
    """Writes the file with these nodes, which other machines are to make. Raises OSError."""
    _write(directory / CLAIMS, dict.fromkeys(nodes, ""))


def unclaimed(directory: Path) -> list[int]:
    """Returns the nodes that no machine has claimed yet. Raises OSError, and ValueError for a file of another
    format."""
    return [node for node, token in _read(directory / CLAIMS).items() if not token]


def claim(directory: Path, node: int, token: str) -> None:
    """Assigns the node to the machine that has this token. The claim is on disk when this returns. Blocks. Raises
    LocalError if another machine has claimed the node, or if the node is not in the file. Raises OSError, and
    ValueError for a file of another format."""
    path = directory / CLAIMS
    with _LOCK:
        claims = _read(path)
        known = claims.get(node)
        if known is None or known not in ("", token):
            raise LocalError(
                f"node {node} of this cluster has been made before",
                "its disk was lost, or another machine has the same node.id; an empty node would vote again without "
                "remembering its votes",
                replacing(node),
                ExitCode.REFUSED,
            )
        if not known:
            _write(path, {**claims, node: token})


def replacing(node: int) -> str:
    """Returns the command that replaces a lost node by a new one."""
    return (
        f"raftmq node replace {node} --config FILE --via http://HOST:PORT --secret SECRET    (FILE: of a node with a "
        "new id)"
    )


def _read(path: Path) -> dict[int, str]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(FILE_MAX))
        if found["format"] != FORMAT:
            raise ValueError(f"{path} has format {found['format']}, this release knows {FORMAT}")
        return {int(node): str(token) for node, token in found["claims"].items()}
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _write(path: Path, claims: dict[int, str]) -> None:
    text = json.dumps({"format": FORMAT, "claims": {str(node): token for node, token in claims.items()}})
    replace_file(path, f"{text}\n".encode("ascii"))
