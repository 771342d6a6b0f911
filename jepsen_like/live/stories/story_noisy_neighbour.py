"""The story `noisy-neighbour`: one user sends and pulls as fast as possible next to others, first without a quota, then
with one, then with one while nodes are killed, stopped and cut off.

The usual load of all scenarios plays the quiet neighbours: four clients with a small steady load on a topic of their
own. The noisy user sends with RaftMQ's client, over plain connections that ignore the answers, and oneway; it also has
clients that pull.
"""

from __future__ import annotations

import time
from typing import Final

from jepsen_like.live.probes.honest_clients import RequestFigures, seen_in
from jepsen_like.live.probes.noise import Noise, NoiseSends
from jepsen_like.live.probes.noise_check import Window, too_much
from jepsen_like.live.stories.quota_scene import TOLERANCE, QuotaScene, quota_scene, refused_by_quota
from jepsen_like.live.stories.story import Scene, Story
from jepsen_like.live.subjects.raftmq_nodes import until_answered
from jepsen_like.live.subjects.subject import LoadPlan

TOPIC: Final = "noisy"
SEND_RATE: Final = 200
"""Quota: messages per second that the noisy user may send."""
PULL_RATE: Final = 500
"""Quota: messages per second that the noisy user may pull."""
PULL_TOLERANCE: Final = 0.1
"""Share by which pulls may exceed their rate, since several nodes share the quota."""
WITHOUT_S, WITH_S = 60.0, 60.0
SETTLE_S: Final = 2.0
FAULTS: Final = 12
CALM_S: Final = (0.5, 1.5)
NAMED_S: Final = 30.0
"""Longest time in seconds until a finding names the noisy user."""
P99_MAX_MS: Final = 250.0
"""Highest p99 in milliseconds that is allowed for the quiet users while the noisy one has a quota. If their p99 without
the quota was higher, that one is allowed.
"""


def play(scene: Scene) -> None:
    """Plays the three acts; raises StoryEnds, OSError and RaftMQError if it cannot continue."""
    name = scene.subject.client_options.get("access_key", "")
    subject = f"user={name}" if name else f"topic={TOPIC}"
    with quota_scene(scene, TOPIC) as quotas, Noise(quotas.orders(pullers=3)) as noise:
        with scene.act("noisy without a quota") as told:
            scene.stage.sleep(SETTLE_S)
            without_s, without = time.monotonic(), _span(quotas, "without", max(5.0, scene.scale * WITHOUT_S))
            told.append(_quiet(scene, "without a quota", without))
        with scene.act(f"{subject} may send {SEND_RATE} messages a second and pull {PULL_RATE}") as told:
            quotas.insist({subject: {"send_messages": SEND_RATE, "pull_messages": PULL_RATE}})
            scene.stage.sleep(SETTLE_S)
            calm_s, term = time.monotonic(), quotas.term()
            within = _span(quotas, "within", max(5.0, scene.scale * WITH_S))
            faults_s = time.monotonic()
            told.append(_quiet(scene, "with a quota", within))
            named = until_answered(lambda: _names(quotas, subject), NAMED_S, 0.5)
            scene.demand(bool(named), f"no finding says that {subject} is over its quota")
            moved = quotas.term() - term
        with scene.act("the same beside faults") as told:
            for _ in range(scene.count(FAULTS)):
                told.append(quotas.inflict())
                scene.stage.sleep(scene.rng.uniform(*CALM_S))
            end_s, changes = time.monotonic(), quotas.term() - term
        with scene.act("the judgement") as told:
            quotas.take_all_away()
            sent = noise.stop()
            calm = Window(calm_s, faults_s, SEND_RATE, moved)
            whole = Window(calm_s, end_s, SEND_RATE, changes)
            stored = quotas.judge(sent, [calm, whole], (calm_s, faults_s))
            told += [quotas.told(), f"{changes} terms began", _tell_rates(scene, sent, stored, without_s, calm, whole)]
        refused = refused_by_quota(scene, scene.subject.topic)
        scene.demand(not refused, f"{len(refused)} sends of quiet ones were refused: {' '.join(refused[:1])}")


def _span(quotas: QuotaScene, name: str, seconds: float) -> tuple[int, int]:
    begin = quotas.mark(f"noise {name}")
    quotas.scene.stage.sleep(seconds)
    return begin, quotas.mark(f"end of noise {name}")


def _quiet(scene: Scene, when: str, span: tuple[int, int]) -> str:
    """Records what the quiet clients saw; returns a line about it."""
    seen: RequestFigures = seen_in(scene.history.ops, [span])
    p99 = seen.p99_ms()
    before = scene.measured.get("quiet p99 without a quota, ms")
    scene.measured[f"quiet p99 {when}, ms"] = p99
    if before is not None:
        allowed = max(P99_MAX_MS, float(before))
        scene.gate("p99 of the quiet ones with a quota, ms", round(p99, 1), round(allowed, 1), at_most=True)
    return f"p99 of {seen.count():,} sends of quiet ones {p99:.1f} ms"


def _names(quotas: QuotaScene, subject: str) -> bool:
    told = quotas.finding()
    return subject in told and f"{SEND_RATE} messages sent a second" in told


def _tell_rates(
    scene: Scene, sent: list[NoiseSends], stored: list[float], without_s: float, calm: Window, whole: Window
) -> str:
    """Records the rates of the noisy user's sends and pulls, and judges the rate of its pulls; returns a line of text
    about them.
    """
    pulls = [at_s for each in sent for at_s, count in each.pulled for _ in range(count)]
    without = Window(without_s, calm.from_s - SETTLE_S, SEND_RATE)
    free, kept = without.count(stored) / without.seconds, calm.count(stored) / calm.seconds
    beside, pulled = whole.count(stored) / whole.seconds, calm.count(pulls) / calm.seconds
    scene.measured |= {
        "noisy stored a second without a quota": round(free, 1),
        "noisy stored a second with a quota": round(kept, 1),
        "noisy stored a second with a quota and faults": round(beside, 1),
        "noisy pulled a second without a quota": round(without.count(pulls) / without.seconds, 1),
        "noisy pulled a second with a quota": round(pulled, 1),
        "terms": whole.fresh,
    }
    # All three nodes answer pulls, and each may have begun with a full bucket of its own.
    reads = calm._replace(rate=PULL_RATE, fresh=len(scene.subject.node_ids) - 1)
    wrong = too_much("pulled", reads, pulls, PULL_TOLERANCE)
    scene.demand(not wrong, wrong)
    scene.gate("noisy sends with a quota, of the rate", round(kept / SEND_RATE, 3), 1 - TOLERANCE)
    return f"{free:,.0f}, {kept:,.1f} and {beside:,.1f} stored a second, {pulled:,.1f} pulled"


STORY = Story(play, load=LoadPlan(100, 256))
