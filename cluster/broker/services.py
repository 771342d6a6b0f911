"""The interface between the broker's services, the node in which they run, and their clients. It has no logic.

Everything below runs on the node's event loop; callbacks are called on it, exactly once.
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
    """A client for as long as its connection is open. Hashed by identity: one for each connection."""

    closed: bool
    peer_address: tuple[str, int]
    """The client's IP address and port, also for a client of a node that forwards."""
    on_close: list[Callable[[], None]]

    @property
    def owner(self) -> Hashable:
        """The owner of the work that its requests make (`cluster.runtime.turns.work.Turns`): the same for all requests
        of one client, also for those that another node forwards."""

    def work_waits(self, count: int) -> None:
        """Adds a number to the count of pieces of the client's work that wait for a turn; a negative number subtracts.
        While many wait, no more requests are read from the client."""

    def consumers_changed(self, group: str) -> None:
        """Asks the client to divide the group's queues again (request 40). Dropped if the connection is closed."""

    def call(self, request: ClientRequest, ended: Callable[[ClientAnswer | None], None]) -> Callable[[], None]:
        """Sends the client a request. `ended` is called once, later: with the answer, or with None if the client
        disconnects or the caller gives up by calling the returned function."""

    def call_oneway(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Sends the client a request that needs no answer. Dropped if the connection is closed."""


def node_told(services: Services) -> str:
    """Returns the name of this node in answers to clients, for example "node 3" or "node 2/3"."""
    return node_object(services.config.cluster.group, services.node_id)


class Services(Protocol):
    """The node as the broker sees it."""

    config: Config
    state: BrokerState
    node_id: NodeId
    turns: Turns
    """Cuts work that grows with input or data."""
    routes: RouteMap
    """Which group holds a topic, who leads it, and where clients find its nodes."""
    creations: MinuteRates
    """The judge of how many topics and groups somebody may make. Leader only."""

    def writes_open(self) -> bool:
        """Returns True if this node leads and has applied the no-op of its term, so that its counters are exact."""

    def propose(
        self, commands: list[Command], done: Done, session: CommitSession | None = None, author: str = ""
    ) -> None:
        """Proposes one COMMAND entry (leader only; FAIL otherwise) and calls `done` when it is applied or undecided.
        With an `author`, for people, it is a CHANGE entry once the cluster has that level.

        The commands are encoded and measured before this returns: commands that fit into no entry are FAIL at once. So
        are commands of a level that the cluster does not have (docs/adr/0094).
        """

    def log_time_ms(self) -> int:
        """Returns the log time now, in milliseconds. Leader only."""

    def read_index(self, done: Callable[[bool], None]) -> None:
        """Asks for a ReadIndex round, which all requests of a turn share. The callback gets True if the applied state
        now answers linearizably."""

    def commit_offset_later(self, group: str, topic_id: int, queue_id: int, offset: int) -> None:
        """Collects a oneway offset commit: the last value per queue is in the log after at most 100 ms. Leader only."""

    def settle_offsets(self, group: str, done: Callable[[], None]) -> None:
        """Calls `done` when every earlier commit of the group is applied, or lost. Leader only."""

    def knows_group(self, group: str) -> bool:
        """Returns True if the group exists and no deletion of it is in progress: its offsets may be committed. Leader
        only."""

    def read_log(self, position: int, size: int) -> bytes:
        """Returns bytes of the commit log at a logical position (applied messages only). Raises
        raftlog.errors.StorageError."""

    def fenced(self) -> bool:
        """Returns True if this node's rows are known to be wrong: it serves no messages."""

    def report_damage(self, position: int, size: int) -> None:
        """Reports bytes that do not match their CRC, also when read again. The node finds the damage and repairs it."""

    def cluster_uuids(self) -> tuple[str, ...]:
        """Returns the cluster's uuid, then the uuids of the clusters that it continues, newest first."""

    def topic_identity(self, topic: str) -> dict[str, str]:
        """Returns the ext field with the identity of the topic, as this node has applied it; {} if there is none."""

    def monotonic_ms(self) -> int:
        """Returns the milliseconds of the loop's clock, for timeouts (virtual in the simulator)."""

    def awake_ms(self) -> int:
        """Returns the time of `monotonic_ms` less the periods in which this node stood still. It measures how long a
        client was silent."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Schedules the callback on the loop; returns a function that cancels it."""

    def on_applied(self, callback: Callable[[set[tuple[int, int]]], None]) -> None:
        """Registers a function that gets the (topic_id, queue_id) pairs that grew, once per applied run. It wakes long
        polls."""


class ClientRequest(NamedTuple):
    """A request to a client. The server of the protocol has encoded it; the broker only passes it on."""

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
"""The answer to a oneway request that was written to a client's connection; it may still be lost with it."""


def begin_steps(turns: Turns, client: Client, steps: WorkSteps) -> None:
    """Carries out the steps, now or in later turns, fairly between clients. They end early if the client
    disconnects."""
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
    """Commands are not known to be applied: they were refused or lost, or they are undecided. The text says why."""


async def applied(services: Services, commands: list[Command]) -> list[Any]:
    """Proposes one entry and waits until it is applied; returns the result of each command. Raises NotAppliedError."""
    result: ProposeResult = await told(partial(services.propose, commands))
    if result.outcome is not Outcome.OK:
        raise NotAppliedError(result.remark)
    return result.results


PART_MAX = 4_096
"""The most rows that one command names; `statemachine` has the same limit for locks and resets."""

Row = TypeVar("Row")


def rows_in_parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yields the rows PART_MAX at a time; one empty part if there are none."""
    left = iter(rows)
    part = list(islice(left, PART_MAX))
    yield part
    while part := list(islice(left, PART_MAX)):
        yield part


def propose_in_parts(services: Services, runs: Iterable[list[Command]], done: Done) -> None:
    """Proposes each part when the one before is applied. `done` gets the result of the last part, or of the first that
    is not OK. If an earlier part was applied, a failure is reported as UNKNOWN, because some of the parts took
    effect."""
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
