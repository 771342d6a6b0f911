"""The interface of nemeses: their tools, and the effect that they return, which proves that the fault took place."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from jepsen_like.live.subjects.subject import Capability, Subject, is_healthy, leader_of
from raftmq.local.waiting import until

_DYING_S = 10.0


class Effect(NamedTuple):
    """The effect of a fault. `happened` is measured, not assumed: a fault without effect proves nothing."""

    happened: bool
    told: str
    numbers: dict[str, float] = {}  # noqa: RUF012 - never changed
    broken: tuple[str, ...] = ()
    """Promises of the subject that the fault saw broken, each with its proof. They make the run invalid."""


class Counts(NamedTuple):
    """Numbers of sends so far, by outcome, and of those still open."""

    acked: int
    failed: int
    unknown: int
    in_flight: int


class Load(Protocol):
    """The part of the workload that a nemesis may read or change."""

    factor: float
    """Factor that multiplies the rate of sends and the number of sends that may be in flight."""

    @property
    def counts(self) -> Counts:
        """The counts so far. Any thread may read them."""

    @property
    def position(self) -> int:
        """The highest byte position in the log that was acknowledged; -1 if none is known. Any thread may read it."""

    @property
    def writers(self) -> tuple[str, ...]:
        """The names of the clients that send all the time. A client's message ids begin with its name and a dash."""


class HasFailpoints(Protocol):
    """The interface of a subject with Capability.FAILPOINTS."""

    def set_failpoint(self, node: int, point: str, action: str) -> None:
        """Sets an action at a failpoint of a node. Raises OSError if the node does not answer."""

    def failpoint_hits(self, node: int) -> dict[str, int]:
        """Returns failpoint -> how often an action took effect there. Raises OSError."""

    def failpoint_waiting(self, node: int) -> dict[str, int]:
        """Returns failpoint -> the number of operations held there now. Raises OSError."""


class HasDisks(Protocol):
    """The interface of a subject whose nodes wait for space when their disk is full."""

    def disk(self, node: int) -> tuple[int, bool]:
        """Returns (how often the node's log began to wait for space since it was opened, True if it waits now). Raises
        OSError.
        """


class Transfers(Protocol):
    """The interface of a subject with Capability.TRANSFER."""

    def transfer(self, leader: int, to: int) -> bool:
        """Asks for a transfer of leadership; returns True if the answer says that `to` leads, False for another answer
        or a refusal. Raises OSError if there is no answer.
        """


class PowerSwitch(Protocol):
    """Kills nodes and undoes the writes that they never synced."""

    def cut(self, nodes: list[int], rng: random.Random) -> dict[str, float]:
        """Cuts the power of nodes. Returns name -> count for the `nodes` that lost power and the `writes`, `bytes` and
        `names` that they lost, and for the unsynced ones that were `kept`.
        """


class SkewsClocks(Protocol):
    """Moves the wall clocks of nodes."""

    def skew(self, node: int, offset_ms: int) -> None:
        """Moves the clock of the node from now on, until it is set to 0."""

    def skewed_readings(self, node: int) -> int:
        """Returns how many times the node's process has read a moved clock so far."""


class ChangesMembers(Protocol):
    """The interface of a subject with Capability.MEMBERS. An action that is not done in time returns False, or 0 as the
    node's id.
    """

    def voters(self) -> list[int]:
        """Returns the voters' ids, as the leader knows them; [] if no node can tell."""

    def join(self, *, manual: bool = False) -> int:
        """Starts a node with an empty disk as a learner; returns its id. With `manual` it stays a learner."""

    def wait_voter(self, node: int) -> bool:
        """Waits until the node votes; the leader promotes it by itself."""

    def wait_caught_up(self, node: int) -> bool:
        """Waits until a learner has caught up with the others."""

    def is_learner(self, node: int) -> bool:
        """Returns True if the node is a learner and no change of its role is in progress."""

    def leave(self, node: int) -> bool:
        """Removes a node from the cluster, waits until the node itself, if it runs, reports its removal, and stops its
        process."""

    def lose(self, node: int) -> bool:
        """Kills the node (SIGKILL) and deletes its disk; it never comes back. It stays a member until it is removed."""


