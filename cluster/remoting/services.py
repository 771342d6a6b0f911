"""What a protocol handler may ask of the node it runs in, and what it is handed. No logic here: the seam.

Everything below runs on the node's event loop; callbacks are called on it, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from raftlog.types import NodeId

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.replication.outcome import CommitSession, Done
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command


class Connection(Protocol):
    """A client's TCP connection, or its stand-in when another node forwards for it."""

    closed: bool
    peer_address: tuple[str, int]
    """The client's ip and port, also behind a forwarding node."""

    @property
    def forwarded(self) -> bool:
        """Whether another node holds the client's connection, and passed the request on."""

    listener: str
    """Name of the listener the client came through; routes answer with this listener's addresses."""
    on_close: list[Callable[[], None]]

    def write(self, data: bytes) -> None:
        """Queues bytes; one transport write per loop iteration. Dropped if closed."""

    def call_oneway(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Sends a server-to-client request that wants no reply (for example 40)."""


class Request(Protocol):
    """One client request. A handler answers it at most once, now or later; oneway replies are dropped."""

    code: int
    opaque: int
    flag: int
    version: int
    language: str
    ext: dict[str, str]
    body: bytes

    @property
    def connection(self) -> Connection:
        """Where the request came from and its answer goes."""

    def reply(self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Answers in the request's own header form."""

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        """Whether an answer of about `size` bytes may be made now. If not, `again` is called once when it may, unless
        the client is gone by then; until then no more is taken from its connection."""

    def promise(self, size: int) -> None:
        """Holds room for an answer that is made later, until it is given; 0 gives the room back."""


Handler = Callable[[Request], None]


class Services(Protocol):
    """The node, as handlers see it."""

    config: Config
    state: BrokerState
    node_id: NodeId

    def writes_open(self) -> bool:
        """True if this node leads and has applied the no-op of its term: its counters are exact."""

    def leader_id(self) -> NodeId:
        """Who leads as far as this node knows; 0 if nobody."""

    def propose(self, commands: list[Command], done: Done, session: CommitSession | None = None) -> None:
        """Proposes one COMMAND entry (leader only; FAIL otherwise) and calls `done` when applied or undecided.

        The commands are encoded and measured before this returns: what no entry can hold is FAIL at once.
        """

    def read_index(self, done: Callable[[bool], None]) -> None:
        """One ReadIndex round shared by all who ask in a turn. True: applied state now answers linearizably."""

    def commit_offset_later(self, group: str, topic_id: int, queue_id: int, offset: int) -> None:
        """Coalesces a oneway offset commit: last value per queue, in the log after at most 100 ms. Leader only."""

    def settle_offsets(self, group: str, done: Callable[[], None]) -> None:
        """Calls `done` when every commit of the group so far is applied, or lost. Leader only."""

    def knows_group(self, group: str) -> bool:
        """Whether the group exists and no deletion of it is under way: may its offsets be committed? Leader only."""

    def read_log(self, position: int, size: int) -> bytes:
        """Bytes of the commit log at a logical position (applied messages only). Raises raftlog.errors.StorageError."""

    def fenced(self) -> bool:
        """True if this node's rows are known to be wrong: it serves no messages."""

    def report_damage(self, position: int, size: int) -> None:
        """Bytes read there do not match their CRC, also when read again: has it found out why, and repaired."""

    def cluster_uuids(self) -> tuple[str, ...]:
        """The cluster's uuid, then those of the clusters that it goes on from, newest first."""

    def broker_addresses(self, listener: str) -> dict[NodeId, str]:
        """node id -> "ip:port" that the named listener of each node advertises."""

    def monotonic_ms(self) -> int:
        """Milliseconds of the loop's clock, for timeouts (virtual in the simulator)."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Schedules on the loop; returns a function that cancels."""

    def on_applied(self, callback: Callable[[set[tuple[int, int]]], None]) -> None:
        """Registers for (topic_id, queue_id) pairs that grew, once per applied run; wakes long polls."""
