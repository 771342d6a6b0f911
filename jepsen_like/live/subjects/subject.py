"""The interface of a system under test, as the harness sees it: nodes to hurt, a log to append to, replicas to read.

Workloads, nemeses and checkers use only this interface. If a subject lacks an ability, its `capabilities` do not
contain it. A nemesis that needs the ability is then refused, or skipped with the reason, and is never counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from jepsen_like.history import HistoryWriter
from jepsen_like.live.subjects.proxy import Fabric


class Capability(Enum):
    """An ability that a fault or a workload may need of a subject."""

    FAILPOINTS = "failpoints"
    """The subject can inject faults at named places inside a node."""
    TRANSFER = "leadership transfer"
    POWER = "power loss"
    """The subject's processes run on the shim, which records unsynced writes."""
    CLOCK = "clock skew"
    GROUPS = "consumer groups"
    TOPICS = "topics and groups as metadata"
    MEMBERS = "change of members"
    CLIENTS = "hostile clients"
    """The subject speaks the protocols of the attacks, and is expected to refuse requests that would break it."""


class PlacedMessage(NamedTuple):
    """The place of an acknowledged message."""

    queue_id: int
    queue_offset: int
    position: int = -1
    """Byte position in the commit log; -1 if the subject has none or does not report it."""


class SendFailed(Exception):
    """The message was proved not to be stored, and never will be."""


class SendUnknown(Exception):
    """The message may be stored, or may be stored later."""


class NodeState(NamedTuple):
    """A node's state, as the node itself reports it."""

    term: int
    leads: bool
    open: bool
    """True if the node leads and accepts writes."""
    leader: int | None
    applied: int
    committed: int


class LoadPlan(NamedTuple):
    """The load that suits a subject: sends per second, and how many may be in flight."""

    rate: int
    in_flight_max: int
    prefix: str = "w"
    """Prefix of message ids, which decides the size of bodies (payload.py)."""


class LogClient(Protocol):
    """Appends to the subject's log; made and used on one event loop."""

    async def submit(self, message_id: str) -> asyncio.Future[PlacedMessage]:
        """Starts a send and returns when the next may start; the future ends with SendFailed or SendUnknown if the send
        is not acknowledged."""

    async def close(self) -> None:
        """Closes the connections; open sends end as unknown."""


class Subject(Protocol):
    """A cluster of real processes. Methods block, and are called from the harness's main thread unless said
    otherwise."""

    name: str
    topic: str
    queues: int
    fabric: Fabric
    load: LoadPlan
    emphasis: Mapping[str, int]
    """Fault -> how often it comes in each round of the random mix; other faults come once."""

    @property
    def node_ids(self) -> list[int]:
        """The ids of all nodes, ascending."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The abilities of this cluster on this machine."""

    def start(self) -> None:
        """Makes and starts all nodes and waits until the leader accepts writes. Raises LocalError."""

    def stop(self) -> None:
        """Stops all nodes, including paused ones; may be called again."""

    def start_node(self, node: int) -> None:
        """Starts a node that does not run, without waiting for it to join."""

    def is_running(self, node: int) -> bool:
        """Returns True if the node's process runs (a paused one does)."""

    def aim(self, node: int) -> Callable[[], None]:
        """Finds the node's process now, and returns a function that kills it (-9) at once."""

    def kill(self, node: int) -> bool:
        """Kills the node (SIGKILL) and waits until it has ended. Returns False if it did not run, or ended by itself
        at that moment.
        """

    def terminate(self, node: int) -> bool:
        """Stops the node in an orderly way. Returns False if it did not run or had to be killed."""

    def pause(self, node: int) -> bool:
        """Sends SIGSTOP; returns True once the operating system shows the process as stopped."""

    def resume(self, node: int) -> None:
        """Sends SIGCONT, which is harmless for a process that is not stopped."""

    def states(self) -> dict[int, NodeState | None]:
        """Asks every node for its state now; None for a node that does not answer. Any thread may call it."""

    async def open_client(self) -> LogClient:
        """Returns a new client on the running loop."""

    def read_all(self, history: HistoryWriter) -> int:
        """Reads every replica to its end into the history (`read`); returns the number of rows."""

    def evidence(self) -> list[str]:
        """Returns lines about the nodes' own logs that may explain a broken promise; [] if there are none."""


def leader_of(states: dict[int, NodeState | None]) -> int | None:
    """Returns the node that says that it leads in the highest term; None if there is none."""
    known = {node: state for node, state in states.items() if state is not None}
    top = max((state.term for state in known.values()), default=None)
    return next((node for node, state in known.items() if state.leads and state.term == top), None)


def is_healthy(states: dict[int, NodeState | None]) -> bool:
    """Returns True if every node answers and names the same leader, and the leader accepts writes."""
    leader = leader_of(states)
    if leader is None or any(state is None for state in states.values()):
        return False
    first = states[leader]
    return first is not None and first.open and all(s is not None and s.leader == leader for s in states.values())


def is_caught_up(states: dict[int, NodeState | None]) -> bool:
    """Returns True if the cluster is healthy, and every node has applied everything that any node knows to be
    committed."""
    if not is_healthy(states):
        return False
    known = [state for state in states.values() if state is not None]
    return min(state.applied for state in known) >= max(state.committed for state in known)
