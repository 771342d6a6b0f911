"""Nemeses with several steps in one exact order, which a wrong implementation of Raft does not survive."""

from __future__ import annotations

from jepsen_like.live.nemeses.nemesis_interface import Effect, Nemesis, Stage


def _lose(stage: Stage, node: int) -> int:
    """Crashes a node and returns the number of nodes that died: by a power failure, which loses what the node never
    synced, if the machine can play one (then in 7 of 10 cases), else by kill -9."""
    if stage.power is not None and stage.rng.random() < 0.7:
        failed = int(stage.power.cut([node], stage.rng)["nodes"])
        stage.power_failures += failed
        return failed
    return stage.strike([node])


def _acked_during(stage: Stage, hold_s: float) -> int:
    before = stage.load.counts.acked
    stage.sleep(hold_s)
    return stage.load.counts.acked - before


def part_kill(stage: Stage, hold_s: float) -> Effect:
    """Cuts a minority off while writes go on; then one node of the majority dies, is started again, and forms the new
    majority with the returning minority, while the rest is cut off. The entries that were acknowledged during the cut
    must have been on the disk of the node that died: the returning minority never had them."""
    fabric, nodes = stage.subject.fabric, stage.subject.node_ids
    behind, dies, stays = _three(stage)
    rest = [node for node in nodes if node != behind]
    fabric.cut(fabric.between([behind], rest))
    acked = _acked_during(stage, hold_s)
    dead = _lose(stage, dies)
    fabric.heal()
    fabric.cut(fabric.between([stays], [node for node in nodes if node != stays]))
    stage.subject.start_node(dies)
    stage.sleep(hold_s)
    fabric.heal(reset=True)
    told = f"node {behind} cut off for {acked} acks, node {dies} died, then node {stays} cut off instead"
    return Effect(dead == 1 and acked > 0, told, {"acked_meanwhile": acked, "killed": dead})


def pause_kill(stage: Stage, hold_s: float) -> Effect:
    """Repeats the scenario of `part_kill` with pauses instead of cuts: a follower is paused, one of the others dies,
    and the last one is paused when the first continues."""
    behind, dies, stays = _three(stage)
    stopped = stage.subject.pause(behind)
    acked = _acked_during(stage, hold_s)
    dead = _lose(stage, dies)
    stage.subject.pause(stays)
    stage.subject.resume(behind)
    stage.subject.start_node(dies)
    stage.sleep(hold_s)
    stage.subject.resume(stays)
    told = f"node {behind} slept for {acked} acks, node {dies} died, then node {stays} slept instead"
    return Effect(stopped and dead == 1 and acked > 0, told, {"acked_meanwhile": acked, "killed": dead})


def stutter_kill(stage: Stage, hold_s: float) -> Effect:
    """Kills one follower, pauses the other under load, and kills the leader up to 0.4 s after the paused one continues.

    The entries that the leader counted as stored by the paused follower must still be there when that one leads.
    """
    leader = stage.leader()
    away, hesitates, *_ = stage.shuffled(node for node in stage.subject.node_ids if node != leader)
    dead = stage.strike([away])
    stage.sleep(hold_s / 2)
    before = stage.load.counts.acked
    stopped = stage.subject.pause(hesitates)
    stage.sleep(stage.rng.uniform(0.2, 0.5))
    blow = stage.subject.aim(leader)
    stage.subject.resume(hesitates)
    stage.sleep(stage.rng.choice((0.0, 0.02, 0.05, 0.1, 0.2, 0.4)))
    blow()
    acked = stage.load.counts.acked - before
    dead += stage.count_dead([leader])
    stage.subject.start_node(away)
    stage.sleep(hold_s)
    stage.start_all()
    told = f"node {away} away, node {hesitates} hesitated, leader {leader} died ({acked} acks in between)"
    return Effect(stopped and dead == 2, told, {"acked_meanwhile": acked, "killed": dead})


def swizzle(stage: Stage, hold_s: float) -> Effect:
    """Cuts the nodes off one after the other, and reconnects them in another order."""
    fabric, nodes = stage.subject.fabric, stage.subject.node_ids
    mine = {node: fabric.between([node], [other for other in nodes if other != node]) for node in nodes}
    out, back = stage.shuffled(nodes), stage.shuffled(nodes)
    gone: set[int] = set()
    for node in out:
        gone.add(node)
        fabric.cut(mine[node])
        stage.sleep(stage.rng.uniform(0.1, hold_s / 2))
    before = fabric.traffic()
    stage.sleep(0.3)
    after = fabric.traffic()
    for node in back:
        gone.remove(node)
        fabric.heal({pair for pair in mine[node] if not gone & set(pair)}, reset=stage.rng.random() < 0.5)
        stage.sleep(stage.rng.uniform(0.1, hold_s / 2))
    heard = sum(after[pair].passed_bytes - before[pair].passed_bytes for pair in fabric.pairs)
    return Effect(heard == 0, f"cut off in order {out}, back in order {back}", {"heard_bytes": heard})


def _three(stage: Stage) -> tuple[int, int, int]:
    """Returns three nodes: (the one that falls behind, the one that dies, the one that ends up alone). The leader is
    the second or the third.
    """
    leader = stage.leader()
    first, second, *_ = stage.shuffled(node for node in stage.subject.node_ids if node != leader)
    return (first, second, leader) if stage.rng.random() < 0.5 else (first, leader, second)


NEMESES = (
    Nemesis("part-kill", "a minority is cut off, one of the majority dies, the two form the new majority", part_kill),
    Nemesis("pause-kill", "the same with pauses instead of cuts", pause_kill),
    Nemesis("stutter-kill", "one follower away, the other hesitates, the leader dies as it goes on", stutter_kill),
    Nemesis("swizzle", "nodes cut off one by one, let back in another order", swizzle),
)
