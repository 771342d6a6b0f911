"""The story `slow-follower`: the disk of one follower becomes slow, and recovers, under a steady load.

Two faults are played in turn, each on a random follower: its syncs take 800 ms; or its disk takes half of the bytes
that arrive, and later more than arrive. Nothing may wait for the slow follower: the clients' latency stays low, no send
is refused or unknown, and leadership stays. A finding must report the follower within 15 s (FOUND_S); if its lag grows,
a finding with a forecast must do so within 20 s (FORECAST_MAX_S). Once the lag shrinks, it must be gone within
FORECAST_FACTOR times the forecast time plus FORECAST_S seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from jepsen_like.live.stories.open_load import PATIENCE_S, OpenLoad, brief, count_stored, said
from jepsen_like.live.stories.story import Scene, Story
from jepsen_like.live.stories.watched_follower import FOUND_S, WatchedFollower
from jepsen_like.live.subjects.subject import LoadPlan

RATE: Final = 300
SIZE: Final = 4096
SLOW, BETTER = 0.5, 1.5
"""Bytes per second that the follower's disk takes, as shares of the load's bytes: first SLOW, while its lag grows, then
BETTER, while the lag shrinks.
"""
ENTRY_SHARE: Final = 1.1
"""Approximate bytes of a message in the log per byte of its body."""
SYNC: Final = "delay:800ms"
POINT: Final = "append.fdatasync"
ROUNDS: Final = 2
NORMAL_S, SYNC_S, LAG_S, WELL_S = 20.0, 30.0, 40.0, 60.0
"""Seconds of the load: before any fault, beside slow syncs, while the lag grows, and while it shrinks."""
BEGINS_S = (2.0, 7.0)
"""Shortest and longest time in seconds until a fault begins, so that it may begin anywhere within a slice of the
alarm's window.
"""
TOPIC: Final = "slow-follower"
SLOWER_MAX, P99_MIN_MS = 3.0, 100.0
"""The p99 beside a slow follower may be SLOWER_MAX times that of the normal load, or P99_MIN_MS milliseconds if that is
more.
"""
FORECAST_MAX_S: Final = 20.0
"""Longest time in seconds until a finding reports a growing lag. The lag must first have lasted for a while."""
FORECAST_FACTOR, FORECAST_S = 2.0, 10.0
"""The lag must be gone within FORECAST_FACTOR times the forecast time plus FORECAST_S seconds."""


def play(scene: Scene) -> None:
    """Plays the rounds; raises StoryEnds and OSError if it cannot continue."""
    with scene.act("a normal load") as told, _load(scene, NORMAL_S) as load:
        normal = load.report()["runs"][0]
        told.append(said(normal))
    runs = [normal]
    measured: list[dict[str, Any]] = []
    for play_one in (_slow_syncs, _slow_rate) * scene.count(ROUNDS):
        leader = scene.stage.leader()
        watched = WatchedFollower(
            scene, leader, scene.rng.choice([each for each in scene.subject.node_ids if each != leader])
        )
        watched.wait_unfound()
        run, round_ = play_one(scene, watched)
        judge(scene, normal, run, leader, watched.node)
        runs.append(run)
        measured.append({"node": watched.node, "leader": leader, "run": brief(run)} | round_)
    count_stored(scene, TOPIC, sum(run["stored"] for run in runs))
    scene.measured |= {"normal": brief(normal), "rounds": measured}
    worst = max(run["p99_ms"] for run in runs[1:])
    scene.gate("p99 beside a slow follower, ms", worst, max(SLOWER_MAX * normal["p99_ms"], P99_MIN_MS), at_most=True)


def _load(scene: Scene, seconds: float) -> OpenLoad:
    return OpenLoad(scene.subject.servers, TOPIC, ["--rate", str(RATE), "--size", str(SIZE)], seconds)


@contextmanager
def _fault(scene: Scene, node: int, action: str) -> Iterator[float]:
    """A context with a failpoint's action on a node. Yields the time at which it began, in monotonic seconds."""
    time.sleep(scene.rng.uniform(*BEGINS_S))
    scene.subject.set_failpoint(node, POINT, action)
    try:
        yield time.monotonic()
    finally:
        scene.subject.set_failpoint(node, POINT, "off")


