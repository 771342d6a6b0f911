"""Faults between groups: the groups do not reach each other, or the first group has no majority for a while."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jepsen_like.sim.faults.fault_plan import Fault
    from jepsen_like.sim.faults.nemesis import FaultInjector

Begin = Callable[["FaultInjector", "Fault", random.Random], None]


def groups_apart(others: Sequence[str], nemesis: FaultInjector, fault: Fault, rng: random.Random) -> None:
    """Cuts the first group from the second one, now and then in one direction only."""
    edges = [edge for own in nemesis.hosts() for other in others for edge in ((own, other), (other, own))]
    way = rng.choice(("both ways", "both ways", "from the first", "to the first"))
    if way != "both ways":
        edges = [edge for edge in edges if (edge[0] in others) == (way == "to the first")]
    nemesis.cut(fault, edges, f"groups apart, {way}")


def first_headless(nemesis: FaultInjector, fault: Fault, rng: random.Random) -> None:
    """Kills a majority of the first group, including its leader if it has one. Until the fault ends and these nodes are
    started again, the group accepts no changes."""
    leader = nemesis.leader()
    machines = [machine for machine in nemesis.machines.values() if not machine.retired and machine is not leader]
    rng.shuffle(machines)
    victims = ([] if leader is None else [leader]) + machines
    victims = victims[: len(victims) // 2 + 1]
    for machine in victims:
        machine.kill(power=False)
        machine.held += 1

    def back() -> None:
        for machine in victims:
            machine.release()

    nemesis.took(fault, f"nodes {', '.join(str(machine.node_id) for machine in victims)} are killed", back)


def group_faults(others: Sequence[str]) -> dict[str, Begin]:
    """Returns fault kind -> the function that begins it. `others`: the hosts of the second group."""
    return {"groups-apart": partial(groups_apart, others), "first-headless": first_headless}
