"""Defines the outcomes of a write, and the interface of the path back to the client that asked for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from raftlog.types import EntryId
from statemachine.payload import SessionRows

if TYPE_CHECKING:
    from cluster.flow.gate import Holder
    from cluster.replication.send_identity import ConnectionSession


class Outcome(IntEnum):
    """The three possible outcomes of a write, as far as a node can know: OK, FAIL and UNKNOWN."""

    OK = 0
    FAIL = 1
    """The write was not proposed, or is proved lost: it will never be applied."""
    UNKNOWN = 2
    """The write was proposed and undecided when the caller stopped waiting: it may still be applied."""


class ProposeResult(NamedTuple):
    """The result of proposed commands. `results` has one per command (see `statemachine`), and is set only if the
    outcome is OK; otherwise `remark` is the reason."""

    outcome: Outcome
    results: list[Any]
    entry_id: EntryId | None
    remark: str
    unacceptable: bool = False
    """True, with FAIL, if no entry can hold the request (too large, or it cannot be encoded), on any node at any time.
    """


Done = Callable[[ProposeResult], None]

CommitSession = SessionRows
"""The session rows that make repeated commands recognisable; `cluster.broker.groups.group_offsets` uses them for
commits."""


class ReplyTo(Protocol):
    """The path back to the client of a send: a `cluster.remoting.connection.reply_path.ReplyPath`."""

    closed: bool
    in_flight: Holder
    session: ConnectionSession | None

    @property
    def owner(self) -> Hashable:
        """The key that is the same for all requests of one client connection, even if another node forwards them."""

    def write(self, data: bytes) -> None:
        """Queues bytes for the client."""
