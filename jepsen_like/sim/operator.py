"""The operator who changes the members of the group during the faults: one task after the other, each until it is
done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from cluster.members.addresses import of_peer
from jepsen_like.sim.checks.monitor import Monitor
from jepsen_like.sim.machines.machine import Machine, peer_of, uuid_of
from jepsen_like.sim.options import Options, stream
from raftlog.core.raw_node import RawNode
from raftlog.errors import RaftLogError
from raftlog.types import NodeId
from raftmq_wire.errors import LocalError

LOOKS_EVERY_S = 0.1
ZOMBIE_S = (0.0, 1.5)
"""Shortest and longest time in seconds for which a removed node goes on until it is switched off."""


class Task(NamedTuple):
    """One task on a machine. `join`: a new machine becomes a voter. `leave`: a member is removed, then switched off.
    `lose`: a machine is destroyed, with its disk."""

    kind: str
    node: NodeId


def tasks(options: Options) -> tuple[Task, ...]:
    """Draws the tasks of a seed's operator; none with probability 1/2.

    The machine to lose is the one on whose disk the nemesis flips bits (`FaultInjector._rot`). Otherwise two of three
    nodes could lose the same entry.
    """
    rng = stream(options.seed, "members")
    weak, new = NodeId(1 + options.seed % options.nodes), NodeId(options.nodes + 1)
    some = NodeId(rng.randint(1, options.nodes))
    plans: tuple[tuple[Task, ...], ...] = (
        (),
        (),
        (),
        (),
        (Task("join", new), Task("leave", some)),
        (Task("lose", weak), Task("join", new), Task("leave", weak)),
        (Task("join", new), Task("join", NodeId(new + 1)), Task("leave", some), Task("leave", new)),
        (Task("leave", some), Task("join", new)),
    )
    return rng.choice(plans)


class Operator:
    """Carries out tasks through the leader, as the HTTP API would. `done` is True when no task is left."""

    def __init__(
        self,
        options: Options,
        machines: dict[NodeId, Machine],
        monitor: Monitor,
        leader: Callable[[], Machine | None],
        build: Callable[[NodeId], Machine],
        todo: Sequence[Task],
    ) -> None:
        """`build` creates a machine with an empty disk and adds it to `machines`."""
        self._options = options
        self._machines = machines
        self._monitor = monitor
        self._leader = leader
        self._build = build
        self._rng = stream(options.seed, "operator")
        self._todo = list(todo)
        self._work: Iterator[None] | None = None
        self.applied: list[str] = []

    def start(self) -> None:
        """Schedules the first task: at a random time in the first half of the fault phase or, in runs that trim the log
        by its size, in the second half, when it is trimmed already."""
        half_s = self._options.fault_phase_s / 2
        begins_s = self._rng.uniform(0.5, half_s) + (half_s if self._options.retained_bytes else 0.0)
        self._monitor.loop.call_outside(begins_s, self._look)

    def add(self, task: Task) -> None:
        """Adds one more task, and begins it if there is no other."""
        self._todo.append(task)
        if len(self._todo) == 1 and self._work is None:
            self._look()

    @property
    def done(self) -> bool:
        """True if no task is left."""
        return not self._todo

    def _look(self) -> None:
        if not self._todo or self._monitor.violations:
            return
        if self._work is None:
            task = self._todo[0]
            self._monitor.log(f"operator: {task.kind} {task.node}")
            self._work = getattr(self, "_" + task.kind)(task.node)
        try:
            next(self._work)
        except StopIteration:
            task = self._todo.pop(0)
            self.applied.append(f"members-{task.kind}")
            self._monitor.log(f"operator: {task.kind} {task.node} done")
            self._work = None
        self._monitor.loop.call_outside(LOOKS_EVERY_S, self._look)

    # --- tasks: each step looks at the world once --------------------------------------------------------------------

    def _join(self, node: NodeId) -> Iterator[None]:
        machine = self._machines.get(node) or self._build(node)
        machine.start()
        addresses, uuid = of_peer(peer_of(node)), uuid_of(node)
        while node not in self._settled("voters"):
            self._try(
                lambda raw, changes: (
                    node in raw.membership.node_uuids
                    or changes.add(node, uuid, addresses, manual=False, done=self._count("learner added"))
                )
            )
            yield
        self._monitor.sometimes["learner promoted"] += 1

    def _leave(self, node: NodeId) -> Iterator[None]:
        machine = self._machines[node]
        while node in self._settled("all", node):
            leader = self._leader()
            if leader is machine:
                self._monitor.sometimes["leader removed"] += 1
            self._try(
                lambda raw, changes: (
                    node not in raw.membership.node_uuids or changes.remove(node, self._count("member removed"))
                )
            )
            yield
        for _ in range(round(self._rng.uniform(*ZOMBIE_S) / LOOKS_EVERY_S)):
            yield
        machine.retire()

    def _lose(self, node: NodeId) -> Iterator[None]:
        self._machines[node].retire()
        self._monitor.sometimes["emptied disk replaced"] += 1
        yield from ()

    def _settled(self, which: str, otherwise: NodeId | None = None) -> Sequence[NodeId]:
        """Returns the ids of the voters (`which` "voters") or of all members, if the latest change of members is
        committed. While it is not, or without a leader, returns (`otherwise`,), or () if that is None.
        """
        leader = self._leader()
        node = leader.node if leader is not None else None
        if node is None or node.raw.committed_membership_index < node.raw.membership.index:
            return () if otherwise is None else (otherwise,)
        members = node.raw.membership
        return members.voter_ids if which == "voters" else tuple(members.node_uuids)

    def _try(self, act: Callable[[RawNode, Any], object]) -> None:
        leader = self._leader()
        if leader is None or leader.node is None or leader.process is None or leader.process.paused:
            return
        try:
            leader.process.run(act, leader.node.raw, leader.node.peers.changes)
        except (LocalError, RaftLogError) as error:
            self._monitor.log(f"operator: not now: {str(error).splitlines()[0]}")

    def _count(self, what: str) -> Callable[[Any], None]:
        def ended(ending: Any) -> None:
            self._monitor.sometimes[what] += ending.value == "done"

        return ended
