"""The stories `group-join` and `first-group-lost`: a second group of brokers joins a cluster under load, and the first
one, which has the topics, users and settings of all, is away for a while.

In addition to the usual load of all scenarios, which uses only the first group, clients send to and read topics of both
groups. The checkers examine all of it: nothing acknowledged is lost or duplicated, the messages of a key are stored in
the order in which they were sent, each after the acknowledgement of the one before, and no offset of a consumer group
goes back.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from jepsen_like.client_kit.fields import group_body, topic_fields
from jepsen_like.client_kit.wire import Wire
from jepsen_like.live.stories.groups_scene import SECOND, GroupsScene, groups_scene
from jepsen_like.live.stories.story import WELL_S, Scene, Story
from jepsen_like.live.subjects.subject import LoadPlan
from raftlog.types import FIRST_GROUP
from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from raftmq.local.waiting import until
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.queue_numbers import group_of, number_of

QUEUES = 4
KILLS, LOSSES = 20, 4
WARM_S = 3.0
DOWN_S, CALM_S = (0.2, 1.5), (0.5, 1.5)
"""Shortest and longest times in seconds: DOWN_S, that a killed node stays away; CALM_S, between its return and the next
kill.
"""
AWAY_S = (13.0, 17.0)
"""Shortest and longest time in seconds that the first group stays away: long enough for a finding to report its
silence, and shorter than the time that a send waits for its group.
"""
NOTICED_S = 2.0
"""Seconds from the loss of the first group until clients work with the other group alone. Their earlier sends to the
first group still wait.
"""
PROBE, PROBERS = "probe", "probers"
"""Names of a topic of the second group and of a consumer group, for clients that start while the first group is away.
"""
GAP_GATE_S = 1.0
JOIN_GATE_S, COPY_GATE_S = 20.0, 5.0


def play_join(scene: Scene) -> None:
    """Plays `group-join`: a second group joins while nodes of both groups are killed."""
    with groups_scene(scene) as groups:
        with scene.act("topics of one group"):
            for topic in ("early", "spread"):
                groups.mq.admin.create_topic(topic, queues=QUEUES)
            groups.begin("early", "spread")
            scene.stage.sleep(WARM_S)
        with groups.no_key_moves(["early", "spread"]):
            _join(scene, groups)
            with scene.act("a new topic is in both groups"):
                groups.insist("a topic", lambda: groups.mq.admin.create_topic("late", queues=QUEUES))
                for topic, wanted in (("late", {FIRST_GROUP, SECOND}), ("early", {FIRST_GROUP})):
                    _demand_groups(scene, groups, topic, wanted)
                groups.use("late")
                groups.load.read(["late"])
            _kill_members(scene, groups, scene.count(KILLS // 2))
        with groups.no_key_moves(["early", "late"]):
            with scene.act("an existing topic spreads"):
                groups.insist("a topic", lambda: groups.mq.admin.create_topic("spread", queues=QUEUES, groups=[1, 2]))
                _demand_groups(scene, groups, "spread", {FIRST_GROUP, SECOND})
                groups.load.pull("spread", [q for q in groups.queues_of("spread") if group_of(q) == SECOND])
            _kill_members(scene, groups, scene.count(KILLS // 2))
        groups.finish()
        moved = sum(len(queues) > 1 for (topic, _), queues in groups.load.places.items() if topic == "spread")
        scene.measured["keys that moved when told to"] = moved


def _join(scene: Scene, groups: GroupsScene) -> None:
    with scene.act("a group joins") as told:
        victim = scene.rng.choice(scene.subject.node_ids)
        groups.kill(FIRST_GROUP, [victim])
        took_s = groups.join()
        groups.start(FIRST_GROUP, [victim])
        told.append(f"clients know it after {took_s:.1f} s, although node {victim} was away")
        groups.wait_well(FIRST_GROUP)
        scene.gate("seconds until clients know the group", round(took_s, 1), JOIN_GATE_S, at_most=True)


def _demand_groups(scene: Scene, groups: GroupsScene, topic: str, wanted: set[int]) -> None:
    found = {group_of(queue) for queue in groups.queues_of(topic)}
    scene.demand(found == wanted, f"topic {topic} has queues in groups {sorted(found)}, not in {sorted(wanted)}")


def _kill_members(scene: Scene, groups: GroupsScene, times: int) -> None:
    """Kills members of either group, the leader half of the time."""
    with scene.act(f"{times} kills of members of either group") as told:
        slowest_s = 0.0
        for _ in range(times):
            group = scene.rng.choice((FIRST_GROUP, SECOND))
            is_leader = scene.rng.random() < 0.5
            victim = groups.leader(group) if is_leader else scene.rng.choice(groups.nodes_of(group).node_ids)
            groups.kill(group, [victim])
            scene.stage.sleep(scene.rng.uniform(*DOWN_S))
            groups.start(group, [victim])
            slowest_s = max(slowest_s, groups.wait_well(group))
            scene.stage.sleep(scene.rng.uniform(*CALM_S))
        told.append(f"well again after {slowest_s:.1f} s at most")


def play_first_lost(scene: Scene) -> None:
    """Plays `first-group-lost`: all nodes of the first group die, stay away and come back, again and again."""
    copies_s: list[float] = []
    gaps_s: list[float] = []
    with groups_scene(scene) as groups:
        with scene.act("a second group, and topics in either and in both"):
            groups.join()
            for topic, places in (("both", [FIRST_GROUP, SECOND]), ("first", [FIRST_GROUP]), ("second", [SECOND])):
                groups.mq.admin.create_topic(topic, queues=QUEUES, groups=places)
            groups.mq.admin.create_topic(PROBE, queues=QUEUES, groups=[SECOND])
            groups.mq.admin.create_group(PROBERS)
            groups.begin("both", "first", "second")
            scene.stage.sleep(WARM_S)
        with groups.no_key_moves(["both", "first", "second"]):
            for number in range(scene.count(LOSSES)):
                _goes_on(scene, groups, "before the first one was lost")  # its consumer groups must be known by then
                with scene.act("the first group is lost") as told:
                    gaps_s.append(_lose_first(scene, groups, number))
                    told.append(f"the second one's longest pause was {gaps_s[-1]:.2f} s")
                with scene.act("the copies catch up") as told, scene.quiet():
                    begun = time.monotonic()
                    whole = until(groups.copy_is_whole, WELL_S, 0.05)
                    scene.demand(whole, f"the second group had not copied and confirmed all {WELL_S:.0f} s after")
                    copies_s.append(time.monotonic() - begun)
                    told.append(f"after {copies_s[-1]:.2f} s")
                name = f"made-{number}"
                groups.insist("a topic", lambda name=name: groups.mq.admin.create_topic(name, queues=1))  # type: ignore[misc]
                scene.stage.sleep(WARM_S)
        groups.finish()
    scene.measured |= {"pauses of the second group, s": gaps_s, "copies whole after, s": copies_s}
    scene.gate("longest pause of the second group, s", round(max(gaps_s), 2), GAP_GATE_S, at_most=True)
    scene.gate("copies whole after, s, at most", round(max(copies_s), 2), COPY_GATE_S, at_most=True)


def _lose_first(scene: Scene, groups: GroupsScene, number: int) -> float:
    """Kills the first group, looks at what the second one does, and starts the first one again. Returns the longest
    time without an acknowledgement of the second group."""
    away_s = scene.rng.uniform(*AWAY_S)
    begun = time.monotonic()
    groups.kill(FIRST_GROUP, scene.subject.node_ids)
    scene.stage.sleep(NOTICED_S)
    since = time.monotonic()
    _without_first(scene, groups, number)
    found = groups.wait_finding("truth_unconfirmed")
    scene.demand(found, f"no finding said within {WELL_S:.0f} s that the copy is not confirmed")
    _goes_on(scene, groups, "without the first one")
    scene.stage.sleep(max(0.0, begun + away_s - time.monotonic()))
    end = time.monotonic()
    groups.start(FIRST_GROUP, scene.subject.node_ids)
    late = [each for each in groups.load.acks_s[FIRST_GROUP] if since < each < end]
    scene.demand(not late, f"{len(late)} sends were acknowledged by a group whose nodes are dead")
    groups.wait_well(FIRST_GROUP)
    return longest_gap(groups.load.acks_s[SECOND], since, end)


def _goes_on(scene: Scene, groups: GroupsScene, when: str) -> None:
    """Waits until each kind of client of the second group has completed an operation. That may take a while on a busy
    machine, on which the second group may also lose its leader.
    """
    load, since = groups.load, time.monotonic()
    for what, times_s in (
        ("acknowledged", load.acks_s[SECOND]),
        ("gave to known consumer groups", load.handed_s[SECOND]),
        ("took commits", load.committed_s[SECOND]),
    ):
        done = until(lambda times_s=times_s: bool(times_s) and times_s[-1] > since, WELL_S, 0.05)  # type: ignore[misc]
        scene.demand(done, f"the second group {what} nothing within {WELL_S:.0f} s {when}")


def longest_gap(times_s: Sequence[float], since: float, end: float) -> float:
    """Returns the longest time between two consecutive moments, of those in `times_s` from `since` to `end`. `since`
    and `end` count as moments, too.
    """
    inside = [since, *(each for each in list(times_s) if since < each < end), end]
    return max(later - earlier for earlier, later in itertools.pairwise(inside))


def _without_first(scene: Scene, groups: GroupsScene, number: int) -> None:
    """Checks what a new client can do while the first group is away, and what is refused."""
    subject = scene.subject
    if not subject.has_users:  # raw requests carry no user's signature
        node = next(node for node in groups.second.nodes if node.id == groups.leader(SECOND))
        for what, code in asyncio.run(_refusals(node.broker_port, f"never-{number}")).items():
            scene.demand(code == ResponseCode.SERVICE_NOT_AVAILABLE, f"{what} was answered with {code}")
    try:
        _new_client(scene, f"{subject.servers};{groups.second.servers}", number)
    except RaftMQError as error:
        scene.demand(False, f"a client that came while the first group was away: {error}")


def _new_client(scene: Scene, servers: str, number: int) -> None:
    """Lets a client send, pull, commit and read as a member of a known consumer group, all in the second group."""
    with connect(servers, timeout_s=WELL_S, **scene.subject.client_options) as mq:
        queues = [number_of(SECOND, queue) for queue in range(QUEUES)]
        for queue in queues:
            sent = mq.send(PROBE, b"probe", queue_id=queue)
            pulled = [each.queue_offset for each in mq.pull(PROBE, queue, 0).messages]
            scene.demand(pulled == [*range(number + 1)], f"{PROBE}/{queue} has {pulled}, {number + 1} were sent")
            mq.admin.commit(PROBERS, PROBE, queue, sent.queue_offset)
            committed = mq.admin.committed(PROBERS, PROBE, queue)
            scene.demand(committed == sent.queue_offset, f"{committed} is committed, not {sent.queue_offset}")
        with mq.consumer(PROBERS, PROBE, max_wait_s=WELL_S) as consumer:
            read = sorted((each.queue_id, each.queue_offset) for each in itertools.islice(consumer, QUEUES))
        wanted = [(queue, number) for queue in queues]
        scene.demand(read == wanted, f"a known group read {read}, not {wanted}")
        scene.demand(PROBE in mq.admin.topics(), f"the list of topics lacks {PROBE}")


async def _refusals(port: int, name: str) -> dict[str, int]:
    """Asks a node to create a topic and a consumer group; returns request -> response code."""
    async with await Wire.dial(port) as wire:
        made = await wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name))
        grouped = await wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_body(name))
    return {"making a topic": made.code, "making a consumer group": grouped.code}


_LOAD = LoadPlan(100, 64)
"""The load on the first group alone, beside that of the story."""
JOIN = Story(play_join, load=_LOAD, is_direct=True)
FIRST_LOST = Story(play_first_lost, load=_LOAD, is_direct=True)
