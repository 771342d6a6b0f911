"""The story `group-drain`: the second group of brokers is drained and retires under load, while its leader is killed
again and again.

Producers with and without keys, lanes that pull and commit each queue, and members of consumer groups work on topics of
the second group and of both. One consumer group reads in order, and one by broadcasting. Only the members of the
broadcasting group know what they have read, so the second group of brokers retires by force once all other consumer
groups have read everything.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster.replication.drain_grace import GRACE_MS
from jepsen_like.live.probes.broadcast_members import GROUP as WATCHERS
from jepsen_like.live.stories.groups_scene import SECOND, GroupsScene, groups_scene
from jepsen_like.live.stories.story import WELL_S, Scene, Story, StoryEnds
from jepsen_like.live.subjects.subject import LoadPlan
from raftlog.types import FIRST_GROUP
from raftmq.local.waiting import until
from raftmq_wire.queue_numbers import group_of

QUEUES = 4
KILLS = 4
DOWN_S, CALM_S = (0.5, 3.0), (1.0, 6.0)
WARM_S = 4.0
DONE_S, RETIRED_S = 180.0, 240.0
"""Longest time in seconds, once no leader is killed any more, until consumers have read everything, and until the group
has retired. Retiring takes long because each new leader still takes sends for 70 s.
"""
CLOSE_KILL_S = 0.05
"""Longest time in seconds from the request to retire until the leader is killed, which happens once."""
GRACE_S = GRACE_MS / 1000 + 2
ALONE_S = 5.0
DRAIN = f"/v1/broker-groups/{SECOND}/drain"
RETIRE = f"/v1/broker-groups/{SECOND}/retire"


def play(scene: Scene) -> None:
    """Plays the story: the second group drains and retires; nothing acknowledged may be lost, and no send may fail."""
    with groups_scene(scene) as groups:
        with scene.act("a second group, and topics there and in both"):
            groups.join()
            for topic, places in (("both", [FIRST_GROUP, SECOND]), ("second", [SECOND])):
                groups.mq.admin.create_topic(topic, queues=QUEUES, groups=places)
            groups.begin("both", "second")
            groups.load.read_in_order(["both", "second"])
            if not scene.subject.has_users:  # heartbeats of its members are not signed
                groups.mq.admin.create_group(WATCHERS)
                nodes = [node for group in (FIRST_GROUP, SECOND) for node in groups.nodes_of(group).nodes]
                groups.load.broadcast(["both", "second"], [node.broker_port for node in nodes])
            scene.stage.sleep(WARM_S)
        begun = time.monotonic()
        _drain(scene, groups)
        _kill_leaders(scene, groups, scene.count(KILLS))
        _read_all(scene, groups)
        _retire(scene, groups)
        took_s = time.monotonic() - begun
        _stays_alone(scene, groups)
        _starts_again(scene, groups)
        groups.finish(groups=(FIRST_GROUP,))
        scene.measured["retired after, s"] = took_s
        failed = groups.load.counts.failed
        scene.gate("sends that failed", failed, 0, at_most=True)


def _ask(groups: GroupsScene, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """Sends an HTTP request to the second group's leader; returns its answer. Raises OSError if there is no answer, or
    a refusal.
    """
    found: dict[str, Any] = groups.second.request(groups.leader(SECOND), method, path, body)
    return found


def _begin(groups: GroupsScene) -> None:
    _ask(groups, "POST", DRAIN, {"spread": True})


def _drain(scene: Scene, groups: GroupsScene) -> None:
    with scene.act("the second group drains") as told:
        groups.insist("the drain", lambda: _begin(groups))
        for topic in groups.topics:
            groups.load.pull(topic, groups.queues_of(topic))
        told.append(f"{groups.load.counts.acked:,} acknowledged before")


def _kill_leaders(scene: Scene, groups: GroupsScene, times: int) -> None:
    with scene.act(f"{times} kills of its leader"):
        for _ in range(times):
            victim = groups.leader(SECOND)
            groups.kill(SECOND, [victim])
            scene.stage.sleep(scene.rng.uniform(*DOWN_S))
            groups.start(SECOND, [victim])
            groups.wait_well(SECOND)
            scene.stage.sleep(scene.rng.uniform(*CALM_S))


def _read_all(scene: Scene, groups: GroupsScene) -> None:
    """Waits until consumers have left nothing unread in the group, but for members that read by broadcasting. Demands
    that these have got every acknowledged message, too. Raises StoryEnds.
    """
    with scene.act("what it has is read") as told:
        left: dict[str, Any] = {}

        def done() -> bool:
            nonlocal left
            try:
                left = _ask(groups, "GET", DRAIN)
            except OSError:
                return False
            return bool(left["done"]) or is_read_by_others(left)

        if not until(done, DONE_S, 0.5):
            raise StoryEnds(f"something was left {DONE_S:.0f} s after the last kill: {left}")
        until(lambda: not groups.load.unseen(SECOND), DONE_S, 0.2)
        for unseen in groups.load.unseen(SECOND):
            scene.demand(False, unseen)
        scene.measured["left for who reads by broadcasting"] = left["unread_messages"]
        told.append(f"{len(groups.load.acks_s[SECOND]):,} of its messages were acknowledged")


def is_read_by_others(left: dict[str, Any]) -> bool:
    """Returns True if nothing is left but messages of members that read by broadcasting."""
    waiting = ("topics_read_by_nobody", "groups_with_dead_letters", "timers", "half_messages", "attempts")
    return (
        bool(left["unread"])
        and all(each["broadcasts"] for each in left["unread"])
        and not any(left[name] for name in (*waiting, "prepared_writes"))
    )


def _wait_for_grace(scene: Scene, groups: GroupsScene) -> None:
    """Waits until the leader takes no sends any more, so that the next request to retire closes the log."""
    ends = time.monotonic() + RETIRED_S
    leader, since = groups.leader(SECOND), time.monotonic()
    while time.monotonic() < min(ends, since + GRACE_S):
        scene.stage.sleep(1.0)
        if (now := groups.leader(SECOND)) != leader:
            leader, since = now, time.monotonic()


def _is_retired(groups: GroupsScene) -> bool:
    """Asks the group to retire, by force if only members that read by broadcasting have messages left; returns True if
    it has retired.
    """
    try:
        left = _ask(groups, "GET", DRAIN)
        force = not left["done"] and is_read_by_others(left)
        return bool(_ask(groups, "POST", RETIRE, {"force": force})["state"] == "retired")
    except OSError:
        return False


def _retire(scene: Scene, groups: GroupsScene) -> None:
    """Retires the group; its leader is killed once while it is asked to."""
    with scene.act("it retires") as told:
        queues = {topic: [q for q in groups.queues_of(topic) if group_of(q) == SECOND] for topic in groups.topics}
        begun = time.monotonic()
        with ThreadPoolExecutor(1) as one:
            _wait_for_grace(scene, groups)
            asked = one.submit(_is_retired, groups)
            scene.stage.sleep(scene.rng.uniform(0, CLOSE_KILL_S))
            victim = groups.leader(SECOND)
            groups.kill(SECOND, [victim])
            scene.measured["retired at once"] = asked.result()
        groups.start(SECOND, [victim])
        if groups.load.watchers:  # by force, late sends and unread messages would be lost
            _wait_for_grace(scene, groups)
        if not until(lambda: _is_retired(groups), RETIRED_S, 0.5):
            raise StoryEnds(f"the group had not retired after {RETIRED_S:.0f} s")
        groups.load.leave(SECOND)
        told.append(f"after {time.monotonic() - begun:.1f} s")
    with scene.act("read its replicas") as told:
        told.append(f"{groups.read_running(SECOND, queues):,} rows")


def _stays_alone(scene: Scene, groups: GroupsScene) -> None:
    """Checks that the first group works alone: it stops the nodes of the retired group, which must have acknowledged
    nothing since."""
    with scene.act("the first group goes on alone"):
        since = time.monotonic()
        groups.second.stop_in_order()
        scene.stage.sleep(ALONE_S)
        late = [each for each in list(groups.load.acks_s[SECOND]) if each > since]
        scene.demand(not late, f"{len(late)} sends were acknowledged by a group that has retired")
        alone = [each for each in list(groups.load.acks_s[FIRST_GROUP]) if each > since]
        scene.demand(bool(alone), f"the first group acknowledged nothing within {ALONE_S:.0f} s")
        known = until(lambda: groups.mq.admin.broker_groups() == [FIRST_GROUP], WELL_S, 0.2)
        scene.demand(known, f"clients still know group {SECOND} {WELL_S:.0f} s after it retired")


def _starts_again(scene: Scene, groups: GroupsScene) -> None:
    """Starts nodes of the retired group again. Those that know that the group has retired must end by themselves."""
    with scene.act("its nodes end when they start"):
        ended = 0
        for node in groups.second.nodes:
            groups.second.start_node(node.id)
            if until(lambda node=node: not groups.second.is_running(node.id), WELL_S / 4, 0.1):  # type: ignore[misc]
                ended += 1
                says = "has retired, and its nodes run no more" in Path(node.log).read_text("utf-8")
                scene.demand(says, f"node {node.name} ended, and did not say why")
        scene.demand(ended >= 2, f"{ended} of the nodes ended; a majority knew that their group had retired")
        scene.measured["nodes that ended"] = ended


STORY = Story(play, load=LoadPlan(50, 64), is_direct=True)
