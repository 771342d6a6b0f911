"""What clients and operators' tools delete or reset over remoting leaves a trace on the leader: what, and who asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.remoting.request import Request

NoteChange = Callable[[str, str], None]
"""Takes what was changed ("topic orders") and what happened to it; see EventLog.note_change."""


def asked_by(request: Request, says: str) -> str:
    """What happened, and the address of the client that asked for it, also if another node holds its connection."""
    host, port = request.connection.peer_address
    return f"{says}, asked for over remoting by {f'[{host}]' if ':' in host else host}:{port}"
