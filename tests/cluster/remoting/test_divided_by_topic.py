"""Groups whose members want different topics: those that share a topic, by the answer to 38 and the client's rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.broker.groups import consumer_group
from cluster.broker.groups.assignment import owner, sharers
from cluster.broker.groups.consumer_group import ConsumerGroup, Member
from cluster.broker.groups.group_members import MemberBounds
from raftmq.client.consuming.group_member import MemberList, allocate_averagely
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import BY_TOPIC_LEVEL

RETRY = "%RETRY%g"
QUEUES = 4


@pytest.fixture
def node(node: Any) -> Any:
    node.command(Finalize(BY_TOPIC_LEVEL))
    for topic in ("a", "b", "c"):
        node.create_topic(topic, queues=QUEUES)
    return node


def beat(client: str, topics: str, *, by_topic: bool | None = True, version: int = 1, **more: Any) -> bytes:
    wanted = [{"topic": topic, "subString": "*", "subVersion": version} for topic in (RETRY, *topics.split())]
    said = {} if by_topic is None else {"raftmqByTopic": by_topic}
    data = {"groupName": "g", "messageModel": "CLUSTERING", "subscriptionDataSet": wanted, **said}
    return json.dumps({"clientID": client, "consumerDataSet": [data], **more}).encode()


def listed(node: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(node.ask(38, consumerGroup="g").answer.body)
    return answer


def readers(node: Any, wishes: Mapping[str, str]) -> dict[str, list[list[str]]]:
    """For each wanted topic, the members that read each of its queues: those that want it and to which the rule of our
    client gives the queue."""
    members = msgspec.convert(listed(node), MemberList)
    wanted = sorted({topic for topics in wishes.values() for topic in (RETRY, *topics.split())})
    shares = {
        (topic, me): allocate_averagely(members.sharers(topic), me, QUEUES)
        for me, topics in wishes.items()
        for topic in (RETRY, *topics.split())
    }
    return {
        topic: [[me for me in wishes if queue in shares.get((topic, me), ())] for queue in range(QUEUES)]
        for topic in wanted
    }


def test_each_topic_is_divided_among_the_members_that_want_it(node: Any, connect: Any) -> None:
    one, two = connect(), connect()
    node.ask(34, beat("x", "a"), connection=one)
    assert listed(node) == {"consumerIdList": ["x"]}, "all want the same"
    one.notified()
    node.ask(34, beat("y", "b"), connection=two)
    assert (one.notified(), two.notified()) == (["g"], ["g"])
    assert listed(node) == {
        "consumerIdList": ["x", "y"],
        "raftmqWishOf": [0, 1],
        "raftmqWishes": [[RETRY, "a"], [RETRY, "b"]],
    }
    assert readers(node, {"x": "a", "y": "b"}) == {
        "a": [["x"]] * 4,
        "b": [["y"]] * 4,
        RETRY: [["x"], ["x"], ["y"], ["y"]],
    }


def test_one_member_that_cannot_makes_it_the_rule_of_rocketmq(node: Any, connect: Any) -> None:
    one, two, java = connect(), connect(), connect()
    node.ask(34, beat("x", "a"), connection=one)
    node.ask(34, beat("y", "b"), connection=two)
    for said in (None, False):
        node.ask(34, beat("java", "a", by_topic=said), connection=java)
        assert listed(node) == {"consumerIdList": ["java", "x", "y"]}
    group = node.members.consumers["g"]
    assert group.unread() == {"a": ["y"], "b": ["java", "x"]}
    assert [owner(queue, 6, sharers(group, "b")) for queue in range(6)] == [None, None, None, None, "y", "y"]
    one.notified()
    java.close()
    assert one.notified() == ["g"]
    assert "raftmqWishOf" in listed(node)
    assert group.unread() == {}
    assert sharers(group, "b") == ["y"]


def test_below_the_level_nobody_divides_by_topic(node: Any, connect: Any) -> None:
    below: Any = type(node)(node.config)
    below.ask(34, beat("x", "a"), connection=connect())
    below.ask(34, beat("y", "b"), connection=connect())
    assert json.loads(below.ask(38, consumerGroup="g").answer.body) == {"consumerIdList": ["x", "y"]}
    below.command(Finalize(BY_TOPIC_LEVEL))
    kept = connect()
    below.ask(34, beat("x", "a"), connection=kept)
    below.ask(34, beat("y", "b"), connection=connect())
    assert "raftmqWishOf" in json.loads(below.ask(38, consumerGroup="g").answer.body)
    assert "g" in kept.notified(), "it divides again"


def test_the_groups_subscriptions_are_those_of_all_members(node: Any, connect: Any) -> None:
    one, two = connect(), connect()
    for _ in range(3):
        node.ask(34, beat("x", "a"), connection=one)
        node.ask(34, beat("y", "b c"), connection=two)
    assert sorted(node.state.groups["g"].subscriptions) == [RETRY, "a", "b", "c"]
    node.proposed.clear()
    one.notified()
    node.ask(34, beat("x", "a"), connection=one)
    node.ask(34, beat("y", "b c"), connection=two)
    assert (node.proposed, one.notified()) == ([], []), "nothing has changed"
    node.ask(34, beat("y", "b", version=2), connection=two)
    assert (sorted(node.state.groups["g"].subscriptions), one.notified()) == ([RETRY, "a", "b"], ["g"])
    two.close()
    node.ask(34, beat("x", "a"), connection=one)
    assert sorted(node.state.groups["g"].subscriptions) == [RETRY, "a"]


def test_a_heartbeat_without_subscriptions_says_nothing_new(node: Any, connect: Any) -> None:
    one, two = connect(), connect()
    node.ask(34, beat("x", "a"), connection=one)
    node.ask(34, beat("y", "b"), connection=two)
    node.ask(34, beat("y", "", withoutSub=True), connection=two)
    assert listed(node)["raftmqWishes"] == [[RETRY, "a"], [RETRY, "b"]]
    node.ask(34, beat("z", "", withoutSub=True), connection=connect())
    assert listed(node) == {"consumerIdList": ["x", "y", "z"]}, "what z wants is not known"
    one.close()
    two.close()
    assert sorted(node.members.consumers["g"].subscriptions) == [RETRY, "a", "b"], "z may want them"


def test_wishes_that_are_too_long_are_not_sent(node: Any, node_with: Any, connect: Any) -> None:
    def joined(where: Any) -> Any:
        for client, topic in (("x", "a"), ("y", "b")):
            where.ask(34, beat(client, topic), connection=connect())
        return where.members.consumers["g"]

    fits = joined(node)
    assert fits.by_topic
    narrow = node_with(bounds={"members": MemberBounds(wishes_bytes=fits.wishes_bytes - 1)})
    narrow.command(Finalize(BY_TOPIC_LEVEL))
    group = joined(narrow)
    assert not group.by_topic
    assert group.unread() == {"a": ["y"], "b": ["x"]}


def test_the_broker_gives_a_member_what_it_would_choose(node: Any, connect: Any) -> None:
    node.ask(34, beat("x", "a"), connection=connect())
    node.ask(34, beat("y", "a b"), connection=connect())

    def given(client: str, topic: str) -> list[int]:
        question = {"topic": topic, "consumerGroup": "g", "clientId": client, "strategyName": "AVG"}
        rows = json.loads(node.ask(400, json.dumps(question).encode()).answer.body)["messageQueueAssignments"]
        return [row["messageQueue"]["queueId"] for row in rows]

    assert [given("x", "a"), given("y", "a"), given("x", "b"), given("y", "b")] == [[0, 1], [2, 3], [], [0, 1, 2, 3]]


WISHES = st.dictionaries(
    st.sampled_from("uvwxyz"), st.sampled_from(("a", "b", "c", "a b", "b c", "a b c")), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(WISHES, min_size=1, max_size=4))
def test_every_queue_of_a_wanted_topic_has_one_reader(steps: list[dict[str, str]]) -> None:
    group = ConsumerGroup()
    for wishes in steps:
        for gone in sorted(set(group.members) - set(wishes)):
            assert group.remove(group.members[gone])
        for name, topics in wishes.items():
            connection: Any = object()
            member = Member(name, connection, "PYTHON", 1)
            member.topics, member.by_topic = frozenset((RETRY, *topics.split())), True
            group.put(member)
        for topic in {RETRY, *" ".join(wishes.values()).split()}:
            divided = group.sharers(topic)
            for queue in range(QUEUES):
                (reader,) = [name for name in wishes if queue in allocate_averagely(divided, name, QUEUES)]
                assert topic in (RETRY, *wishes[reader].split())
                assert reader == owner(queue, QUEUES, sharers(group, topic))
        kept = {member.topics for member in group.members.values()}
        assert set(group.wishes) == kept
        assert sum(count for _, count in group.wishes.values()) == len(group.members)
        assert group.wishes_bytes == sum(consumer_group.wish_bytes(wish) for wish in kept if wish is not None)
