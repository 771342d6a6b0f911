"""The harness's view of a system under test: nodes to hurt, a log to append to, replicas to read.

Workloads, nemeses and checkers see only this; what a subject cannot do is missing from its `capabilities`, and a
nemesis that needs it is refused or skipped with the reason, never counted.
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
    """Faults at named places inside a node."""
    TRANSFER = "leadership transfer"
    POWER = "power loss"
    """Its processes run on the shim that remembers unsynced writes."""
    CLOCK = "clock skew"
    GROUPS = "consumer groups"
    TOPICS = "topics and groups as metadata"
    MEMBERS = "change of members"
    CLIENTS = "hostile clients"
    """It speaks the protocols of the attacks, and who sends what breaks it is to be refused."""


class Placed(NamedTuple):
    """The place of an acknowledged message."""

    queue_id: int
    queue_offset: int
    position: int = -1
    """Byte position in the commit log; -1 where the subject has none or does not say."""


class SendFailed(Exception):
    """It is proved that the message was not stored and never will be."""


class SendUnknown(Exception):
    """The message may be stored, or may be later."""


class NodeState(NamedTuple):
    """A node's state, by its own word."""

    term: int
    leads: bool
    open: bool
    """It leads and takes writes."""
    leader: int | None
    applied: int
    committed: int


class LoadPlan(NamedTuple):
    """The load that suits a subject: sends per second, and how many may be under way."""

    rate: int
    in_flight_max: int
    prefix: str = "w"
    """Prefix of message ids: decides how large bodies are (payload.py)."""


class LogClient(Protocol):
    """Appends to the subject's log; made and used on one event loop."""

    async def submit(self, message_id: str) -> asyncio.Future[Placed]:
        """Starts a send and returns when the next may start; the future ends with SendFailed or SendUnknown if not
        acknowledged."""

    async def close(self) -> None:
        """Ends connections; open sends end as unknown."""


class Subject(Protocol):
    """A cluster of real processes. Blocking; called from the harness's main thread unless said otherwise."""

    name: str
    topic: str
    queues: int
    fabric: Fabric
    load: LoadPlan
    emphasis: Mapping[str, int]
    """Fault -> how often it comes in each round of the random mix; others once."""

    @property
    def node_ids(self) -> list[int]:
        """All nodes, ascending."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The abilities of this cluster on this machine."""

    def start(self) -> None:
        """Makes and starts all nodes and waits until writes are open. Raises LocalError."""

    def stop(self) -> None:
        """Ends all nodes, paused ones too; idempotent."""

    def start_node(self, node: int) -> None:
        """Starts a node that does not run; does not wait for it to join."""

    def is_running(self, node: int) -> bool:
        """Returns True if the node's process lives (a paused one does)."""

    def aim(self, node: int) -> Callable[[], None]:
        """Finds the process now; what is returned kills it (-9) without further ado."""

    def kill(self, node: int) -> bool:
        """kill -9 and wait until it is gone. False if it did not run."""

    def terminate(self, node: int) -> bool:
        """An orderly stop. False if it did not run or had to be killed."""

    def pause(self, node: int) -> bool:
        """SIGSTOP; True once the system says that the process is stopped."""

    def resume(self, node: int) -> None:
        """SIGCONT; harmless for one that is not stopped."""

    def states(self) -> dict[int, NodeState | None]:
        """Asks every node for its state now; None for one that does not answer. Any thread."""

    async def open_client(self) -> LogClient:
        """A client of its own, on the running loop."""

    def read_all(self, history: HistoryWriter) -> int:
        """Reads every replica to its end into the history (`read`); returns the number of rows."""

    def evidence(self) -> list[str]:
        """Returns the lines of the nodes' own logs that tell of a loss."""


def leader_of(states: dict[int, NodeState | None]) -> int | None:
    """Returns the node that leads in the highest term, by its own word; None if there is none."""
    known = {node: state for node, state in states.items() if state is not None}
    top = max((state.term for state in known.values()), default=None)
    return next((node for node, state in known.items() if state.leads and state.term == top), None)


def is_healthy(states: dict[int, NodeState | None]) -> bool:
    """Returns True if every node answers and names the same leader, and that one takes writes."""
    leader = leader_of(states)
    if leader is None or any(state is None for state in states.values()):
        return False
    first = states[leader]
    return first is not None and first.open and all(s is not None and s.leader == leader for s in states.values())


def is_caught_up(states: dict[int, NodeState | None]) -> bool:
    """Returns True if the cluster is healthy, and every node has applied all that any node knows to be committed."""
    if not is_healthy(states):
        return False
    known = [state for state in states.values() if state is not None]
    return min(state.applied for state in known) >= max(state.committed for state in known)
