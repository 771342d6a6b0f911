"""Stalls: faults in which one turn of a node's event loop takes long. A stalled node differs from a paused process:
timers that fall due during the stall run before the data that waits in the sockets is read (`SimLoop.end_stall`).

During the fault phase, stalls coincide with all other faults. After the heal, `Stalls` applies them alone and checks
that the cluster keeps its leader or soon has one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

from jepsen_like.sim.options import Options, stream
from raftlog.types import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.sim.checks.monitor import Monitor
    from jepsen_like.sim.faults.fault_plan import Fault
    from jepsen_like.sim.faults.nemesis import FaultInjector
    from jepsen_like.sim.group_states import GroupReach
    from jepsen_like.sim.machines.loop import SimLoop
    from jepsen_like.sim.machines.machine import Machine

LEADER_S = 2.0
"""Time after a stall, in seconds, within which the cluster must have a leader that accepts writes."""
BETWEEN_HANDOVERS_S = 300.0
SLOW_LINK_S = 0.05
"""Longest delay of a packet, and of a disk operation, when there are no faults, in seconds."""


def _stall(nemesis: FaultInjector, fault: Fault, machines: Sequence[Machine]) -> None:
    for machine in machines:
        machine.stall(fault.lasts_s)
    names = ", ".join(str(machine.node_id) for machine in machines)
    nemesis.took(fault, f"a turn of nodes {names} takes {fault.lasts_s:.2f} s")
    nemesis.monitor.sometimes["turn of a loop took long"] += 1


def stall(nemesis: FaultInjector, fault: Fault, rng: random.Random) -> None:
    """Stalls one running node, in more than half of the cases the leader."""
    machine = nemesis.some(rng)
    if machine is not None:
        _stall(nemesis, fault, [machine])


def stall_more(nemesis: FaultInjector, fault: Fault, rng: random.Random) -> None:
    """Stalls two nodes or all of them at the same time."""
    up = nemesis.up()
    if len(up) > 1:
        _stall(nemesis, fault, rng.sample(up, rng.choice((2, len(up)))))


def stall_before_election(nemesis: FaultInjector, fault: Fault, rng: random.Random, tries: int = 400) -> None:
    """Stalls a follower that would become a candidate after one more tick without a message from its leader, so that
    the leader's messages arrive during the stall. Retries every 5 ms while there is no such follower."""
    near = [machine for machine in nemesis.up() if _is_about_to_campaign(machine)]
    if near:
        _stall(nemesis, fault, [rng.choice(near)])
        nemesis.monitor.sometimes["stalled just before a campaign"] += 1
    elif tries and not nemesis.over:
        nemesis.loop.call_outside(0.005, stall_before_election, nemesis, fault, rng, tries - 1)


def stall_beside_cut(nemesis: FaultInjector, fault: Fault, rng: random.Random) -> None:
    """Stalls the leader while a follower is cut off from the network: of three nodes, only one still works."""
    leader = nemesis.leader()
    others = [machine for machine in nemesis.up() if machine is not leader]
    if leader is None or not others:
        return
    alone = rng.choice(others).host
    leader.stall(fault.lasts_s * rng.uniform(0.3, 1.0))
    hosts = [host for host in nemesis.hosts() if host != alone]
    edges = [edge for host in hosts for edge in ((alone, host), (host, alone))]
    nemesis.cut(fault, edges, f"node {leader.node_id} takes long, {alone} alone")
    nemesis.monitor.sometimes["turn of a loop took long"] += 1


def _is_about_to_campaign(machine: Machine) -> bool:
    assert machine.node is not None
    raft = machine.node.raw.raft
    return raft.role is Role.FOLLOWER and raft.election_elapsed == raft.election_timeout - 1


STALL_FAULTS = {
    "stall": stall,
    "stall-more": stall_more,
    "stall-before-election": stall_before_election,
    "stall-beside-cut": stall_beside_cut,
}
"""Fault kind -> the function that begins a fault of that kind."""


def _is_rotten(machine: Machine) -> bool:
    return machine.node is not None and bool(machine.node.storage.directory.log.damage.ranges)


class StallsWorld(Protocol):
    """The attributes of the simulated world (`jepsen_like.sim.world`) that the stall phase uses."""

    options: Options
    loop: SimLoop
    monitor: Monitor
    nemesis: FaultInjector
    reach: GroupReach

    def members(self) -> list[Machine]:
        """Returns the machines whose nodes are members of the Raft group."""

    def pass_time(self, seconds: float) -> None:
        """Runs the simulation for this many seconds of virtual time."""


