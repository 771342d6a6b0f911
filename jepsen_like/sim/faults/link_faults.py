"""Faults of single links: a middlebox forgets connections, or only a follower's acknowledgements to its leader get
lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from jepsen_like.sim.faults.fault_plan import Fault
from jepsen_like.sim.machines.machine import Machine

if TYPE_CHECKING:
    from jepsen_like.sim.faults.nemesis import FaultInjector


def half_open(nemesis: FaultInjector, fault: Fault, rng: random.Random) -> None:
    """Makes existing connections between a node and another node, or a client, lose all that is sent on them: all of
    the connections, those that one of the two dialled, or a single one. Neither side notices, or only the node gets a
    reset. New connections work, and healing the network does not repair the old ones."""
    machine, one_side, which = nemesis.some(rng), rng.random() < 0.5, rng.choice(("all", "dialled", "one"))
    if machine is None:
        return
    hosts = nemesis.clients if rng.random() < 0.3 else nemesis.hosts()
    others = [host for host in hosts if nemesis.network.dialled(machine.host, host)]
    if not others:
        return
    other = rng.choice(others)
    found = nemesis.network.dialled(machine.host, other)
    if which == "dialled":
        dialler = rng.choice(found).own[0]
        found = [connection for connection in found if connection.own[0] == dialler]
    elif which == "one":
        found = [rng.choice(found)]
    nemesis.network.forget(found, told=machine.host if one_side else None)
    nemesis.monitor.sometimes["connections forgotten by the network"] += len(found)
    heard = f"{machine.host} is told" if one_side else "nobody is told"
    nemesis.took(fault, f"{len(found)} connections between {machine.host} and {other} lead nowhere, {heard}")


def acks_lost(nemesis: FaultInjector, fault: Fault, rng: random.Random) -> None:
    """Cuts the link from a follower to its leader, one way: the follower still hears the leader, and every other node
    hears the follower. Its acknowledgements arrive late, or never."""
    leader = nemesis.leader()
    followers = [machine for machine in nemesis.up() if machine is not leader]
    if leader is None or not followers:
        return
    follower: Machine = rng.choice(followers)
    hosts, never = {follower.host, leader.host}, rng.random() < 0.5
    edge = (follower.host, leader.host)
    nemesis.monitor.sometimes["acknowledgements alone lost"] += 1
    nemesis.cut(
        fault,
        [edge],
        f"{edge[0]} -x-> {edge[1]}, its acknowledgements {'are lost' if never else 'come late'}",
        (lambda: nemesis.network.reset(hosts)) if never else None,
    )


LINK_FAULTS = {"half-open": half_open, "acks-lost": acks_lost}
"""Fault kind -> the function that begins a fault of that kind."""
