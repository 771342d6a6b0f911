"""Nemeses of processes: kill, pause, restart, and frequent changes of leader."""

from __future__ import annotations

from typing import cast

from jepsen_like.live.nemeses.nemesis_interface import Effect, Nemesis, Stage, Transfers
from jepsen_like.live.subjects.subject import Capability

_REJOIN_S = 30.0


def _kill(stage: Stage, victims: list[int], hold_s: float) -> Effect:
    in_flight = stage.load.counts.in_flight
    dead = stage.strike(victims)
    stage.sleep(hold_s)
    stage.start_all()
    told = f"kill -9 on node {_names(victims)} with {in_flight} sends in flight; back after {hold_s:.1f} s"
    return Effect(dead == len(victims), told, {"killed": dead, "in_flight": in_flight})


def kill_one(stage: Stage, hold_s: float) -> Effect:
    """Kills a follower."""
    return _kill(stage, stage.followers()[:1], hold_s)


def kill_leader(stage: Stage, hold_s: float) -> Effect:
    """Kills the leader."""
    return _kill(stage, [stage.leader()], hold_s)


def kill_majority(stage: Stage, hold_s: float) -> Effect:
    """Kills the leader and as many others as make a majority."""
    return _kill(stage, stage.majority(), hold_s / 2)


def kill_all(stage: Stage, hold_s: float) -> Effect:
    """Kills all nodes at the same moment."""
    return _kill(stage, stage.subject.node_ids, min(hold_s, 1.0))


def _pause(stage: Stage, victims: list[int], hold_s: float) -> Effect:
    stopped = sum([stage.subject.pause(node) for node in victims])
    stage.sleep(hold_s)
    silent = sum(stage.subject.states()[node] is None for node in victims)
    for node in stage.shuffled(victims):
        stage.subject.resume(node)
    told = f"SIGSTOP on node {_names(victims)} for {hold_s:.1f} s; {silent} of them silent"
    return Effect(stopped == len(victims) == silent, told, {"stopped": stopped, "silent": silent})


def pause_one(stage: Stage, hold_s: float) -> Effect:
    """Pauses a follower."""
    return _pause(stage, stage.followers()[:1], hold_s)


def pause_leader(stage: Stage, hold_s: float) -> Effect:
    """Pauses the leader, which still believes that it leads when it is resumed."""
    return _pause(stage, [stage.leader()], hold_s)


def rolling_restart(stage: Stage, hold_s: float) -> Effect:
    """Restarts every node once, with an orderly stop; waits until the cluster is healthy before the next one."""
    orderly = 0
    for node in stage.shuffled(stage.subject.node_ids):
        orderly += stage.subject.terminate(node)
        if not stage.subject.is_running(node):
            stage.subject.start_node(node)
        stage.wait_healthy(_REJOIN_S)
    count = len(stage.subject.node_ids)
    return Effect(orderly == count, f"{orderly} of {count} nodes stopped in order and restarted", {"orderly": orderly})


def ping_pong(stage: Stage, hold_s: float) -> Effect:
    """Transfers leadership from node to node, again and again."""
    subject = cast(Transfers, stage.subject)  # a plan deals this fault only to a subject that can transfer leadership
    moved = asked = 0
    deadline = stage.clock() + hold_s
    while stage.clock() < deadline or not asked:
        leader = stage.leader()
        to = stage.rng.choice([node for node in stage.subject.node_ids if node != leader])
        asked += 1
        try:
            moved += subject.transfer(leader, to)
        except OSError:
            continue  # the node has lost leadership meanwhile, or was too busy to answer
        stage.sleep(stage.rng.uniform(0.1, 0.5))
    return Effect(moved > 0, f"{moved} of {asked} transfers of leadership", {"moved": moved, "asked": asked})


def traffic(stage: Stage, hold_s: float) -> Effect:
    """Multiplies the load by five."""
    calm = _acked_per_s(stage, hold_s / 3)
    calm_in_flight = stage.load.counts.in_flight
    stage.load.factor = 5.0
    try:
        rush = _acked_per_s(stage, hold_s)
        in_flight = stage.load.counts.in_flight
    finally:
        stage.load.factor = 1.0
    told = f"load x5 for {hold_s:.1f} s: {rush:.0f} acknowledged/s after {calm:.0f}/s, {in_flight} under way"
    felt = rush > 1.3 * calm or in_flight > 2 * calm_in_flight  # beyond the machine's limit, more sends only queue up
    return Effect(felt, told, {"calm_per_s": calm, "rush_per_s": rush, "in_flight": in_flight})


def _acked_per_s(stage: Stage, seconds: float) -> float:
    before, begun = stage.load.counts.acked, stage.clock()
    stage.sleep(seconds)
    return float((stage.load.counts.acked - before) / (stage.clock() - begun))


def _names(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes))


NEMESES = (
    Nemesis("kill-one", "kill -9 on a follower", kill_one),
    Nemesis("kill-leader", "kill -9 on the leader", kill_leader),
    Nemesis("kill-majority", "kill -9 on a majority at once, the leader among them", kill_majority),
    Nemesis("kill-all", "kill -9 on every node at once", kill_all),
    Nemesis("pause-one", "SIGSTOP on a follower", pause_one),
    Nemesis("pause-leader", "SIGSTOP on the leader", pause_leader),
    Nemesis("rolling-restart", "orderly stop and start of one node after the other", rolling_restart),
    Nemesis("leader-ping-pong", "leadership handed round and round", ping_pong, frozenset({Capability.TRANSFER})),
    Nemesis("traffic-x5", "five times the load", traffic),
)
