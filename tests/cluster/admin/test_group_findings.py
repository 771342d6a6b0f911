"""Groups without consumers, queues that stand still, and when a group last committed."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.admin.node_interface import MemberView
from cluster.broker.watches import group_watch
from cluster.broker.watches.group_watch import TOPICS_HOLD_MS, GroupWatch
from raftlog.work import METER
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.removal_slices import DeleteGroup
from statemachine.topics.topics import CreateTopic

CONSUMER = MemberView(client_id="c1", address="127.0.0.1:5", language="JAVA", version=1, silent_ms=7)
STUCK_MS = 300_000


@pytest.fixture
def watch(node: Any) -> GroupWatch:
    node.apply([CreateTopic({"name": "a", "read_queues": 2, "write_queues": 2}, True)])
    node.add_group("billing", "a")
    node.add_messages("a", 0, 10)
    node.add_messages("a", 1, 10)
    return watch_of(node)


def watch_of(node: Any, **limits: int) -> GroupWatch:
    return GroupWatch(node, member_count=node.member_count, unread=node.unread, wall_ms=node.wall_ms, **limits)


def codes(watch: GroupWatch, now_ms: int) -> list[tuple[str, str]]:
    return [(each.code, each.object) for each in watch.look(now_ms)]


def commit(node: Any, queue_id: int, offset: int) -> None:
    node.apply([CommitOffsets([("billing", 1, queue_id, offset)])])


def test_a_group_with_messages_and_nobody(node: Any, watch: GroupWatch) -> None:
    (condition,) = watch.look(0)
    assert (condition.code, condition.object) == ("group_without_consumers", "group billing")
    assert condition.hold_ms == node.config.health.group_idle_ms
    assert "20 messages" in condition.says
    commit(node, 0, 10)
    commit(node, 1, 10)
    assert codes(watch, 1) == [], "it has everything"


def test_a_queue_that_stands_while_the_group_goes_on_in_another(node: Any, watch: GroupWatch) -> None:
    node.consumers["billing"] = [CONSUMER]
    assert codes(watch, 0) == []
    for step in range(1, 6):
        commit(node, 0, step)
        assert codes(watch, step * STUCK_MS // 5 - 1) == []
    assert codes(watch, STUCK_MS) == [("queue_stuck", "queue a/1 of billing")]
    commit(node, 1, 1)
    assert codes(watch, STUCK_MS + 1) == []


def test_a_queue_without_messages_does_not_stand(node: Any, watch: GroupWatch) -> None:
    node.consumers["billing"] = [CONSUMER]
    for queue_id in (0, 1):
        commit(node, queue_id, 10)
    assert codes(watch, 0) == []
    assert codes(watch, 10 * STUCK_MS) == []
    node.add_messages("a", 0, 1)
    assert codes(watch, 10 * STUCK_MS + 1) == [], "its time begins with the message"
    assert codes(watch, 11 * STUCK_MS + 1) == [("queue_stuck", "queue a/0 of billing")]


def test_the_age_of_a_commit_is_known_once_one_was_seen(node: Any, watch: GroupWatch) -> None:
    commit(node, 0, 3)
    codes(watch, 0)
    assert watch.committed_age_ms("billing", "a", 0, 50) is None, "when that was nobody saw"
    commit(node, 0, 4)
    codes(watch, 100)
    assert watch.committed_age_ms("billing", "a", 0, 150) == 50
    assert watch.committed_age_ms("billing", "a", 1, 150) is None
    commit(node, 0, 10)
    codes(watch, 200)
    codes(watch, 5_000)
    assert watch.committed_age_ms("billing", "a", 0, 5_100) == 4_900, "nobody commits again in a queue without lag"


@pytest.mark.usefixtures("watch")
def test_many_groups_are_looked_at_in_slices(node: Any) -> None:
    watch = watch_of(node, queues_per_look=4)
    for name in ("b1", "b2", "b3", "b4"):
        node.add_group(name, "a")
    seen = [len(codes(watch, look)) for look in range(4)]
    assert seen[0] < 5
    assert seen[-1] == 5
    node.apply([DeleteGroup("b2", True)])
    assert "group b2" not in [about for _, about in codes(watch, 9)]


def test_only_the_leader_watches(node: Any, watch: GroupWatch) -> None:
    assert codes(watch, 0)
    node.writes_open = lambda: False
    assert codes(watch, 1) == []


@pytest.mark.usefixtures("watch")
def test_one_group_with_many_queues_takes_several_looks(node: Any) -> None:
    node.apply([CreateTopic({"name": "wide", "read_queues": 20_000, "write_queues": 20_000}, False)])
    node.add_group("wide", "wide")
    watch = watch_of(node, watched_max=5_000)
    before = METER.units
    codes(watch, 0)
    one_look = METER.units - before
    assert one_look < 50 * group_watch.QUEUES_PER_LOOK
    for look in range(1, 13):
        codes(watch, look)
    topic = node.state.topics["wide"].id
    node.apply([CommitOffsets([("wide", topic, queue, 1) for queue in (4_999, 5_000)])])
    for look in range(13, 40):
        codes(watch, look)
    assert watch.committed_age_ms("wide", "wide", 4_999, 50) is not None
    assert watch.committed_age_ms("wide", "wide", 5_000, 50) is None, "it is not watched"


@pytest.mark.usefixtures("watch")
def test_findings_about_groups_have_a_limit(node: Any) -> None:
    watch = watch_of(node, groups_told_max=3)
    for name in ("b1", "b2", "b3", "b4"):
        node.add_group(name, "a")
    assert len(codes(watch, 0)) == 3


def test_topics_that_not_every_member_wants(node: Any, watch: GroupWatch) -> None:
    node.consumers["billing"] = [CONSUMER]
    node.idle["a"] = {"c1"}
    (condition,) = watch.look(0)
    assert (condition.code, condition.object) == ("group_topics_differ", "group billing")
    assert condition.hold_ms == TOPICS_HOLD_MS
    assert "(a: not wanted by c1)" in condition.says
    assert codes(watch, STUCK_MS) == [("group_topics_differ", "group billing")], "the cause, not each queue"
    commit(node, 0, 10)
    commit(node, 1, 10)
    assert codes(watch, STUCK_MS + 1) == [("group_topics_differ", "group billing")], "also while nothing is to be read"
    node.idle.clear()
    assert codes(watch, STUCK_MS + 2) == []
