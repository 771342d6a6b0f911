"""The story `report-004-surge`: six times the normal traffic arrives while a follower's disk is at its limit.

Field report 004: on a sale day the traffic rose, a replica's disk could not follow, and lag and latency grew for
minutes. Here every node's disk takes a fixed number of bytes a second, that of one follower half of it. First the
capacity is measured by a closed loop, then the latency at a normal load, then an open loop asks for 1.2 times the
capacity. Sends that the log cannot take must be refused soon. The others must be acknowledged soon, and their messages
must be stored. At last the same load is sent once more to nodes without admission control. That run must break one of
the bounds; otherwise the story would say nothing about admission control.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from jepsen_like.live.probes.node_watch import Watch
from jepsen_like.live.stories.open_load import PATIENCE_S, bench, brief, count_stored, said, said_with_refusals
from jepsen_like.live.stories.story import Scene, Story
from jepsen_like.live.stories.watched_follower import WatchedFollower
from jepsen_like.live.subjects.subject import LoadPlan
from raftmq.commands.bench_open import OpenReport, drawn

DISK_KB_S: Final = 10_000
"""Kilobytes a second that a node's log takes; the slow follower's takes half."""
NORMAL, SURGE = 0.2, 1.2
"""Loads, as shares of the capacity."""
NORMAL_S, SURGE_S, WITHOUT_S = 30.0, 120.0, 60.0
TOPIC = "surge"
GOODPUT_MIN = 0.9
SLOWER_MAX, P99_MIN_MS = 3.0, 100.0
"""The p99 of the surge may be SLOWER_MAX times the normal p99, or P99_MIN_MS milliseconds if that is more."""
LATE_MAX = 0.01
"""Highest share of sends that the load generator may send late."""
MEMORY_MAX = 200 << 20
"""Bytes by which a node's memory may grow."""
LAG_FACTOR = 1.5
"""The follower's lag must be gone within this factor of the time that the slow disk needs for the lag's bytes, plus two
seconds.
"""
STEADY_MAX = 1.3
"""The factor by which the time of a fixed piece of work may differ between the beginning and the end of the run."""
WORK = 2_000_000
_MIB = 1 << 20


def play(scene: Scene) -> None:
    """Plays the surge; raises StoryEnds and OSError if it cannot continue."""
    subject = scene.subject
    leader = scene.stage.leader()
    slow = next(node for node in subject.node_ids if node != leader)
    follower = WatchedFollower(scene, leader, slow)
    before_s = _work_s()
    for node in subject.node_ids:
        rate = DISK_KB_S // 2 if node == slow else DISK_KB_S
        subject.set_failpoint(node, "append.fdatasync", f"rate:{rate}kB")
    with Watch(subject) as watch:
        with scene.act("the capacity, and a normal load") as told:
            report = bench(scene, TOPIC, ["--share", str(NORMAL)], scene.scale * NORMAL_S)
            capacity, normal = report["capacity"], report["runs"][0]
            told.append(f"{capacity:,.0f} messages/s in a closed loop, {report['capacity_busy']:.0%} of the processors")
            told.append(said(normal))
        follower.wait_caught_up(PATIENCE_S)
        resting = dict(watch.latest)
        watch.forget_peak()
        with scene.act(f"{SURGE} times the capacity") as told:
            asked = ["--rate", f"{SURGE * capacity:.1f}"]
            with_admission = bench(scene, TOPIC, asked, scene.scale * SURGE_S)
            surge = with_admission["runs"][0]
            told.append(said_with_refusals(surge))
        lag = follower.peer()["lag_bytes"]
        allowed_s = LAG_FACTOR * lag / (DISK_KB_S * 500) + 2.0
        with scene.act(f"{lag / _MIB:,.0f} MiB of lag of node {slow}") as told:
            took_s = follower.wait_caught_up(allowed_s + PATIENCE_S)
            told.append(f"gone after {took_s:.1f} s, {allowed_s:.1f} s allowed")
        grown = max(watch.peak[node] - resting[node] for node in resting)
        p99_max = max(SLOWER_MAX * normal["p99_ms"], P99_MIN_MS)
        with scene.act("the same without admission") as told:
            _admit(scene, False)
            without_admission = bench(scene, TOPIC, asked, scene.scale * WITHOUT_S)
            worse = without_admission["runs"][0]
            breaks = broken_bounds(worse, capacity, p99_max)
            _admit(scene, True)
            told += [said_with_refusals(worse), f"breaks: {', '.join(breaks) or 'nothing'}"]
    for node in subject.node_ids:
        subject.set_failpoint(node, "append.fdatasync", "off")
    steady = max(work := (before_s, _work_s())) / min(work)
    draw(scene.folder / "surge.svg", with_admission, without_admission)
    count_stored(scene, TOPIC, normal["stored"] + surge["stored"] + worse["stored"])
    scene.measured |= {"capacity": round(capacity), "capacity_busy": report["capacity_busy"]}
    scene.measured |= {"normal": brief(normal), "surge": brief(surge)}
    scene.measured |= {"without_admission": brief(worse)}
    scene.measured |= {
        "lag_bytes": lag,
        "lag_s": round(took_s, 1),
        "memory_bytes": grown,
        "steady": round(steady, 2),
    }
    scene.demand(not surge["unknown"], f"{surge['unknown']} sends of the surge have an unknown outcome")
    scene.gate("goodput of the surge, of the capacity", surge["stored_per_second"] / capacity, GOODPUT_MIN)
    scene.gate("p99 of the surge, ms", surge["p99_ms"], p99_max, at_most=True)
    scene.gate("memory of a node in the surge, MiB more", grown / _MIB, MEMORY_MAX / _MIB, at_most=True)
    scene.gate("seconds until the lag was gone", took_s, allowed_s, at_most=True)
    scene.gate("arrivals that the generator sent late", surge["late"] / surge["arrivals"], LATE_MAX, at_most=True)
    scene.gate("bounds that break without admission", len(breaks), 1)
    scene.gate("a fixed piece of work, slowest by quickest", steady, STEADY_MAX, at_most=True)


def broken_bounds(run: dict[str, Any], capacity: float, p99_max: float) -> list[str]:
    """Returns the names of the bounds that a run of the surge breaks; [] if none."""
    bounds = {
        "unknown outcomes": not run["unknown"],
        "goodput": run["stored_per_second"] >= GOODPUT_MIN * capacity,
        "p99": run["p99_ms"] <= p99_max,
    }
    return [name for name, holds in bounds.items() if not holds]


def _admit(scene: Scene, admission: bool) -> None:
    """Turns admission on or off on every node. Raises OSError."""
    for node in scene.subject.node_ids:
        scene.subject.configure(node, lambda config: replace(config, flow=replace(config.flow, admission=admission)))


def draw(file: Path, *reports: dict[str, Any]) -> None:
    """Draws the surge with and without admission, one above the other."""
    both = [msgspec.convert(report, OpenReport) for report in reports]
    runs = [run for one in both for run in one.runs]
    drawn(replace(both[0], runs=runs), file, ("with admission", "without admission"))


def _work_s() -> float:
    """Returns the seconds that a fixed piece of work takes, which shows how busy the machine is."""
    begun = time.perf_counter()
    sum(range(WORK))
    for number in range(WORK // 4):
        hash((number, number + 1))
    return time.perf_counter() - begun


STORY = Story(play, free_gib=4, segment_mib=64, load=LoadPlan(20, 16), is_direct=True)
