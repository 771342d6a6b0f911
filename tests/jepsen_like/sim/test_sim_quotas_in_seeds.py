"""Quotas that come and go in the simulator: clients are held, refused and passed on, and everything else holds."""

from __future__ import annotations

from cluster.node.node import Node
from jepsen_like.sim.machines.loop import Process
from jepsen_like.sim.machines.machine import Machine
from jepsen_like.sim.options import QUOTAS_FROM, draw
from jepsen_like.sim.scripted import ScriptedWorld
from raftlog.types import NodeId, Role

DAY_MS = 86_400_000
LEADERS = "".join(f"lead {node}\nwait 0.7\n" for node in (2, 3, 1) * 4)
SCRIPT = f"nodes 3 quotas=1\nlead 1\nquotas 15\n{LEADERS}kill 1\nwait 2\nstart 1\nwait 2\nsettle\n"


def test_a_quarter_of_the_seeds_have_quotas() -> None:
    assert not any(draw(seed).quotas for seed in range(QUOTAS_FROM - 40, QUOTAS_FROM))
    assert 10 < sum(draw(seed).quotas for seed in range(QUOTAS_FROM, QUOTAS_FROM + 100)) < 40


class Watched(ScriptedWorld):
    """Notes what becomes of sends that wait for a quota, and of learnt limits."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.seen: set[str] = set()
        self._waiting: dict[NodeId, int] = {}

    def phases(self) -> None:
        def look(process: Process) -> None:
            self.monitor.after_event(process)
            for machine in self.machines.values():
                if machine.process is process:
                    self.look(machine)

        self.loop.after_event = look
        super().phases()
        self.scrape()

    def do_kill(self, *names: str) -> None:
        self.scrape()
        super().do_kill(*names)

    def look(self, machine: Machine) -> None:
        """Called after each event of the machine's node."""
        if machine.node is None:
            self._waiting.pop(machine.node_id, None)
            return
        flow, leads = machine.node.serving.proposals.flow, machine.node.raw.role is Role.LEADER
        before, waiting = self._waiting.get(machine.node_id, 0), len(flow.paced)
        self._waiting[machine.node_id] = waiting
        if waiting > before:
            self.seen.add("held")
        elif waiting < before:
            self.seen.add("went on" if leads else "passed on")
        if flow.learnt.limits is not None:
            self.seen.add("in force")
        elif "in force" in self.seen:
            self.seen.add("none")

    def scrape(self) -> None:
        """Notes what the metrics of the nodes have counted."""
        for machine in self.machines.values():
            if machine.node is not None:
                self.seen.update(metric for metric in COUNTED if count(machine.node, metric))


COUNTED = (
    "raftmq_quota_refused_total",
    'raftmq_learnt_messages_total{outcome="within"}',
    'raftmq_learnt_messages_total{outcome="over"}',
)
REFUSED, WITHIN, OVER = COUNTED


def count(node: Node, metric: str) -> float:
    """The value of a metric, all its series together."""
    steps = node.exporter.scraped()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            lines = b"".join(end.value).decode().splitlines()
            return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric))


def test_clients_are_held_refused_and_passed_on() -> None:
    stage = Watched(SCRIPT)
    assert not stage.run().violations
    assert {"held", "went on", "passed on", REFUSED} <= stage.seen


JUMPS = ((1, 3), (1, -3), (2, 40), (1, 0), (3, -40), (1, 7), (2, 0), (3, 0))
"""(node, days by which its wall clock is off from then on)."""


def test_wall_clocks_jump_by_days_while_buckets_fill() -> None:
    """The simulator's check of rates holds: buckets have the monotonic time."""
    jumps = "".join(f"clock {node} {days * DAY_MS}\nwait 1.5\n" for node, days in JUMPS)
    stage = Watched(f"nodes 3 quotas=1\nlead 1\nquotas 20\n{jumps}lead 2\nwait 2\nclock 1 0\nlead 1\nwait 4\nsettle\n")
    assert not stage.run().violations
    assert {"held", "went on"} <= stage.seen


def test_learnt_limits_come_into_force_and_go() -> None:
    stage = Watched(SCRIPT)
    assert not stage.run().violations
    assert {"in force", "none", WITHIN, OVER} <= stage.seen
