"""Faults of who leads: its apply is held back, and what it refuses when it leads no more arrives late."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from raftlog.errors import RaftLogError

if TYPE_CHECKING:
    from jepsen_like.sim.faults import Fault
    from jepsen_like.sim.nemesis import Nemesis


def hold_apply(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    """The leader goes on committing and applies nothing for a while: what it serves must wait, not be old."""
    leader = nemesis.leader()
    if leader is None:
        return
    leader.apply_factor = rng.uniform(0.2, 1.0) / leader.options.apply_s[1]
    nemesis.took(fault, f"node {leader.node_id} applies late", lambda: setattr(leader, "apply_factor", 1.0))
    nemesis.monitor.sometimes["apply held back on a leader"] += 1


def late_refusal(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    """Leadership is handed over while what the old leader says to one node is slow: its refusals of forwarded requests
    arrive when they are in the next leader's hands."""
    leader = nemesis.leader()
    if leader is None or leader.node is None or leader.process is None or leader.process.paused:
        return
    others = [node for node in leader.node.raw.membership.voter_ids if node != leader.node_id]
    if len(others) < 2:
        return
    holder, to = rng.sample(others, 2)
    edge, slow = (leader.host, nemesis.machines[holder].host), nemesis.network.links.slow
    try:
        leader.process.run(leader.node.transfer, to)
    except (RaftLogError, ValueError):
        return  # that one could not lead
    slow[edge] = rng.uniform(0.1, 0.8)

    def back() -> None:
        slow.pop(edge, None)

    nemesis.took(fault, f"node {leader.node_id} hands over to {to}, and node {holder} hears it late", back)
    nemesis.monitor.sometimes["refusal of a former leader late"] += 1