class Stage:
    """A subject under load, with the tools to cause faults."""

    def __init__(
        self,
        subject: Subject,
        load: Load,
        rng: random.Random,
        *,
        power: PowerSwitch | None = None,
        clocks: SkewsClocks | None = None,
        members: ChangesMembers | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.subject = subject
        self.load = load
        self.rng = rng
        self.power = power
        self.clocks = clocks
        self.members = members
        self.sleep = sleep
        self.clock = clock
        """Returns the time in seconds; it moves on with `sleep`."""
        self.power_failures = 0
        """The number of nodes that lost power so far."""
        self.kills = 0

    def leader(self, timeout_s: float = 10.0) -> int:
        """Returns the leader; any node if none leads in time, so that a fault can still be applied."""
        leader = until(lambda: leader_of(self.subject.states()), timeout_s, 0.05)
        return self.rng.choice(self.subject.node_ids) if leader is None else leader

    def followers(self) -> list[int]:
        """Returns every node but the leader, in random order."""
        leader = self.leader()
        return self.shuffled(node for node in self.subject.node_ids if node != leader)

    def shuffled(self, nodes: Iterable[int]) -> list[int]:
        """Returns the nodes in an order drawn by the seed."""
        order = list(nodes)
        self.rng.shuffle(order)
        return order

    def some(self) -> int:
        """Returns the leader half of the time, else any node."""
        return self.leader() if self.rng.random() < 0.5 else self.rng.choice(self.subject.node_ids)

    def majority(self) -> list[int]:
        """Returns a smallest majority that includes the leader."""
        leader = self.leader()
        others = self.shuffled(node for node in self.subject.node_ids if node != leader)
        return [leader, *others[: len(self.subject.node_ids) // 2]]

    def strike(self, nodes: list[int]) -> int:
        """Kills all of the nodes with kill -9 within microseconds; returns how many were killed."""
        struck = [node for node in nodes if self.subject.is_running(node)]
        for blow in [self.subject.aim(node) for node in struck]:
            blow()
        return self.count_dead(struck)

    def count_dead(self, struck: list[int]) -> int:
        """Waits for the nodes that were just killed; returns how many of them have ended."""
        until(lambda: not any(self.subject.is_running(node) for node in struck), _DYING_S, 0.002)
        dead = sum(not self.subject.is_running(node) for node in struck)
        self.kills += dead
        return dead

    def start_all(self) -> None:
        """Starts every node that does not run, in random order."""
        for node in self.shuffled(self.subject.node_ids):
            if not self.subject.is_running(node):
                self.subject.start_node(node)

    def wait_healthy(self, timeout_s: float) -> float | None:
        """Returns the seconds until all nodes agree on a leader that accepts writes; None if they do not in time.

        A node that ended by itself during the wait is started again, since stopping is the right reaction to a broken
        disk.
        """
        begun = time.monotonic()
        while not is_healthy(self.subject.states()):
            if time.monotonic() - begun > timeout_s:
                return None
            self.start_all()
            time.sleep(0.05)
        return time.monotonic() - begun


class Nemesis(NamedTuple):
    """A named fault. `apply(stage, hold_s)` causes it, lets it last, ends it, and returns what it measured."""

    name: str
    does: str
    apply: Callable[[Stage, float], Effect]
    needs: frozenset[Capability] = frozenset()
    is_mixed: bool = True
    """True if the fault is part of the mix that is dealt when the user names no faults."""
    is_hostile: bool = False
    """True if the fault is an action of a client. If only such faults are named, all are played together
    (`story_hostile`)."""
    stops_nodes: bool = False
    """True if a node does right to end because of the fault."""
