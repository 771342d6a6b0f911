"""The story `--nemesis hostile`: plays every attack of `jepsen_like.hostile` beside honest clients, again and again,
and measures its effect.

First the honest load finds out what the cluster can take; from then on it runs at half of it. Then all attacks are
played at once, again and again, with short calms before, between and after. The calms have the same effects of a disk,
a machine and a longer log on latency, so the difference comes from the attacks. Nothing that a client sends may end a
node, move the leadership, exceed the bound of memory or leave an honest request without its answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict

from jepsen_like.hostile.attack import EVERY_S
from jepsen_like.live.harm.attack_process import Assault, Round, orders_for
from jepsen_like.live.nemeses.nemesis_interface import Effect
from jepsen_like.live.outcome import Played
from jepsen_like.live.probes.honest_clients import seen_in
from jepsen_like.live.probes.long_turns import TURN_MAX_S, Turns, ask_turns
from jepsen_like.live.probes.node_watch import Watch
from jepsen_like.live.stories.story import Scene, Story
from jepsen_like.live.subjects.raftmq_subject import LOAD

CALM_SHARE, CALM_MIN_S = 0.1, 4.0
"""The calms: their share of the attacks' time, and the least seconds of each."""
WINDOW_S = 100.0
"""Seconds, approximately, of attacks between two calms."""
REST_S = 3.0
"""Seconds after attacks before a calm is measured, because their effects go on for a while."""
PROBE_S, PROBE_FACTOR, SETTLE_S = 4.0, 8.0, 2.0
"""The probe of the cluster's capacity: its seconds, the factor of the load that is offered, and the seconds to settle
afterwards."""
SLOWER_MAX = 2.0
MEMORY_MAX = 1 << 30
"""Bytes by which a node's memory may grow under attack: four budgets of `limits.node_inflight_bytes_max` (requests in
flight, requests held for the leader, incomplete frames, answers that wait to be read), twice, because freed bytes stay
with the allocator for a while."""
_SHOWN = 3
_SLACK_S = 1.0
"""Seconds by which the last rounds of a window may begin late."""
_MIB = 1 << 20

Span = tuple[int, int]
"""A span of time: (start, end), nanoseconds on the clock of the history."""


def play(scene: Scene) -> None:
    """Plays calms and attacks; raises StoryEnds and OSError if it cannot continue."""
    windows = max(1, round(scene.time_s / WINDOW_S))
    calm_s = max(CALM_MIN_S, CALM_SHARE * scene.time_s / (windows + 1))
    calms: list[Span] = []
    attacks: list[Span] = []
    rounds = _Rounds()
    with Watch(scene.subject) as watch:
        rate = _settle_rate(scene)
        calms.append(_calm(scene, calm_s, rate))
        resting = dict(watch.latest)
        watch.forget_peak()
        begun_s = time.monotonic()
        for _ in range(windows):
            attacks.append(_attack(scene, rounds, scene.time_s / windows))
            scene.stage.sleep(REST_S)
            calms.append(_calm(scene, calm_s, rate))
    attacked_s = sum(stop - start for start, stop in attacks) / 1e9
    scene.measured |= {"rate": round(rate), "calm_s": round(calm_s * len(calms), 1), "attacked_s": round(attacked_s, 1)}
    _judge_life(scene, watch, rounds, begun_s)
    _judge_memory(scene, resting, watch.peak)
    _judge_turns(scene, {node.id: asyncio.run(ask_turns(node)) for node in scene.subject.nodes})
    _judge_honest(scene, calms, attacks)
    _judge_rounds(scene, rounds, attacked_s)


def _calm(scene: Scene, calm_s: float, rate: float) -> Span:
    with scene.act("calm") as told:
        start = time.monotonic_ns()
        scene.stage.sleep(calm_s)
        told.append(f"{rate:,.0f} sends per second")
    return start, time.monotonic_ns()


def _settle_rate(scene: Scene) -> float:
    """Sets the load to half of what the cluster takes, or to the user's rate; returns the sends per second that are now
    offered."""
    load = scene.stage.load
    if scene.rate is not None:
        return scene.rate
    with scene.act("capacity") as told:
        load.factor = PROBE_FACTOR
        scene.stage.sleep(1.0)
        before, begun = load.counts.acked, time.monotonic()
        scene.stage.sleep(PROBE_S)
        capacity = (load.counts.acked - before) / (time.monotonic() - begun)
        rate = capacity / 2
        load.factor = rate / LOAD.rate
        scene.stage.sleep(SETTLE_S)
        told.append(f"{capacity:,.0f} sends per second are taken, half of it goes on")
    scene.measured["capacity"] = round(capacity)
    return rate


