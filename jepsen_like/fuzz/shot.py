"""A shot: bytes, the port to which they are sent, and the answer that must come."""

from __future__ import annotations

import base64
import json
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple


class Port(Enum):
    """One of a node's ports."""

    REMOTING = "remoting"
    HTTP = "http"
    PEER = "peer"
    TLS = "tls"
    """All ports of the node, over TLS."""


class Shot(NamedTuple):
    """One message to one port, and the answer that must come."""

    port: Port
    handler: str
    """The name of the handler that is to take the shot: "34 HEART_BEAT", "POST /v1/topics", "HEARTBEAT"."""
    data: bytes
    opaque: int = -1
    """The opaque of a request that must be answered once; -1 if it needs no answer."""
    is_proven: bool = False
    """True if the shot is sent with a valid proof that it comes from a user or a node."""

    def to_json(self, node: int) -> dict[str, Any]:
        """Returns the shot as JSON, for a file from which it can be repeated."""
        return {
            "port": self.port.value,
            "handler": self.handler,
            "node": node,
            "opaque": self.opaque,
            "is_proven": self.is_proven,
            "data": base64.b64encode(self.data).decode(),
        }


def save(path: Path, shots: list[tuple[int, Shot]]) -> None:
    """Writes (node, shot) rows as JSON, one per line."""
    path.write_text("".join(json.dumps(shot.to_json(node)) + "\n" for node, shot in shots), encoding="utf-8")


def load(path: Path) -> list[tuple[int, Shot]]:
    """Reads the (node, shot) rows that `save` wrote. Raises ValueError or KeyError for anything else."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [
        (
            int(row["node"]),
            Shot(
                Port(row["port"]),
                row["handler"],
                base64.b64decode(row["data"]),
                int(row["opaque"]),
                bool(row.get("is_proven", False)),
            ),
        )
        for row in rows
    ]
