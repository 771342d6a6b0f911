"""Defines the interfaces of the node and of clients, as the broker's services use them. It has almost no logic.

Everything below runs on the node's event loop. Callbacks are called on it too, exactly once unless their description
says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from cluster.config.local_layout import node_object
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.awaited import told
from cluster.runtime.turns.work import Turns, WorkSteps
from raftlog.types import NodeId

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.flow.minute_rates import MinuteRates
    from cluster.placement.route_map import RouteMap
    from cluster.replication.outcome import CommitSession, Done
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command


class Client(Protocol):
    """A client, for as long as its connection is open. There is one object for each connection, hashed by identity."""

    closed: bool
    peer_address: tuple[str, int]
    """The client's IP address and port, even if another node holds its connection and forwards its requests."""
    on_close: list[Callable[[], None]]

    @property
    def owner(self) -> Hashable:
        """The owner of the work that the client's requests cause (`cluster.runtime.turns.work.Turns`). It is the same
        for all requests of one client, also for those that another node forwards."""

    def work_waits(self, count: int) -> None:
        """Adds `count`, which may be negative, to the number of pieces of the client's work that wait for a turn. While
        many wait, no more requests are read from the client."""

    def consumers_changed(self, group: str) -> None:
        """Asks the client to divide the group's queues again (request 40). Dropped if the connection is closed."""

    def call(self, request: ClientRequest, ended: Callable[[ClientAnswer | None], None]) -> Callable[[], None]:
        """Sends the client a request. Calls `ended` once, later: with the answer, or with None if the client
        disconnects. Returns a function by which the caller gives up; `ended` then gets None."""

    def call_oneway(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Sends the client a request that needs no answer. Dropped if the connection is closed."""


def node_told(services: Services) -> str:
    """Returns the name of this node in answers to clients, for example "node 3" or "node 2/3"."""
    return node_object(services.config.cluster.group, services.node_id)


class Services(Protocol):
    """The data and functions of the node that the broker uses."""

    config: Config
    state: BrokerState
    node_id: NodeId
    turns: Turns
    """Runs work that grows with input or data in steps."""
    routes: RouteMap
    """Says which group holds a topic, which node leads it, and where clients find its nodes."""
    creations: MinuteRates
    """The quotas on the number of topics and groups that a user or address may create. Leader only."""

    def writes_open(self) -> bool:
        """Returns True if this node leads and has applied the first entry of its term, the no-op. From then on its
        counters are exact."""

    def propose(
        self, commands: list[Command], done: Done, session: CommitSession | None = None, author: str = ""
    ) -> None:
        """Proposes one COMMAND entry (leader only; FAIL otherwise) and calls `done` when it is applied or undecided.
        With an `author`, a name for people to read, the entry is a CHANGE entry once the cluster has the level for it.

        The commands are encoded and measured before this returns: commands that fit into no entry are FAIL at once. So
        are commands of a level that the cluster does not have (docs/adr/0094).
        """

    def log_time_ms(self) -> int:
        """Returns the log time now, in milliseconds. Leader only."""

    def read_index(self, done: Callable[[bool], None]) -> None:
        """Asks for a ReadIndex round, which all requests of a turn share. Calls `done` with True if reads of the
        applied state are now linearizable, else with False."""

    def catch_up(self) -> None:
        """Applies at once the committed entries that are held back although their requests are answered. Every request
        that reads the state calls this first, at its door: `Router.as_leader` and the admin server call it for all
        requests, `read_index` for a read of another node, and the search for a repeated send calls it itself."""

    def commit_offset_later(self, group: str, topic_id: int, queue_id: int, offset: int) -> None:
        """Commits an offset without an answer, together with others: the last value for each queue is in the log after
        at most 100 ms. Leader only."""

    def settle_offsets(self, group: str, done: Callable[[], None]) -> None:
        """Calls `done` when every earlier commit of the group is applied, or lost. Leader only."""

    def knows_group(self, group: str) -> bool:
        """Returns True if the group exists and is not being deleted, so that its offsets may be committed. Leader
        only."""

    def read_log(self, position: int, size: int) -> bytes:
        """Returns `size` bytes of the commit log at a logical position (applied messages only). Raises
        `raftlog.errors.OutOfRangeError` if this node's log does not have them, StorageError if they cannot be read."""

    def fenced(self) -> bool:
        """Returns True if this node must serve no messages: its rows are known to be wrong, or it was removed from the
        cluster."""

    def report_damage(self, position: int, size: int) -> None:
        """Reports bytes of the log that do not match their CRC even when read again. The node finds the damage and
        repairs it."""

    def cluster_uuids(self) -> tuple[str, ...]:
        """Returns the cluster's uuid, then the uuids of the clusters that it continues, newest first."""

    def topic_identity(self, topic: str) -> dict[str, str]:
        """Returns the ext field with the identity of the topic, by this node's applied state; {} if there is no such
        topic."""

    def monotonic_ms(self) -> int:
        """Returns the milliseconds of the loop's clock, for timeouts (virtual in the simulator)."""

    def awake_ms(self) -> int:
        """Returns the time of `monotonic_ms` without the periods in which this node stood still. It is used to measure
        how long a client has been silent."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Schedules the callback on the loop; returns a function that cancels it."""

    def on_applied(self, callback: Callable[[set[tuple[int, int]]], None]) -> None:
        """Registers a function that is called once for each run of entries that are applied together, with the
        (topic_id, queue_id) pairs that grew. Long polls are woken by it."""


class ClientRequest(NamedTuple):
    """A request to a client, encoded by the server of the protocol. The broker passes it on unchanged."""

    code: int
    ext: dict[str, str]
    body: bytes = b""
    oneway: bool = False
    """True if no answer is wanted: the request is finished when it was written to a connection."""


class ClientAnswer(NamedTuple):
    """The answer of a client. Code 0 means success."""

    code: int
    remark: str = ""
    ext: dict[str, str] = {}  # noqa: RUF012 - never changed
    body: bytes = b""


HANDED_OVER = ClientAnswer(0)
"""The answer for a oneway request that was written to a client's connection. The request may still be lost with the
connection."""


def begin_steps(turns: Turns, client: Client, steps: WorkSteps) -> None:
    """Carries out the steps, now or in later turns of the loop, with turns shared fairly between clients. They end
    early if the client disconnects."""
    client.work_waits(1)
    turns.begin(client.owner, _counted(client, steps))


def _counted(client: Client, steps: WorkSteps) -> WorkSteps:
    try:
        for _ in steps:
            if client.closed:
                return
            yield
    finally:
        client.work_waits(-1)


class NotAppliedError(Exception):
    """Raised if commands are not known to be applied: they were refused or lost, or their outcome is unknown. The text
    says which."""


async def applied(services: Services, commands: list[Command]) -> list[Any]:
    """Proposes one entry and waits until it is applied; returns the result of each command. Raises NotAppliedError if
    the entry is refused or lost, or if its outcome is unknown."""
    result: ProposeResult = await told(partial(services.propose, commands))
    if result.outcome is not Outcome.OK:
        raise NotAppliedError(result.remark)
    return result.results


PART_MAX = 4_096
"""The most rows in one command. `statemachine` has the same limit for locks and resets."""

Row = TypeVar("Row")


def rows_in_parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yields the rows in lists of at most PART_MAX. Yields one empty list if there are no rows."""
    left = iter(rows)
    part = list(islice(left, PART_MAX))
    yield part
    while part := list(islice(left, PART_MAX)):
        yield part


def propose_in_parts(services: Services, runs: Iterable[list[Command]], done: Done) -> None:
    """Proposes each part after the one before is applied. Calls `done` with the result of the last part, or of the
    first that is not OK. If an earlier part was applied, a failure is reported as UNKNOWN, because some of the parts
    took effect."""
    left = iter(runs)
    written = 0

    def go_on(result: ProposeResult) -> None:
        nonlocal written
        if result.outcome is Outcome.FAIL and written:
            done(ProposeResult(Outcome.UNKNOWN, [], None, f"a part of it was written: {result.remark}"))
            return
        written += 1
        run = next(left, None) if result.outcome is Outcome.OK else None
        if run is None:
            done(result)
        else:
            services.propose(run, go_on)

    services.propose(next(left), go_on)
