"""The story `--nemesis hostile`: plays the attacks of `jepsen_like.hostile` in hands (a hand is a few attacks at the
same time) while honest clients run, and measures their effect.

First the honest load finds out what the cluster can take; from then on it runs at a share of it. Then hand after hand
is played. After each one the cluster gets some seconds for what the attacks left behind, and then comes a calm that is
measured. The disk, the machine and the growing log affect latency in the calms as they do in the hands, so the
difference between the two comes from the attacks. Nothing that a client sends may end a node, move leadership, make a
node use more memory than its bound, or leave an honest request without an answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from typing import NamedTuple

from jepsen_like.hostile.attack import EVERY_S
from jepsen_like.hostile.attacks import ATTACKS
from jepsen_like.hostile.hands import Hand, deal
from jepsen_like.live.harm.attack_process import Assault, AttackRound, broken_in, orders_for
from jepsen_like.live.nemeses.coverage_gates import FELT, FULL_S
from jepsen_like.live.nemeses.nemesis_interface import Effect
from jepsen_like.live.outcome import Played
from jepsen_like.live.probes.honest_clients import P99_MAX_MS, RequestFigures, joined, seen_each
from jepsen_like.live.probes.long_turns import TURN_MAX_S, Turns, ask_turns
from jepsen_like.live.probes.node_watch import Watch
from jepsen_like.live.stories.story import Scene, Story
from jepsen_like.live.subjects.raftmq_subject import LOAD

HAND_S, HAND_EVERY_S = 12.0, 4.0
"""HAND_S: seconds of a hand in which rounds begin. HAND_EVERY_S: seconds from one round of an attack to its next. So
each attack gets three rounds per hand.
"""
HAND_MAX_S = 30.0
"""The most seconds of a hand. A hand lasts until each of its attacks has begun as many rounds as are due. That may take
longer than HAND_S, because at most `jepsen_like.hostile.attacker.AT_ONCE` rounds of an attack run at the same time.
"""
WINDOW_S = 100.0
"""Seconds of a hand in which rounds begin, if all attacks are played at once. Such a hand is long, and each attack
begins a round every EVERY_S.
"""
TAIL_S = 32.0
"""The most seconds after a hand in which its last rounds may come to their end. An attack waits up to 30 s for an
answer, and an answer that never comes must be found."""
DRAIN_S = 3.0
"""Seconds after a hand before the calm is measured: connections close, rows are removed, queues empty."""
CALM_S, CALM_SHARE = 3.0, 0.1
"""Seconds of each calm; if all attacks are played at once, the calms' share of the time."""
SLOWER_MAX = 2.0
"""Factor by which the p99 during attacks may exceed that of the calms. It applies only if the result is above
P99_MAX_MS, on a machine that is busy with other work.
"""
PROBE_S, PROBE_FACTOR, SETTLE_S = 4.0, 8.0, 2.0
"""The probe of the cluster's capacity: its length in seconds, the factor by which it multiplies the load, and the
seconds to settle afterwards.
"""
LOAD_SHARE = 1 / 16
"""The share of the capacity that goes on beside the attacks. With half of the capacity, two cores would have no time
left for heavy but legal requests, and the run would measure the limit of the machine.
"""
MEMORY_MAX = 1 << 30
"""Bytes by which a node's memory may grow under attack: four budgets of `limits.node_inflight_bytes_max` (requests in
flight, requests held for the leader, incomplete frames, answers that wait to be read), twice, because freed bytes stay
with the allocator for a while."""
_SHOWN = 3
_USUAL_TAIL_S = 3.0
"""Usual length of a tail (the time for a hand's last rounds to end) in seconds. It decides how many hands fit into a
run.
"""
_HEARD_S = 0.3
"""Seconds to wait at the end of a hand. By then the attacker knows that the hand is over, and the start of every round
has been reported.
"""
_NAMED = 8
"""The most attacks of a hand that the output names."""
_MIB = 1 << 20

Span = tuple[int, int]
"""A span of time: (start, end), nanoseconds on the clock of the history."""


