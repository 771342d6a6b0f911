"""The story `nearly-full`: a steady load just below what the log takes, for ten minutes, with nothing refused.

Admission control that reacts too early would refuse sends here. A slow sync, a checkpoint, a new segment or a pause of
the machine lets sends queue up for a moment, and the queue empties by itself. A failpoint limits the bytes that each
node's log takes, so that the disk and not the processors decides the capacity. The noise of the real disk remains.
"""

from __future__ import annotations

from typing import Any, Final

from jepsen_like.live.stories.open_load import bench, brief, count_stored, said_with_refusals
from jepsen_like.live.stories.story import Scene, Story
from jepsen_like.live.subjects.subject import LoadPlan

DISK_KB_S: Final = 4_000
"""Kilobytes per second that a node's log takes. It is so low that two processors keep up with it: if they did not, that
would be an overload, too.
"""
SHARE: Final = 0.8
STEADY_S: Final = 600.0
TOPIC: Final = "nearly-full"
GOODPUT_MIN: Final = 0.99
LATE_MAX: Final = 0.01


def play(scene: Scene) -> None:
    """Plays the load; raises StoryEnds and OSError if it cannot continue."""
    subject = scene.subject
    for node in subject.node_ids:
        subject.set_failpoint(node, "append.fdatasync", f"rate:{DISK_KB_S}kB")
    with scene.act(f"{SHARE:g} of the capacity") as told:
        report = bench(scene, TOPIC, ["--share", str(SHARE)], scene.scale * STEADY_S)
        capacity, run = report["capacity"], report["runs"][0]
        told.append(f"{capacity:,.0f} messages/s in a closed loop; {said_with_refusals(run)}")
    for node in subject.node_ids:
        subject.set_failpoint(node, "append.fdatasync", "off")
    count_stored(scene, TOPIC, run["stored"])
    judge(scene, report)


def judge(scene: Scene, report: dict[str, Any]) -> None:
    """Demands of the generator's report that no send was refused and none is unknown."""
    capacity, run = report["capacity"], report["runs"][0]
    scene.measured |= {"capacity": round(capacity), "capacity_busy": report["capacity_busy"], "run": brief(run)}
    scene.demand(not run["refused"], f"{sum(run['refused'].values())} sends were refused")
    scene.demand(not run["unknown"], f"{run['unknown']} sends have an unknown outcome")
    scene.gate("goodput, of what arrives", run["stored"] / run["arrivals"], GOODPUT_MIN)
    scene.gate("arrivals that the generator sent late", run["late"] / run["arrivals"], LATE_MAX, at_most=True)


STORY = Story(play, free_gib=16, segment_mib=64, load=LoadPlan(20, 16), is_direct=True)
