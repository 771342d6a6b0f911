"""The tools of a nemesis, and the effect that it must hand back: the proof that its fault took place."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from jepsen_like.live.subjects.subject import Capability, Subject, is_healthy, leader_of
from raftmq.local.waiting import until

_DYING_S = 10.0


class Effect(NamedTuple):
    """The effect of a fault. `happened` is measured, not assumed: a fault that nobody felt proves nothing."""

    happened: bool
    told: str
    numbers: dict[str, float] = {}  # noqa: RUF012 - never changed


class Counts(NamedTuple):
    """Sends so far, by outcome, and those still open."""

    acked: int
    failed: int
    unknown: int
    in_flight: int


class Load(Protocol):
    """The part of the workload that a nemesis may look at or change."""

    factor: float
    """Multiplies the rate of sends and how many may be under way."""

    @property
    def counts(self) -> Counts:
        """The counts so far; any thread."""

    @property
    def position(self) -> int:
        """The highest byte position in the log that was acknowledged; -1 if none is known. Any thread."""


class HasFailpoints(Protocol):
    """A subject with Capability.FAILPOINTS."""

    def set_failpoint(self, node: int, point: str, action: str) -> None:
        """Raises OSError if the node does not answer."""

    def failpoint_hits(self, node: int) -> dict[str, int]:
        """Returns point -> how often an action took hold there. Raises OSError."""

    def failpoint_waiting(self, node: int) -> dict[str, int]:
        """Point -> operations held there now. Raises OSError."""


class HasDisks(Protocol):
    """A subject whose nodes wait for space when there is none."""

    def disk(self, node: int) -> tuple[int, bool]:
        """(how often its log began to wait since the node was opened, whether it waits now). Raises OSError."""


class Transfers(Protocol):
    """A subject with Capability.TRANSFER."""

    def transfer(self, leader: int, to: int) -> bool:
        """Asks for a change of leader; True if `to` leads. Raises OSError for no answer."""


class PowerCut(Protocol):
    """Kills nodes and takes away what they never synced."""

    def cut(self, nodes: list[int], rng: random.Random) -> dict[str, float]:
        """Returns what was dropped: nodes, writes, bytes."""


class SkewsClocks(Protocol):
    """Moves what a node's wall clock shows."""

    def skew(self, node: int, offset_ms: int) -> None:
        """Moves the clock of the node from now on, until it is set to 0."""

    def skewed_readings(self, node: int) -> int:
        """Returns how many times the node's process has read a moved clock so far."""


class ChangesMembers(Protocol):
    """A subject with Capability.MEMBERS. What cannot be done in time is False, or node 0."""

    def voters(self) -> list[int]:
        """Returns the voters' ids, as the leader knows them; [] if nobody can tell."""

    def join(self, *, manual: bool = False) -> int:
        """Starts a node with an empty disk as a learner; returns its id. `manual`: it stays a learner."""

    def wait_voter(self, node: int) -> bool:
        """Waits until it votes: the leader promotes it by itself."""

    def wait_caught_up(self, node: int) -> bool:
        """Waits until a learner has what the others have."""

    def is_learner(self, node: int) -> bool:
        """Returns True if the node is a learner, and not about to be something else."""

    def leave(self, node: int) -> bool:
        """Takes a node out, waits until it says so itself if it runs, and ends it."""

    def lose(self, node: int) -> bool:
        """Kills the node (-9) for ever: its disk is gone. It is a member all the same, until it is taken out."""


class Stage:
    """One subject under load, and the means to hurt it."""

    def __init__(
        self,
        subject: Subject,
        load: Load,
        rng: random.Random,
        *,
        power: PowerCut | None = None,
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
        """Seconds; moves on with `sleep`."""
        self.power_failures = 0
        """Nodes that lost power so far."""
        self.kills = 0

    def leader(self, timeout_s: float = 10.0) -> int:
        """Returns the node that leads; any node if none does in time, so that a fault can still strike somewhere."""
        leader = until(lambda: leader_of(self.subject.states()), timeout_s, 0.05)
        return self.rng.choice(self.subject.node_ids) if leader is None else leader

    def followers(self) -> list[int]:
        """Every node but the leader, in random order."""
        leader = self.leader()
        return self.shuffled(node for node in self.subject.node_ids if node != leader)

    def shuffled(self, nodes: Iterable[int]) -> list[int]:
        """Returns the nodes in an order drawn by the seed."""
        order = list(nodes)
        self.rng.shuffle(order)
        return order

    def some(self) -> int:
        """The leader half of the time, else any node."""
        return self.leader() if self.rng.random() < 0.5 else self.rng.choice(self.subject.node_ids)

    def majority(self) -> list[int]:
        """The smallest majority, leader included."""
        leader = self.leader()
        others = self.shuffled(node for node in self.subject.node_ids if node != leader)
        return [leader, *others[: len(self.subject.node_ids) // 2]]

    def strike(self, nodes: list[int]) -> int:
        """kill -9 on all of them within microseconds; returns how many were killed."""
        struck = [node for node in nodes if self.subject.is_running(node)]
        for blow in [self.subject.aim(node) for node in struck]:
            blow()
        return self.count_dead(struck)

    def count_dead(self, struck: list[int]) -> int:
        """Waits for the nodes just struck; returns how many of them are gone."""
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
        """Seconds until all nodes agree on a leader that takes writes; None if they do not in time.

        A node that ended by itself meanwhile is started again: fail-stop is an answer to a broken disk.
        """
        begun = time.monotonic()
        while not is_healthy(self.subject.states()):
            if time.monotonic() - begun > timeout_s:
                return None
            self.start_all()
            time.sleep(0.05)
        return time.monotonic() - begun


class Nemesis(NamedTuple):
    """A named fault. `apply(stage, hold_s)` inflicts it, lets it last, takes it back, and tells what it measured."""

    name: str
    does: str
    apply: Callable[[Stage, float], Effect]
    needs: frozenset[Capability] = frozenset()
    is_mixed: bool = True
    """It is dealt when nobody names faults."""
    is_hostile: bool = False
    """It is what a client does: named with nothing but its like, all are played together (`story_hostile`)."""