class Stalls:
    """The stall phase: one stall after the other and no other fault, each of 0.1 to 5 s, on one node, two or all.
    Reports violations under the name `stall`."""

    def __init__(self, world: StallsWorld) -> None:
        self._world = world
        self._rng = stream(world.options.seed, "stalls")

    def run(self, rounds: int) -> None:
        """Runs up to `rounds` stalls and checks the leader after each; stops at the first violation. A round without a
        leader at its start does nothing."""
        for _ in range(rounds):
            if not self._world.monitor.violations:
                self._round()

    def _round(self) -> None:
        world = self._world
        leader = world.nemesis.leader()
        if leader is None:
            return
        seconds, which = 0.1 * 50 ** self._rng.random(), self._rng.choice(("leader", "follower", "some", "all"))
        victims = self._victims(which, leader)
        before, handed = self._reigns(), self._handed()
        deaf, rotten = world.reach.is_deaf(), _is_rotten(leader)
        processes = [machine.process for machine in world.members()]
        for machine in victims:
            machine.stall(seconds)
        world.monitor.log(f"nodes {', '.join(str(each.node_id) for each in victims)} stand still for {seconds:.2f} s")
        world.monitor.sometimes["turn of a loop took long in calm"] += 1
        world.pass_time(seconds)
        what = f"{which} stood still for {seconds:.2f} s"
        self._expect_leader(what)
        patience_s = world.options.election_ticks * world.options.tick_ms / 1000
        # When the leader stalled, its heartbeat may have been due, and a follower's tick soon after.
        is_short = seconds < patience_s - SLOW_LINK_S - 3 * world.options.tick_ms / 1000
        harmless = which in ("follower", "all") or (which == "leader" and is_short)
        # A follower on a dead connection does not count for the leader's quorum until the dead connection is noticed. A
        # leader whose log is damaged hands leadership over some time after it notices the damage (seed 957000022).
        harmless = harmless and not deaf and not rotten and not _is_rotten(leader)
        # A node that was about to end, such as a leader that is stopped, does not count for the quorum either (seed
        # 958000034).
        harmless = harmless and processes == [machine.process for machine in world.members()]
        if harmless and self._handed() == handed and self._reigns() != before:
            world.monitor.report("stall", f"{what}: leader and term were {before} and are {self._reigns()}")
        world.pass_time(2 * patience_s)
        if self._handed() > 1 and world.loop.now < BETWEEN_HANDOVERS_S:
            world.monitor.report("stall", f"leadership was handed over {self._handed()} times for slow turns")

    def _victims(self, which: str, leader: Machine) -> list[Machine]:
        members = self._world.members()
        if which == "leader":
            return [leader]
        if which == "follower":
            return [self._rng.choice([machine for machine in members if machine is not leader])]
        return self._rng.sample(members, 2) if which == "some" else members

    def _expect_leader(self, when: str) -> None:
        """Waits for a leader that takes writes; reports a violation after LEADER_S seconds. A leader that was stalled
        itself may have hundreds of entries to apply first, so the time begins again whenever the leader has applied
        some (seed 832001039)."""
        world, end, applied = self._world, self._world.loop.now + LEADER_S, -1
        while not self._leads() and not world.monitor.violations:
            leader = world.nemesis.leader()
            # The rows are read instead of the core's applied index, because the core learns of a drain of hundreds of
            # entries only at its end (seed 951000081).
            if leader is not None and leader.node is not None and leader.node.state.applied.index > applied:
                applied, end = leader.node.state.applied.index, world.loop.now + LEADER_S
            if world.loop.now >= end:
                world.monitor.report("stall", f"nobody takes writes {LEADER_S:.0f} s after {when}")
            world.pass_time(0.05)

    def _leads(self) -> bool:
        leader = self._world.nemesis.leader()
        return leader is not None and leader.node is not None and leader.node.serving.proposals.open

    def _reigns(self) -> tuple[int, int] | None:
        return max(((term, int(node)) for term, node in self._world.monitor.leaders.items()), default=None)

    def _handed(self) -> int:
        nodes = [machine.node for machine in self._world.members()]
        return sum(node.peers.links.slow_turns.handed for node in nodes if node is not None)
