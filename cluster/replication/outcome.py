"""The outcomes of a write, and what replication requires of the path that it came from."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from raftlog.types import EntryId
from statemachine.payload import SessionRows

if TYPE_CHECKING:
    from cluster.replication.identity import ConnectionSession
    from cluster.runtime.in_flight import BytesInFlight


class Outcome(IntEnum):
    """The three possible outcomes of a write, as far as a node can know."""

    OK = 0
    FAIL = 1
    """Not proposed, or proved lost: it will never be applied."""
    UNKNOWN = 2
    """Proposed and undecided when the caller stopped waiting: it may still be applied."""


class ProposeResult(NamedTuple):
    """`results`: one per command (see `statemachine`), only if OK; otherwise `remark` is the reason."""

    outcome: Outcome
    results: list[Any]
    entry_id: EntryId | None
    remark: str
    unacceptable: bool = False
    """With FAIL: no entry can hold it (too large, or it cannot be encoded), here or elsewhere, now or later."""


Done = Callable[[ProposeResult], None]

CommitSession = SessionRows
"""Makes repeated commands recognisable, as `cluster.broker.groups.group_offsets` uses it for commits."""


class ReplyTo(Protocol):
    """The path back to the client of a send: a `cluster.remoting.connection.reply_path.ReplyPath`."""

    closed: bool
    in_flight: BytesInFlight
    session: ConnectionSession | None

    def write(self, data: bytes) -> None:
        """Queues bytes for the client."""
