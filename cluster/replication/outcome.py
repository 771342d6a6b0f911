"""What a node can know of a write, and what replication asks of where it came from."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from raftlog.types import EntryId
from statemachine.payload import SessionRows

if TYPE_CHECKING:
    from cluster.replication.identity import ConnectionSession


class Outcome(IntEnum):
    """The three things a node can know of a write."""

    OK = 0
    FAIL = 1
    """Not proposed, or proved lost: it will never be applied."""
    UNKNOWN = 2
    """Proposed and undecided when the caller stopped waiting: it may still be applied."""


class ProposeResult(NamedTuple):
    """`results`: one per command (see `statemachine`), only if OK; `remark` says why not otherwise."""

    outcome: Outcome
    results: list[Any]
    entry_id: EntryId | None
    remark: str
    unacceptable: bool = False
    """With FAIL: no entry can hold it (too large, or it cannot be encoded), here or elsewhere, now or later."""


Done = Callable[[ProposeResult], None]

CommitSession = SessionRows
"""What makes commands recognisable when they come again: see `remoting.named_commits`."""


class ReplyTo(Protocol):
    """Where a send came from and its answer goes: see `remoting.reply_path.ReplyPath`."""

    closed: bool
    inflight_bytes: int
    session: ConnectionSession | None

    def write(self, data: bytes) -> None:
        """Queues bytes for the client."""
