"""The story `hot-topic`: a topic of one group of brokers takes most of the load and is spread over two by itself.

Beside the writers of that topic, clients send to a topic of both groups and read it. The checkers judge what they saw.
"""

from __future__ import annotations

import time

import psutil

from jepsen_like.live.probes.hot_writers import HotWriters, Written, wrong_rows
from jepsen_like.live.stories.groups_scene import SECOND, GroupsScene, groups_scene
from jepsen_like.live.stories.story import WELL_S, Scene, Story
from jepsen_like.live.subjects.subject import LoadPlan
from raftlog.types import FIRST_GROUP
from raftmq.client import connect
from raftmq.local.waiting import until
from raftmq_wire.queue_numbers import group_of

HOT = "hot"
QUEUES = 4
WRITERS = 3
WRITE_S = 90.0
WARM_S = 4.0
"""Seconds until all writers send."""
SETTLE_S, SHARED_S = 33.0, 10.0
"""SETTLE_S: seconds from the spread until all producers know it, since they ask for routes every 30 s. SHARED_S:
seconds for which the CPU time is then measured.
"""
SPREAD_GATE_S = 30.0
SHARE_GATE = 2 / 3
"""Gate: the busiest process's share of all nodes' CPU time after the spread may be at most this factor of the share
before it.
"""


def play(scene: Scene) -> None:
    """Plays the story: a topic becomes hot and spreads, and every acknowledged message must be stored exactly once."""
    with groups_scene(scene) as groups:
        with scene.act("a second group, and a topic of the first one alone"):
            groups.join()
            values = {"values": {"topics.spread": "auto"}, "author": "story", "reason": ""}
            scene.subject.request(groups.leader(FIRST_GROUP), "PUT", "/v1/config", values)
            groups.mq.admin.create_topic(HOT, queues=QUEUES, groups=[FIRST_GROUP])
            groups.mq.admin.create_topic("both", queues=QUEUES)
            groups.begin("both")
        servers = f"{scene.subject.servers};{groups.second.servers}"
        seconds = max(60.0, WRITE_S * scene.scale)
        with (
            groups.no_key_moves(["both"]),
            HotWriters(servers, scene.subject.client_options, HOT, WRITERS, seconds) as writers,
        ):
            _spread(scene, groups)
            written = writers.written()
        with scene.act("read the hot topic") as told:
            told.append(f"{_judge(scene, groups, written):,} messages")
        groups.finish()


def _spread(scene: Scene, groups: GroupsScene) -> None:
    """Waits until the topic spreads, and measures which processes do the work before and after."""
    with scene.act("it becomes hot") as told:
        scene.stage.sleep(WARM_S)
        begun, before = time.monotonic(), _cpu_s(groups)
        spread = until(lambda: SECOND in map(group_of, groups.queues_of(HOT)), WELL_S, 0.1)
        took_s = time.monotonic() - begun
        share = _busiest(before, _cpu_s(groups))
        scene.demand(bool(spread), f"the topic was in one group {WELL_S:.0f} s after it had become hot")
        told.append(f"two groups have it after {took_s:.1f} s; one process had {share:.0%} of the work")
    with scene.act("two leaders share the work") as told:
        scene.stage.sleep(SETTLE_S)
        before = _cpu_s(groups)
        scene.stage.sleep(SHARED_S)
        shared = _busiest(before, _cpu_s(groups))
        told.append(f"one process has {shared:.0%}")
    scene.measured |= {"spread after, s": took_s, "share of the busiest process": [share, shared]}
    scene.gate("seconds until it has spread", round(took_s, 1), SPREAD_GATE_S, at_most=True)
    part = shared / share if share else 1.0
    scene.gate("share of the busiest process, as a part of before", round(part, 2), round(SHARE_GATE, 2), at_most=True)


def _cpu_s(groups: GroupsScene) -> dict[int, float]:
    """Returns pid -> seconds of CPU that the node's process has used."""
    found = {}
    for group in (FIRST_GROUP, SECOND):
        nodes = groups.nodes_of(group)
        for node in nodes.node_ids:
            if (pid := nodes.processes.pid(node)) is not None and nodes.is_running(node):
                times = psutil.Process(pid).cpu_times()
                found[pid] = times.user + times.system
    return found


def _busiest(before: dict[int, float], after: dict[int, float]) -> float:
    """Returns the largest share of one process in the CPU time that all used between the two measurements."""
    used = [after[pid] - before.get(pid, 0.0) for pid in after]
    return max(used) / sum(used) if sum(used) else 0.0


def _judge(scene: Scene, groups: GroupsScene, written: list[Written]) -> int:
    """Reads the hot topic, and demands that it has what its writers were told; returns the number of its messages."""
    with connect(scene.subject.servers, timeout_s=WELL_S, **scene.subject.client_options) as mq:
        groups.mq.admin.create_group("hot-readers")
        with mq.consumer("hot-readers", HOT, follow=False) as consumer:
            bodies = [message.body for message in consumer]
    wrong = wrong_rows(written, bodies)
    for each in wrong[:5]:
        scene.demand(False, each)
    if len(wrong) > 5:
        scene.demand(False, f"{len(wrong) - 5} more of this kind")
    by_group = {group: sum(each.by_group.get(group, 0) for each in written) for group in (FIRST_GROUP, SECOND)}
    scene.demand(bool(by_group[SECOND]), "no writer got a message into the second group")
    scene.measured |= {
        "written": sum(each.sent for each in written),
        "written by group": by_group,
        "failed writes": sum(len(each.failed) for each in written),
        "unknown writes": sum(len(each.unknown) for each in written),
    }
    return len(bodies)


STORY = Story(play, load=LoadPlan(50, 64), is_direct=True)
