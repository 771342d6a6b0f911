"""Faults around a leader: it applies entries late, its successor does, or its refusals arrive after it was deposed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from raftlog.core.state.quorum import majority

if TYPE_CHECKING:
    from jepsen_like.sim.faults.fault_plan import Fault
    from jepsen_like.sim.faults.nemesis import FaultInjector
    from jepsen_like.sim.machines.machine import Machine


def hold_apply(nemesis: FaultInjector, fault: Fault, rng: random.Random) -> None:
    """Makes each drain of the leader's apply lane take up to 1 s for a while, although the leader goes on committing.
    Reads at the leader must then wait, and not return old state. Does nothing without a leader.
    """
    leader = nemesis.leader()
    if leader is None:
        return
    leader.apply_factor = rng.uniform(0.2, 1.0) / leader.options.apply_s[1]
    nemesis.took(fault, f"node {leader.node_id} applies late", lambda: setattr(leader, "apply_factor", 1.0))
    nemesis.monitor.sometimes["apply held back on a leader"] += 1


def late_apply(nemesis: FaultInjector, fault: Fault, rng: random.Random, tries: int = 60) -> None:
    """Makes every node but the leader apply late, then kills the leader: the next leader has committed entries that it
    has not applied yet, and must not answer as if they did not exist. If there is no leader, or the other running
    voters are no majority, tries again 0.1 s later, up to `tries` times."""
    leader = nemesis.leader()
    late = [machine for machine in nemesis.up() if machine is not leader]
    if leader is None or not _can_elect(leader, late):
        if tries and not nemesis.over:
            nemesis.loop.call_outside(0.1, late_apply, nemesis, fault, rng, tries - 1)
        return
    for machine in late:
        machine.apply_factor = rng.uniform(0.8, 2.5) / machine.options.apply_s[1]
    leader.held += 1

    def strike() -> None:
        if not nemesis.over and leader.up:
            leader.kill(power=False)
            nemesis.monitor.sometimes["leader killed before others applied"] += 1

    def back() -> None:
        for machine in late:
            machine.apply_factor = 1.0
        leader.release()

    nemesis.loop.call_outside(rng.uniform(0.3, 0.7), strike)
    nemesis.took(fault, f"all but node {leader.node_id} apply late, and it is killed", back)


def _can_elect(leader: Machine, machines: list[Machine]) -> bool:
    """Returns True if these machines have a majority of the votes, by the configuration that the leader uses."""
    assert leader.node is not None
    voters = leader.node.raw.membership.voter_ids
    return sum(machine.node_id in voters for machine in machines) >= majority(len(voters))


def late_refusal(nemesis: FaultInjector, fault: Fault, rng: random.Random) -> None:
    """Transfers leadership while the old leader's link to one node is slow: its refusals of the requests that this node
    forwarded arrive when the next leader already has those requests."""
    leader = nemesis.leader()
    if leader is None or leader.node is None:
        return
    others = [node for node in leader.node.raw.membership.voter_ids if node != leader.node_id]
    if len(others) < 2:
        return
    holder, to = rng.sample(others, 2)
    edge, slow = (leader.host, nemesis.machines[holder].host), nemesis.network.links.slow
    if not leader.hand_over(to):
        return
    slow[edge] = rng.uniform(0.1, 0.8)

    def back() -> None:
        slow.pop(edge, None)

    nemesis.took(fault, f"node {leader.node_id} hands over to {to}, and node {holder} hears it late", back)
    nemesis.monitor.sometimes["refusal of a former leader late"] += 1


LEADER_FAULTS = {"hold-apply": hold_apply, "late-refusal": late_refusal, "late-apply": late_apply}
"""Fault kind -> the function that begins a fault of that kind."""