class _Rounds:
    """The rounds that the attacker reported, collected by its thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begun: list[tuple[float, Round]] = []
        """Reports of starts: (time on the clock of the watch, round)."""
        self.over: list[tuple[float, Round]] = []

    def hear(self, told: Round) -> None:
        with self._lock:
            (self.over if told.is_over else self.begun).append((time.monotonic(), told))

    def under_way(self, at_s: float) -> list[str]:
        """Returns the attacks that were in progress at that time, one of which is to blame."""
        open_rounds: Counter[str] = Counter()
        with self._lock:
            open_rounds.update(f"{each.attack} on node {each.node}" for when, each in self.begun if when <= at_s)
            open_rounds.subtract(f"{each.attack} on node {each.node}" for when, each in self.over if when < at_s - 1)
        return sorted(name for name, count in open_rounds.items() if count > 0)


def _attack(scene: Scene, rounds: _Rounds, time_s: float) -> Span:
    subject, names, before = scene.subject, scene.attacks, len(rounds.over)
    orders = orders_for(subject, scene.stage.leader(), names, scene.rng.getrandbits(32), scene.scale)
    assault = Assault(subject.processes, orders, rounds.hear)
    with scene.act("attacks") as told, assault:
        start = time.monotonic_ns()
        deadline = time.monotonic() + time_s + _SLACK_S
        while time.monotonic() < deadline and all(map(subject.is_running, subject.node_ids)):
            scene.stage.sleep(min(0.2, max(0.01, deadline - time.monotonic())))
        stop = time.monotonic_ns()
        told.append(f"{len(rounds.over) - before} rounds of {len(names)} attacks")
    if assault.died:
        scene.doubts.append(f"the attacker ended by itself: {' | '.join(assault.noise)}")
    return start, stop


def _judge_life(scene: Scene, watch: Watch, rounds: _Rounds, begun_s: float) -> None:
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


def _judge_memory(scene: Scene, resting: dict[int, int], peak: dict[int, int]) -> None:
    for node, bytes_ in peak.items():
        rest = resting.get(node, 0)
        scene.measured[f"memory_mib_node_{node}"] = f"{rest // _MIB} at rest, {bytes_ // _MIB} at most"
        scene.demand(
            bytes_ - rest <= MEMORY_MAX,
            f"node {node} grew from {rest // _MIB} to {bytes_ // _MIB} MiB of "
            f"memory; the bound is {MEMORY_MAX // _MIB} MiB more than at rest",
        )


def _judge_turns(scene: Scene, turns: dict[int, Turns]) -> None:
    """Demands that no turn of an event loop is long by the loop's own CPU clock, whatever else ran on the machine."""
    for node, told in turns.items():
        scene.measured[f"longest_turn_node_{node}"] = str(told)
        scene.demand(told.longest_s <= TURN_MAX_S, f"node {node}: a turn of its event loop took {told}")


def _judge_honest(scene: Scene, calms: list[Span], attacks: list[Span]) -> None:
    before, during = (seen_in(scene.history.ops, spans) for spans in (calms, attacks))
    calm_ms, attacked_ms = before.p99_ms(), during.p99_ms()
    lost = sum(during.unanswered.values())
    scene.measured |= {
        "calm_p99_ms": round(calm_ms, 2),
        "attacked_p99_ms": round(attacked_ms, 2),
        "calm_sends": before.count(),
        "attacked_sends": during.count(),
        "honest_unanswered": lost,
    }
    scene.demand(
        lost == 0,
        f"{lost} honest requests were not answered as they should be: "
        f"{dict(during.unanswered)}; the first: {during.first}",
    )
    slower = attacked_ms / calm_ms if calm_ms else 0.0
    scene.gate("p99 of honest sends under attack, times that of the calm", round(slower, 2), SLOWER_MAX, at_most=True)


def _judge_rounds(scene: Scene, rounds: _Rounds, attacked_s: float) -> None:
    found: dict[str, list[Round]] = defaultdict(list)
    for _, each in rounds.over:
        found[each.attack].append(each)
        scene.played.append(Played(each.attack, Effect(each.sent > 0, ""), 0.0, each.took_s, 0.0))
    wanted = int(min(attacked_s, scene.time_s) / EVERY_S)
    for name in scene.attacks:
        done = found[name]
        sent, slowest = sum(each.sent for each in done), max((each.took_s for each in done), default=0.0)
        scene.tell(
            f"         {name:<17} {len(done):>4} rounds, {sent / max(attacked_s, 1):>8.1f} requests per second, "
            f"{sum(each.answered for each in done)} answered, {sum(each.closed for each in done)} closed, "
            f"slowest round {slowest:.1f} s"
        )
        wrong = [text for each in done for text in each.wrong]
        scene.demand(not wrong, f"{name}, {len(wrong)} times: {'; '.join(dict.fromkeys(wrong[:_SHOWN]))}")
    behind = {name: len(found[name]) for name in scene.attacks if len(found[name]) < wanted}
    scene.gate(
        "rounds of every attack",
        min((len(found[name]) for name in scene.attacks), default=0),
        wanted,
        told=", ".join(f"{name} {count}" for name, count in behind.items()),
    )


HOSTILE = Story(play, free_gib=8, is_direct=True)