def _slow_syncs(scene: Scene, watched: WatchedFollower) -> tuple[dict[str, Any], dict[str, Any]]:
    """Makes a follower sync in 800 ms. Returns what the load and the harness measured."""
    node = watched.node
    with scene.act(f"node {node}: {SYNC}") as told, _load(scene, SYNC_S) as load:
        with _fault(scene, node, SYNC) as began_s:
            found = demand_found(scene, watched, began_s, told)
            slow = watched.wait("its sync time", lambda peer: (peer["sync_ms"] or 0.0) >= 700.0, PATIENCE_S)
            told.append(f"a sync takes {slow['sync_ms']:.0f} ms, the lag is {slow['lag_bytes']:,} bytes")
            run = load.report()["runs"][0]
        watched.wait_caught_up(PATIENCE_S)
        told.append(said(run))
    return run, {"fault": SYNC, "found_s": found, "sync_ms": slow["sync_ms"], "lag_bytes": slow["lag_bytes"]}


def _slow_rate(scene: Scene, watched: WatchedFollower) -> tuple[dict[str, Any], dict[str, Any]]:
    """Makes a follower's disk take fewer bytes than arrive, then more. Returns what the load and the harness
    measured."""
    node, bytes_s = watched.node, RATE * SIZE * ENTRY_SHARE
    slow, better = (f"rate:{int(share * bytes_s / 1000)}kB" for share in (SLOW, BETTER))
    with scene.act(f"node {node}: {slow}, then {better}") as told, _load(scene, LAG_S + WELL_S) as load:
        with _fault(scene, node, slow) as began_s:
            found = demand_found(scene, watched, began_s, told)
            grows = watched.wait("a forecast", lambda peer: (peer["lag_bytes_per_s"] or 0) > 0, PATIENCE_S)
            scene.demand(grows["snapshot_in_s"] is not None, f"no snapshot is foretold: {grows}")
            says = watched.lag_finding(LAG_S)
            forecast_s = time.monotonic() - began_s
            scene.demand("The lag grows" in says and "needs a snapshot" in says, f"a finding without forecast: {says}")
            time.sleep(max(0.0, began_s + LAG_S - time.monotonic()))
            before = watched.peer()
            scene.subject.set_failpoint(node, POINT, better)
            shrinks = watched.wait("the end of its lag in sight", lambda peer: peer["caught_up_in_s"] is not None, 60.0)
            foretold_s = shrinks["caught_up_in_s"]
            took_s = watched.wait_caught_up(PATIENCE_S)
            run = load.report()["runs"][0]
        told.append(f"after {forecast_s:.1f} s: {says}")
        told.append(f"{before['lag_bytes']:,} bytes of lag; {foretold_s} s were foretold and it took {took_s:.1f} s")
        told.append(said(run))
    allowed_s = FORECAST_FACTOR * foretold_s + FORECAST_S
    scene.gate(f"seconds until the finding about node {node} had a forecast", forecast_s, FORECAST_MAX_S, at_most=True)
    scene.gate(f"seconds until the lag of node {node} was gone", took_s, allowed_s, at_most=True)
    return run, {
        "fault": slow,
        "found_s": found,
        "forecast_s": round(forecast_s, 1),
        "lag_bytes": before["lag_bytes"],
        "lag_ms": before["lag_ms"],
        "bytes_per_s": before["lag_bytes_per_s"],
        "snapshot_in_s": before["snapshot_in_s"],
        "foretold_s": foretold_s,
        "took_s": round(took_s, 1),
    }


def demand_found(scene: Scene, watched: WatchedFollower, began_s: float, told: list[str]) -> float | None:
    """Demands that a finding reports the follower within FOUND_S seconds of `began_s`; returns the seconds until the
    finding, None if none came.
    """
    found = watched.found(began_s)
    if found is None:
        scene.demand(False, f"node {watched.node} is slow, and no finding says so")
        return None
    told.append(f"{found.code} after {found.after_s:.1f} s")
    scene.demand(
        found.after_s <= FOUND_S, f"node {watched.node} was a finding after {found.after_s:.1f} s: {found.says}"
    )
    return round(found.after_s, 1)


def judge(scene: Scene, normal: dict[str, Any], run: dict[str, Any], leader: int, node: int) -> None:
    """Demands that clients and the leader did not notice the slow follower."""
    scene.demand(not run["unknown"], f"{run['unknown']} sends beside slow node {node} have an unknown outcome")
    scene.demand(not run["refused"], f"sends beside slow node {node} were refused: {run['refused']}")
    scene.demand(scene.stage.leader() == leader, f"node {leader} no longer leads, although only node {node} was slow")
    few = 0.95 * normal["stored_per_second"]
    scene.demand(run["stored_per_second"] >= few, f"{said(run)} beside slow node {node}; before: {said(normal)}")


STORY = Story(play, free_gib=3, segment_mib=64, load=LoadPlan(20, 16), is_direct=True)