class Layout(NamedTuple):
    """The hands of a run and their times, fixed by seed, time and number of attacks at once."""

    hands: list[Hand]
    hand_s: float
    every_s: float
    calm_s: float

    @property
    def due_in_hand(self) -> int:
        """The rounds of each attack in one hand."""
        return int(self.hand_s / self.every_s)

    def due(self, name: str) -> int:
        """Returns the number of rounds of an attack, at one every EVERY_S within its hands."""
        return int(sum(name in hand for hand in self.hands) * self.hand_s / EVERY_S)


def layout(scene: Scene) -> Layout:
    """Returns as many hands as fit into the time, at least one."""
    if scene.at_once is None:
        count = max(1, round(scene.time_s / WINDOW_S))
        calm_s = max(CALM_S, CALM_SHARE * scene.time_s / (count + 1))
        return Layout([tuple(scene.attacks)] * count, scene.time_s / count, EVERY_S, calm_s)
    hand_s = min(HAND_S, scene.time_s)
    count = max(1, int((scene.time_s - CALM_S) / (hand_s + _USUAL_TAIL_S + DRAIN_S + CALM_S)))
    hands = deal([ATTACKS[name] for name in scene.attacks], count, scene.at_once, scene.rng)
    return Layout(hands, hand_s, HAND_EVERY_S, CALM_S)


def play(scene: Scene) -> None:
    """Plays calms and attacks; raises StoryEnds and OSError if it cannot continue."""
    plan, subject = layout(scene), scene.subject
    calms: list[Span] = []
    attacks: list[Span] = []
    rounds = Rounds()
    with Watch(subject) as watch:
        rate = _settle_rate(scene)
        calms.append(_calm(scene, plan.calm_s, rate))
        resting = dict(watch.latest)
        watch.forget_peak()
        begun_s = time.monotonic()
        orders = orders_for(subject, scene.stage.leader(), [], scene.rng.getrandbits(32), scene.scale)
        orders.every_s = plan.every_s
        with Assault(subject.processes, orders, rounds.hear) as assault:
            for hand in plan.hands:
                attacks.append(play_hand(scene, assault, rounds, hand, plan))
                scene.stage.sleep(DRAIN_S)
                calms.append(_calm(scene, plan.calm_s, rate))
        if assault.died:
            scene.doubts.append(f"the attacker ended by itself: {' | '.join(assault.noise)}")
    attacked_s = sum(stop - start for start, stop in attacks) / 1e9
    scene.measured |= {
        "rate": round(rate),
        "hands": len(plan.hands),
        "calm_s": round(plan.calm_s * len(calms), 1),
        "attacked_s": round(attacked_s, 1),
    }
    judge_life(scene, watch, rounds, begun_s)
    judge_memory(scene, resting, watch.peak)
    judge_turns(scene, {node.id: asyncio.run(ask_turns(node)) for node in subject.nodes})
    judge_honest(scene, calms, attacks, plan.hands)
    judge_rounds(scene, rounds, attacked_s, plan)


def _calm(scene: Scene, calm_s: float, rate: float) -> Span:
    with scene.act("calm") as told:
        start = time.monotonic_ns()
        scene.stage.sleep(calm_s)
        told.append(f"{rate:,.0f} sends per second")
    return start, time.monotonic_ns()


def _settle_rate(scene: Scene) -> float:
    """Sets the load to LOAD_SHARE of what the cluster takes; leaves it as it is if the user named a rate. Returns the
    sends per second that are now offered.
    """
    load = scene.stage.load
    if scene.rate is not None:
        return scene.rate
    with scene.act("capacity") as told:
        load.factor = PROBE_FACTOR
        scene.stage.sleep(1.0)
        before, begun = load.counts.acked, time.monotonic()
        scene.stage.sleep(PROBE_S)
        capacity = (load.counts.acked - before) / (time.monotonic() - begun)
        rate = capacity * LOAD_SHARE
        load.factor = rate / LOAD.rate
        scene.stage.sleep(SETTLE_S)
        told.append(f"{capacity:,.0f} sends per second are taken, {rate:,.0f} go on")
    scene.measured["capacity"] = round(capacity)
    return rate


