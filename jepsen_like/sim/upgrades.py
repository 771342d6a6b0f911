"""Nodes of two versions in one cluster, an operator who upgrades, downgrades and finalizes them, and the check of
levels.

The older version is simulated by the same code, which announces a lower level and refuses what is above it. The test
with two real builds is the proof (tests/raftmq/test_upgrade_live.py); this one searches for rare states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.options import Options, stream
from raftlog.format_versions import BASELINE
from raftlog.types import Entry, EntryType, NodeId
from raftlog.work import METER
from raftmq_wire.errors import LocalError
from statemachine import payload
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.command_table import in_entry, unpack
from statemachine.commands import Command, name_of
from statemachine.families import LATER_ROWS
from statemachine.levels import CHANGES_LEVEL, LEVEL
from statemachine.topics.topics import CreateTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jepsen_like.sim.machines.machine import Machine

CHECKER = "levels"
LOOKS_EVERY_S = 0.25
SURE_S = 1.0
"""Time in seconds after which a leader has noticed that a member's process has ended, or runs another version."""
TOPIC = "upgrades"


class LevelCheck:
    """Checks that every node has the feature level that the log prescribes at its last applied entry, and no row of a
    higher level (`Family.LATER_ROWS`). Implements `monitor.AppliedUsers`.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._index = -1
        self.levels: list[tuple[int, int]] = [(-1, BASELINE)]
        """(index of an entry, level of the cluster from that entry on), in the order of the log."""

    def started(self, machine: Machine) -> None:
        """Checks a node that has recovered, or has installed a snapshot."""
        self.applied(machine, ())

    def heard(self, machine: Machine) -> None:
        """Does nothing: it does not matter when a node learns what it has applied."""

    def applied(self, machine: Machine, batch: Iterable[Sequence[Entry]]) -> None:
        """Checks a node that has applied entries, and learns the levels in them."""
        for run in batch:
            for entry in run:
                if entry.index > self._index:
                    self._index = entry.index
                    self._learn(entry)
        assert machine.node is not None
        state, who = machine.node.state, f"node {machine.node_id}"
        wanted = next(level for index, level in reversed(self.levels) if index <= state.applied.index)
        if state.level != wanted:
            self._report(CHECKER, f"{who} has level {state.level} at entry {state.applied.index}, it must be {wanted}")
        if state.level > machine.node.environment.level:
            known = machine.node.environment.level
            self._report(CHECKER, f"{who} knows level {known}, and has a state of level {state.level}")
        if not machine.kv.closed:
            self._look_for_later_rows(machine, state.level)

    def _look_for_later_rows(self, machine: Machine, level: int) -> None:
        before = METER.units
        for rows in LATER_ROWS:
            if rows.level > level and (key := rows.found_in(machine.kv)) is not None:
                row = f"the row {key!r} in {rows.column}, of level {rows.level}"
                self._report(CHECKER, f"node {machine.node_id} has {row}, in a state of level {level}")
        METER.units = before  # the check's work is not charged to the node

    def _learn(self, entry: Entry) -> None:
        run = in_entry(entry.type, entry.payload)
        if entry.type == EntryType.MESSAGES:
            run = unpack(payload.decode(entry.payload).effects)
        level = self.levels[-1][1]
        if entry.type == EntryType.CHANGE and level < CHANGES_LEVEL:
            self._report(CHECKER, f"entry {entry.index} is a CHANGE in a log of level {level}")
        for command in run:
            if isinstance(command, Finalize):
                level = max(level, command.level)
            elif isinstance(command, Command) and level < command.LEVEL:
                name = name_of(type(command))
                self._report(CHECKER, f"entry {entry.index} has {name} in a log of level {level}")
        if level > self.levels[-1][1]:
            self.levels.append((entry.index, level))

    @property
    def is_final(self) -> bool:
        """True if the newest level is in the log."""
        return self.levels[-1][1] >= LEVEL


class Upgrades:
    """Upgrades, downgrades and finalizes nodes as an operator would. `check` is the level check."""

    def __init__(
        self,
        options: Options,
        machines: Mapping[NodeId, Machine],
        leader: Callable[[], Machine | None],
        soon: Callable[[float, Callable[..., None]], object],
        now: Callable[[], float],
        report: Report,
    ) -> None:
        """`soon`: calls a function after that many seconds. `now`: returns the virtual time in seconds."""
        self._rng = stream(options.seed, "upgrades")
        self._machines, self._leader, self._soon, self._now, self._report = machines, leader, soon, now, report
        self.check = LevelCheck(report)
        self.older = options.older
        """The highest level that the older version knows."""
        self._doubted: dict[NodeId, float] = {}
        """Node -> time in seconds since which its machine is down or runs the older version."""
        self.stopped = False
        self.healed = False
        """True once no node is to be restarted by chance any more. Otherwise a new member might never catch up, because
        it or its leader is killed every second (seed 810000077).
        """

    def start(self) -> None:
        """Starts the operator's work."""
        self._look()

    def look(self) -> None:
        """Records which machines cannot have announced the newest level."""
        for node_id, machine in self._machines.items():
            if self.check.is_final and machine.final_since is None:
                machine.final_since = self._now()
            node = machine.node
            if machine.up and node is not None and node.environment.level >= LEVEL:
                self._doubted.pop(node_id, None)
            elif machine.host not in machine.network.links.down:  # without power, no FIN tells the leader
                self._doubted.setdefault(node_id, self._now())

    def _look(self) -> None:
        if self.stopped:
            return
        self.look()
        rng = self._rng
        if self.check.is_final:
            self.upgrade_all()
        elif rng.random() < 0.25:
            machine = rng.choice(list(self._machines.values()))
            if machine.up and not machine.retired and not self.healed:
                self.install(machine, self.older if machine.level == LEVEL and rng.random() < 0.3 else LEVEL)
        leader = self._leader()
        if leader is not None:
            if rng.random() < 0.2:
                self.finalize(leader)
            if rng.random() < 0.3:
                self.change(leader, TOPIC)
        self._soon(LOOKS_EVERY_S, self._look)

    def upgrade_all(self) -> None:
        """Installs the newest version on every machine that runs another one."""
        for machine in self._machines.values():
            if machine.level < LEVEL and not machine.retired:
                self.install(machine, LEVEL)

    def install(self, machine: Machine, level: int) -> None:
        """Installs another version on a machine: kills the process, which starts again with that version unless a fault
        keeps it down."""
        machine.level = level
        if machine.up:
            machine.kill(power=False)
            self._soon(0.1, machine.start)

    def finalize(self, machine: Machine, level: int = 0) -> None:
        """Asks this node to finalize. If `level` is 0, the node proposes the newest level, unless it does not lead, or
        a member is down or does not know that level. Any other `level` is proposed without a check."""
        node, process = machine.node, machine.process
        if node is None or process is None or process.paused or not hasattr(node, "peers"):
            return

        def ask() -> None:
            wanted = level
            if not wanted:
                if not node.serving.services.writes_open():
                    return
                try:
                    wanted = node.peers.levels.require()
                except LocalError:
                    return
                self._judge(node.peers.membership.in_force.node_uuids, wanted, node.state.level)
            node.serving.services.propose([Finalize(wanted)], lambda _: None)

        process.run(ask)

    def _judge(self, members: Iterable[NodeId], wanted: int, has: int) -> None:
        if wanted <= has:
            return
        for node_id in members:
            since = self._doubted.get(node_id)
            if since is not None and self._now() - since > SURE_S:
                self._report(CHECKER, f"a leader finalizes, and node {node_id} is down or older since {since:.2f} s")

    def change(self, machine: Machine, topic: str) -> None:
        """Changes a topic through this node with an author's name, as a logged-in person does."""
        node, process = machine.node, machine.process
        if node is None or process is None or process.paused or not hasattr(node, "peers"):
            return
        fields: dict[str, Any] = {"name": topic, "read_queues": 1, "write_queues": 1, "perm": self._rng.choice((4, 6))}
        process.run(
            lambda: node.serving.services.propose(
                [CreateTopic(fields, if_absent=False)], lambda _: None, author="the operator"
            )
        )

    def finish(self) -> bool:
        """Takes the next step to complete the upgrade; returns True when every member has the newest level. The caller
        repeats it until then.
        """
        self.stopped = True
        self.look()
        self.upgrade_all()
        leader = self._leader()
        if leader is not None and not self.check.is_final:
            self.finalize(leader)
        running = [machine.node for machine in self._machines.values() if machine.node is not None]
        return self.check.is_final and all(node.state.level == LEVEL for node in running)
