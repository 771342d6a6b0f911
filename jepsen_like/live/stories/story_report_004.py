"""The story `report-004-surge`: six times the normal traffic arrives while a follower's disk is at its limit.

Field report 004: on a sale day the traffic rose, a replica's disk could not follow, and lag and latency grew for
minutes. Here every node's disk takes a fixed number of bytes a second, that of one follower half of it. First the
capacity is measured by a closed loop, then the latency at a normal load, then an open loop asks for 1.2 times the
capacity. What the log cannot take must be refused soon; what is acknowledged must be acknowledged soon, and be there.
"""

from __future__ import annotations

import time
from typing import Any, Final

from jepsen_like.live.probes.node_watch import Watch
from jepsen_like.live.stories.open_load import PATIENCE_S, OpenLoad, brief, count_stored, said
from jepsen_like.live.stories.story import Scene, Story
from jepsen_like.live.stories.watched_follower import Watched
from jepsen_like.live.subjects.subject import LoadPlan

DISK_KB_S: Final = 10_000
"""Kilobytes a second that a node's log takes; the slow follower's takes half."""
NORMAL, SURGE = 0.2, 1.2
"""Loads, as shares of the capacity."""
NORMAL_S, SURGE_S = 30.0, 120.0
TOPIC = "surge"
GOODPUT_MIN = 0.9
SLOWER_MAX, P99_MIN_MS = 3.0, 100.0
"""The p99 of the surge may be that much higher than the normal one, or P99_MIN_MS if that is more."""
LATE_MAX = 0.01
"""The share of arrivals that the generator may send late."""
MEMORY_MAX = 200 << 20
"""Bytes by which a node's memory may grow."""
LAG_FACTOR = 1.5
"""The factor, on the time that its bytes take on the slow disk, within which the follower's lag must be gone."""
STEADY_MAX = 1.3
"""The factor by which the time of a fixed piece of work may differ between the beginning and the end of the run."""
WORK = 2_000_000
_MIB = 1 << 20


def play(scene: Scene) -> None:
    """Plays the surge; raises StoryEnds and OSError if it cannot continue."""
    subject = scene.subject
    leader = scene.stage.leader()
    slow = next(node for node in subject.node_ids if node != leader)
    follower = Watched(scene, leader, slow)
    before_s = _work_s()
    for node in subject.node_ids:
        rate = DISK_KB_S // 2 if node == slow else DISK_KB_S
        subject.set_failpoint(node, "append.fdatasync", f"rate:{rate}kB")
    with Watch(subject) as watch:
        with scene.act("the capacity, and a normal load") as told:
            report = _bench(scene, ["--share", str(NORMAL)], scene.scale * NORMAL_S)
            capacity, normal = report["capacity"], report["runs"][0]
            told.append(f"{capacity:,.0f} messages/s in a closed loop; {said(normal)}")
        follower.wait_caught_up(PATIENCE_S)
        resting = dict(watch.latest)
        watch.forget_peak()
        with scene.act(f"{SURGE} times the capacity") as told:
            plot = ["--plot", str(scene.folder / "surge.svg")]
            surge = _bench(scene, ["--rate", f"{SURGE * capacity:.1f}", *plot], scene.scale * SURGE_S)["runs"][0]
            told.append(f"{said(surge)}; refused: {surge['refused'] or 'none'}, unknown: {surge['unknown']}")
        lag = follower.peer()["lag_bytes"]
        allowed_s = LAG_FACTOR * lag / (DISK_KB_S * 500) + 2.0
        with scene.act(f"{lag / _MIB:,.0f} MiB of lag of node {slow}") as told:
            took_s = follower.wait_caught_up(allowed_s + PATIENCE_S)
            told.append(f"gone after {took_s:.1f} s, {allowed_s:.1f} s allowed")
        grown = max(watch.peak[node] - resting[node] for node in resting)
    for node in subject.node_ids:
        subject.set_failpoint(node, "append.fdatasync", "off")
    steady = max(work := (before_s, _work_s())) / min(work)
    count_stored(scene, TOPIC, normal["stored"] + surge["stored"])
    p99_max = max(SLOWER_MAX * normal["p99_ms"], P99_MIN_MS)
    scene.measured |= {"capacity": round(capacity), "normal": brief(normal), "surge": brief(surge)}
    scene.measured |= {"lag_bytes": lag, "lag_s": round(took_s, 1), "memory_bytes": grown, "steady": round(steady, 2)}
    scene.demand(not surge["unknown"], f"{surge['unknown']} sends of the surge have an unknown outcome")
    scene.gate("goodput of the surge, of the capacity", surge["stored_per_second"] / capacity, GOODPUT_MIN)
    scene.gate("p99 of the surge, ms", surge["p99_ms"], p99_max, at_most=True)
    scene.gate("memory of a node in the surge, MiB more", grown / _MIB, MEMORY_MAX / _MIB, at_most=True)
    scene.gate("seconds until the lag was gone", took_s, allowed_s, at_most=True)
    scene.gate("arrivals that the generator sent late", surge["late"] / surge["arrivals"], LATE_MAX, at_most=True)
    scene.gate("a fixed piece of work, slowest by quickest", steady, STEADY_MAX, at_most=True)


def _bench(scene: Scene, options: list[str], seconds: float) -> dict[str, Any]:
    """Runs the generator. Raises StoryEnds."""
    with OpenLoad(scene, TOPIC, options, seconds) as load:
        return load.report()


def _work_s() -> float:
    """Returns the seconds of a fixed piece of work: what the machine has left for it."""
    begun = time.perf_counter()
    sum(range(WORK))
    for number in range(WORK // 4):
        hash((number, number + 1))
    return time.perf_counter() - begun


STORY = Story(play, free_gib=4, segment_mib=64, load=LoadPlan(20, 16), is_direct=True)