class Rounds:
    """The rounds that the attacker reported, collected by its thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begun: list[tuple[float, AttackRound]] = []
        """Reports of starts: (time on the clock of the watch, round)."""
        self.over: list[tuple[float, AttackRound]] = []

    def hear(self, told: AttackRound) -> None:
        with self._lock:
            (self.over if told.is_over else self.begun).append((time.monotonic(), told))

    def counts(self) -> Counter[str]:
        """Returns attack -> number of rounds that have begun."""
        with self._lock:
            return Counter(each.attack for _, each in self.begun)

    @property
    def open(self) -> list[str]:
        """Names of the attacks of which a round has begun and not ended."""
        with self._lock:
            left = Counter(each.attack for _, each in self.begun)
            left.subtract(each.attack for _, each in self.over)
        return sorted(name for name, count in left.items() if count > 0)

    def under_way(self, at_s: float) -> list[str]:
        """Returns "ATTACK on node N" for the attacks that were in progress at that time (on the clock of the watch), or
        ended up to a second before.
        """
        open_rounds: Counter[str] = Counter()
        with self._lock:
            open_rounds.update(f"{each.attack} on node {each.node}" for when, each in self.begun if when <= at_s)
            open_rounds.subtract(f"{each.attack} on node {each.node}" for when, each in self.over if when < at_s - 1)
        return sorted(name for name, count in open_rounds.items() if count > 0)


def play_hand(scene: Scene, assault: Assault, rounds: Rounds, hand: Hand, plan: Layout) -> Span:
    """Plays one hand and waits up to TAIL_S for its last rounds to end; returns its span. Rounds that are still in
    progress then end when the next hand is dealt.
    """
    before, begun = len(rounds.over), rounds.counts()
    with scene.act(f"hand: {', '.join(hand)}" if len(hand) <= _NAMED else "all attacks") as told:
        start = time.monotonic_ns()
        assault.deal(hand)
        deadline = time.monotonic() + plan.hand_s
        latest = deadline + max(0.0, HAND_MAX_S - plan.hand_s)
        while _all_run(scene):
            now, new = time.monotonic(), rounds.counts() - begun
            if now >= latest or (now >= deadline and all(new[name] >= plan.due_in_hand for name in hand)):
                break
            scene.stage.sleep(min(0.2, max(0.01, deadline - now)))
        assault.deal(())
        deadline = time.monotonic() + TAIL_S
        scene.stage.sleep(_HEARD_S)
        while rounds.open and time.monotonic() < deadline and _all_run(scene):
            scene.stage.sleep(0.1)
        told.append(f"{len(rounds.over) - before} rounds")
        if late := rounds.open:
            told.append(f"not over after {TAIL_S:g} s: {', '.join(late)}")
    return start, time.monotonic_ns()


def _all_run(scene: Scene) -> bool:
    return all(map(scene.subject.is_running, scene.subject.node_ids))


def judge_life(scene: Scene, watch: Watch, rounds: Rounds, begun_s: float) -> None:
    """Demands that no node ended, and that the leader stayed."""
    for change in watch.changes[:_SHOWN]:
        late_ms, under_way = 1000 * watch.late_near(change.at_s), rounds.under_way(change.at_s)
        scene.demand(
            False,
            f"{change.what}, {change.at_s - begun_s:.1f} s after the attacks began; under way were: "
            f"{', '.join(under_way) or 'none'}; in the 2 s before, the harness itself woke {late_ms:.0f} ms "
            "too late",
        )
    scene.measured |= {
        "leader_or_node_changes": len(watch.changes),
        "harness_late_ms": round(1000 * max((late for _, late in watch.late), default=0.0)),
    }


def judge_memory(scene: Scene, resting: dict[int, int], peak: dict[int, int]) -> None:
    """Demands that the memory of each node stayed below its bound."""
    for node, bytes_ in peak.items():
        rest = resting.get(node, 0)
        scene.measured[f"memory_mib_node_{node}"] = f"{rest // _MIB} at rest, {bytes_ // _MIB} at most"
        scene.demand(
            bytes_ - rest <= MEMORY_MAX,
            f"node {node} grew from {rest // _MIB} to {bytes_ // _MIB} MiB of "
            f"memory; the bound is {MEMORY_MAX // _MIB} MiB more than at rest",
        )


def judge_turns(scene: Scene, turns: dict[int, Turns]) -> None:
    """Demands that no turn of a node's event loop took more CPU time than allowed. CPU time does not contain the time
    in which other programs ran.
    """
    for node, told in turns.items():
        scene.measured[f"longest_turn_node_{node}"] = str(told)
        scene.demand(told.longest_s <= TURN_MAX_S, f"node {node}: a turn of its event loop took {told}")


def judge_honest(
    scene: Scene,
    calms: list[Span],
    attacks: list[Span],
    hands: list[Hand],
    *,
    p99_max_ms: float = P99_MAX_MS,
    slower_max: float = SLOWER_MAX,
) -> None:
    """Demands that every honest request from the first attack to the last calm was answered. Adds a gate: the p99 of
    honest sends is at most `p99_max_ms` or, if that is more, `slower_max` times the p99 of the calms.
    """
    whole = [(attacks[0][0], calms[-1][1])]
    by_hand = seen_each(scene.history.ops, attacks)
    before, during = joined(seen_each(scene.history.ops, calms)), joined(by_hand)
    (always,) = seen_each(scene.history.ops, whole)
    calm_ms, attacked_ms = before.p99_ms(), during.p99_ms()
    lost = sum(always.unanswered.values())
    scene.measured |= {
        "calm_p99_ms": round(calm_ms, 2),
        "attacked_p99_ms": round(attacked_ms, 2),
        "calm_sends": before.count(),
        "attacked_sends": during.count(),
        "honest_unanswered": lost,
        "p99_ms_of_hands": [(round(seen.p99_ms(), 1), *hand) for seen, hand in zip(by_hand, hands, strict=False)],
    }
    for told in _slowest(by_hand, hands):
        scene.tell(told)
    scene.demand(
        lost == 0,
        f"{lost} honest requests were not answered as they should be: "
        f"{dict(always.unanswered)}; the first: {always.first}",
    )
    allowed_ms = max(p99_max_ms, round(slower_max * calm_ms))
    scene.gate("p99 of honest sends under attack, ms", round(attacked_ms), allowed_ms, at_most=True)


def _slowest(by_hand: list[RequestFigures], hands: list[Hand]) -> list[str]:
    """Returns a line for each of the hands during which honest sends were slowest."""
    found = sorted(zip(by_hand, hands, strict=False), key=lambda each: -each[0].p99_ms())
    return [
        f"         p99 of honest sends {seen.p99_ms():,.0f} ms beside {', '.join(hand[:_NAMED])}"
        for seen, hand in found[: 2 * _SHOWN]
    ]


def judge_rounds(scene: Scene, rounds: Rounds, attacked_s: float, plan: Layout) -> None:
    """Demands that no attack broke a promise. Adds gates: each attack was played, and felt, as often as planned."""
    found: dict[str, list[AttackRound]] = defaultdict(list)
    for _, each in rounds.over:
        found[each.attack].append(each)
        scene.played.append(Played(each.attack, Effect(each.sent > 0, ""), 0.0, each.took_s, 0.0))
    for name in scene.attacks:
        done = found[name]
        sent, slowest = sum(each.sent for each in done), max((each.took_s for each in done), default=0.0)
        scene.tell(
            f"         {name:<17} {len(done):>4} rounds, {sent / max(attacked_s, 1):>8.1f} requests per second, "
            f"{sum(each.answered for each in done)} answered, {sum(each.closed for each in done)} closed, "
            f"slowest round {slowest:.1f} s"
        )
        wrong = broken_in(done)
        scene.demand(not wrong, f"{name}, {wrong}")
    felt = {name: sum(each.sent > 0 for each in found[name]) for name in scene.attacks}
    _gate_of(scene, "every attack felt", felt, {name: int(FELT * min(1.0, scene.time_s / FULL_S)) for name in felt})
    _gate_of(
        scene,
        "rounds of every attack, one each 5 s of its hands",
        {name: len(found[name]) for name in scene.attacks},
        {name: plan.due(name) for name in scene.attacks},
    )


def _gate_of(scene: Scene, what: str, counts: dict[str, int], wanted: dict[str, int]) -> None:
    """Adds one gate for several attacks. It shows the attack whose count is lowest compared with the wanted one."""
    behind = ", ".join(f"{name} {count} of {wanted[name]}" for name, count in counts.items() if count < wanted[name])
    least = min(counts, key=lambda name: counts[name] - wanted[name])
    scene.gate(what, counts[least], wanted[least], told=behind)


HOSTILE = Story(play, free_gib=8, is_direct=True)
