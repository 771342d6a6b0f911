"""The story `report-002`: a restart costs the same however long the log is, and no queue ever loses a row.

Field report 002: after a crash a broker scanned its whole log, for hours, and consume queues came back shorter. Here
the log grows to 2 GiB under load while random nodes are killed with -9, 50 times; each restart reports how much it
scanned.
"""

from __future__ import annotations

import time

from jepsen_like.live.probes.recovery_probe import QueueEnds, Restart, read_rows, shrunk, wait_serving
from jepsen_like.live.stories.story import Scene, Story, StoryEnds
from jepsen_like.live.subjects.payload import BULK
from jepsen_like.live.subjects.subject import LoadPlan
from raftmq.commands.data.recovery import scanned

LOG_BYTES = 2 << 30
KILLS = 50
SCANNED_MAX = 64 << 20
SERVING_S = 3.0
MARKS = (0.25, 0.5, 1.0)
"""Shares of the full length at which restarts are measured: 0.5, 1 and 2 GiB."""
TRICKLE = 0.1
"""Share of the load that goes on while a node is killed and comes back."""
STALL_S = 120.0
BACK_S = 60.0


def play(scene: Scene) -> None:
    size, kills = scene.count(LOG_BYTES), scene.count(KILLS)
    restarts: list[Restart] = []
    seen: list[QueueEnds] = []
    due = sorted({round((i + 1) / kills, 6) for i in range(kills)} | set(MARKS))
    while len(due) > kills:  # drop other restarts to make room for the marks
        due.remove(next(at for at in due if at not in MARKS))
    for at in due:
        _grow(scene, int(at * size))
        with scene.act(f"kill -9 at {scene.stage.load.position / (1 << 20):,.0f} MiB") as told:
            restarts.append(_restart(scene, seen))
            told.append(_say(restarts[-1]))
            if at in MARKS:
                scene.measured[f"recovery at {restarts[-1].log_bytes / (1 << 30):.2f} GiB"] = restarts[-1].to_json()
    _judge(scene, restarts, kills)


def _grow(scene: Scene, size: int) -> None:
    """Waits under full load until the log is that long, then reduces the load, so that the log keeps its length however
    slow the machine is. Raises StoryEnds if it stops growing."""
    load = scene.stage.load
    load.factor = 1.0
    last, since = load.position, time.monotonic()
    while load.position < size:
        if load.position > last:
            last, since = load.position, time.monotonic()
        elif time.monotonic() - since > STALL_S:
            raise StoryEnds(f"nothing was acknowledged for {STALL_S:.0f} s, with {last:,} of {size:,} bytes in the log")
        time.sleep(0.05)
    load.factor = TRICKLE


def _restart(scene: Scene, seen: list[QueueEnds]) -> Restart:
    """Kills a random node, starts it again, and waits until it serves and has applied its former entries. Checks that
    its queues have no fewer rows than at any earlier reading of the same entries. Raises StoryEnds.
    """
    subject, node = scene.subject, scene.rng.choice(scene.subject.node_ids)
    before = _rows(scene, node)
    log_bytes = scene.stage.load.position
    scene.stage.strike([node])
    time.sleep(scene.rng.uniform(0.0, 0.5))
    started = time.monotonic()
    subject.start_node(node)
    serving_s = wait_serving(subject, node, started, BACK_S)
    if serving_s is None:
        raise StoryEnds(f"node {node} did not serve {BACK_S:.0f} s after its start")
    seen.append(before)
    after = _rows_from(scene, node, before.below)
    account = subject.request(node, "GET", "/v1/recovery", timeout_s=10.0)["recovery"]
    for earlier in seen:
        if (wrong := shrunk(earlier, after)) is not None:
            scene.demand(False, wrong)
            break
    seen.append(after)
    scene.wait_well()
    return Restart(node, log_bytes, serving_s, account)


def _rows(scene: Scene, node: int) -> QueueEnds:
    """Returns the ends of the node's queues. Raises StoryEnds if the node does not answer in time."""
    deadline = time.monotonic() + BACK_S
    while True:
        try:
            return read_rows(scene.subject, node)
        except OSError as error:
            if time.monotonic() > deadline:
                raise StoryEnds(f"node {node} did not tell its queues: {error}") from error
            time.sleep(0.05)


def _rows_from(scene: Scene, node: int, applied: int) -> QueueEnds:
    """Returns the ends of the node's queues once it has applied the entry with index `applied`. Raises StoryEnds if it
    does not in time.
    """
    deadline = time.monotonic() + BACK_S
    while (rows := _rows(scene, node)).above < applied:
        if time.monotonic() > deadline:
            raise StoryEnds(f"node {node} did not apply entry {applied} again within {BACK_S:.0f} s")
        time.sleep(0.05)
    return rows


def _say(restart: Restart) -> str:
    return (
        f"node {restart.node} serves after {restart.serving_s:.2f} s, scanned {scanned(restart.account)}, "
        f"replayed {restart.account['entries_replayed']} entries"
    )


def _judge(scene: Scene, restarts: list[Restart], kills: int) -> None:
    most = max(restart.scanned for restart in restarts)
    for restart in restarts:
        if restart.scanned > SCANNED_MAX:
            scene.demand(
                False,
                f"node {restart.node} scanned {restart.scanned:,} bytes of its log at a start, at most "
                f"{SCANNED_MAX:,} are promised",
            )
    times = sorted(restart.serving_s for restart in restarts)
    scene.measured |= {
        "log_bytes": scene.stage.load.position,
        "serving_ms_median": round(1000 * times[len(times) // 2]),
        "serving_ms_max": round(1000 * times[-1]),
        "bytes_scanned_max": most,
        "restarts": [restart.to_json() for restart in restarts],
    }
    scene.gate("kills", len(restarts), kills)
    scene.gate("MiB of log", scene.stage.load.position >> 20, scene.count(LOG_BYTES) >> 20)
    scene.gate("MiB scanned by a restart, at most", round(most / (1 << 20), 2), SCANNED_MAX >> 20, at_most=True)
    scene.gate("seconds until a restarted node serves, at most", round(times[-1], 2), SERVING_S, at_most=True)


STORY = Story(play, free_gib=8, segment_mib=64, load=LoadPlan(1000, 256, BULK))
