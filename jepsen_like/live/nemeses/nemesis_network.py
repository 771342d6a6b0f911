"""Nemeses of the network between nodes, played by the proxies. A cut counts if bytes were sent and none arrived."""

from __future__ import annotations

from collections.abc import Iterable

from jepsen_like.live.nemeses.nemesis_interface import Effect, Nemesis, Stage
from jepsen_like.live.subjects.proxy import Pair


def _cut(stage: Stage, pairs: Iterable[Pair], hold_s: float, what: str) -> Effect:
    chosen = sorted(pairs)
    fabric = stage.subject.fabric
    fabric.cut(chosen)
    before = fabric.traffic()
    stage.sleep(hold_s)
    after = fabric.traffic()
    reset = stage.rng.random() < 0.5
    fabric.heal(chosen, reset=reset)
    said = sum(after[pair].taken_bytes - before[pair].taken_bytes for pair in chosen)
    heard = sum(after[pair].passed_bytes - before[pair].passed_bytes for pair in chosen)
    told = f"{what} for {hold_s:.1f} s: {said} bytes said, {heard} heard; then {'reset' if reset else 'delivered'}"
    return Effect(said > 0 and heard == 0, told, {"edges": len(chosen), "said_bytes": said, "heard_bytes": heard})


def halves(stage: Stage, hold_s: float) -> Effect:
    """Separates a random minority from the rest."""
    order = stage.shuffled(stage.subject.node_ids)
    few = order[: (len(order) - 1) // 2]
    pairs = stage.subject.fabric.between(few, set(order) - set(few))
    return _cut(stage, pairs, hold_s, f"node {few} apart from the rest")


def ring(stage: Stage, hold_s: float) -> Effect:
    """Leaves every node connected only to its two neighbours in a ring; of three nodes, the leader and one follower are
    then separated."""
    order = stage.shuffled(stage.subject.node_ids)
    n = len(order)
    if n == 3:
        order.sort(key=stage.leader().__ne__)  # followers send nothing to each other, so the cut must touch the leader
        pairs = stage.subject.fabric.between(order[:1], order[1:2])
        return _cut(stage, pairs, hold_s, f"node {order[0]} and {order[1]} see only node {order[2]}")
    near = {(order[i], order[(i + d) % n]) for i in range(n) for d in (1, n - 1)}
    return _cut(stage, set(stage.subject.fabric.pairs) - near, hold_s, f"a ring {order}")


def one_way(stage: Stage, hold_s: float) -> Effect:
    """Cuts one direction: a node no longer receives, or is no longer received."""
    node = stage.some()
    deaf = stage.rng.random() < 0.5
    pairs = [(a, b) for a, b in stage.subject.fabric.pairs if (b if deaf else a) == node]
    return _cut(stage, pairs, hold_s, f"node {node} is {'deaf' if deaf else 'mute'}")


def isolate_leader(stage: Stage, hold_s: float) -> Effect:
    """Separates the leader from the other nodes; clients still reach it."""
    leader = stage.leader()
    others = [node for node in stage.subject.node_ids if node != leader]
    return _cut(stage, stage.subject.fabric.between([leader], others), hold_s, f"leader {leader} isolated")


def flapping_leader(stage: Stage, hold_s: float) -> Effect:
    """Cuts off the leader, again and again, for a little longer or shorter than an election takes."""
    said = heard = flaps = 0.0
    deadline = stage.clock() + max(hold_s, 2.0)
    while stage.clock() < deadline:
        effect = isolate_leader(stage, stage.rng.uniform(0.3, 1.6))
        said += effect.numbers["said_bytes"]
        heard += effect.numbers["heard_bytes"]
        flaps += 1
        stage.sleep(stage.rng.uniform(0.1, 0.8))
    told = f"the leader cut off {flaps:.0f} times: {said:.0f} bytes said, {heard:.0f} heard"
    return Effect(said > 0 and heard == 0, told, {"flaps": flaps, "said_bytes": said, "heard_bytes": heard})


def acks_lost(stage: Stage, hold_s: float) -> Effect:
    """Loses only acknowledgements: a follower stores what its leader sends, but the leader does not get its answers."""
    leader = stage.leader()
    follower = next(node for node in stage.shuffled(stage.subject.node_ids) if node != leader)
    before = stage.subject.states()[follower]
    cut = _cut(stage, [(follower, leader)], hold_s, f"what node {follower} says to node {leader}, the leader, is lost")
    after = stage.subject.states()[follower]
    taken = after.applied - before.applied if before is not None and after is not None else 0
    told = f"{cut.told}; it applied {taken} entries"
    return Effect(cut.happened and taken > 0, told, cut.numbers | {"entries": taken})


def slow_network(stage: Stage, hold_s: float) -> Effect:
    """Delays all links, with jitter."""
    fabric = stage.subject.fabric
    delay_s, jitter_s = stage.rng.uniform(0.01, 0.08), stage.rng.uniform(0.0, 0.04)
    before = fabric.traffic()
    fabric.slow(fabric.pairs, delay_s, jitter_s)
    stage.sleep(hold_s)
    after = fabric.traffic()
    fabric.heal()
    late = sum(after[pair].late_pieces - before[pair].late_pieces for pair in fabric.pairs)
    told = f"every edge {1000 * delay_s:.0f} to {1000 * (delay_s + jitter_s):.0f} ms slower for {hold_s:.1f} s"
    return Effect(late > 0, f"{told}: {late} pieces late", {"late_pieces": late, "delay_ms": 1000 * delay_s})


NEMESES = (
    Nemesis("partition-halves", "a minority cannot reach the majority", halves),
    Nemesis("partition-ring", "every node sees a majority, no two the same one", ring),
    Nemesis("partition-one-way", "a node hears nobody, or nobody hears it", one_way),
    Nemesis("acks-lost", "a follower takes entries and its leader does not hear of it", acks_lost),
    Nemesis("isolate-leader", "the leader reaches no other node, clients still reach it", isolate_leader),
    Nemesis("flapping-leader", "whoever leads is cut off again and again", flapping_leader),
    Nemesis("slow-network", "every edge delayed, with jitter", slow_network),
)
