"""The answers that mqadmin prints of consumers: the connected clients (203), a group's progress (208), a topic's
readers (300)."""

from __future__ import annotations

import json
import re
from typing import Any

from cluster.runtime.request_limits import ANSWER_QUEUES_MAX
from raftlog.types import NodeId
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup


def join(node: Any, client: str, group: str = "g", topic: str = "T", language: str = "CPP") -> None:
    data = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}]}
    body = json.dumps({"clientID": client, "consumerDataSet": [data]}).encode()
    node.ask(34, body, language=language)


def stats(node: Any, **fields: Any) -> dict[tuple[str, int], tuple[int, int, int]]:
    """(topic, queue) -> (broker offset, consumer offset, last time)."""
    answer = node.ask(208, **{"consumerGroup": "g", **fields}).answer
    assert answer.code == 0, answer
    text = answer.body.decode()
    assert text.startswith('{"consumeTps":0.0,"offsetTable":{')
    rows = re.findall(r"(\{[^{}]*\}):(\{[^{}]*\})", text)
    found = {}
    for key, value in ((json.loads(key), json.loads(value)) for key, value in rows):
        assert key["brokerName"] == node.config.cluster.broker_name
        found[key["topic"], key["queueId"]] = value["brokerOffset"], value["consumerOffset"], value["lastTimestamp"]
    return found


def test_how_far_a_group_is(node: Any) -> None:
    node.create_topic("T", queues=2)
    node.create_topic("U", queues=1)
    join(node, "a")
    stored_at = node.now_ms
    node.store("T", b"a", b"b", b"c")
    node.store("U", b"a")
    node.command(CommitOffsets([("g", node.state.topics["T"].id, 0, 2)]))
    assert stats(node) == {("T", 0): (3, 2, stored_at), ("T", 1): (0, 0, 0)}
    node.command(CommitOffsets([("g", node.state.topics["U"].id, 0, 1)]))
    assert stats(node)["U", 0] == (1, 1, stored_at), "read without a subscription"
    assert stats(node, topic="U") == {("U", 0): (1, 1, stored_at)}
    assert stats(node, topic="V") == {}


def test_a_group_that_never_committed_is_behind_by_all_there_is(node: Any) -> None:
    node.create_topic("T", queues=1)
    join(node, "a")
    node.store("T", b"a", b"b")
    assert stats(node) == {("T", 0): (2, 0, 0)}
    node.state.min_offset = lambda topic_id, queue_id: 1
    assert stats(node) == {("T", 0): (2, 1, 0)}, "what was trimmed is not ahead of it"


def test_a_commit_on_its_way_counts(node: Any) -> None:
    node.create_topic("T", queues=1)
    join(node, "a")
    node.store("T", b"a")
    node.ask(15, oneway=True, consumerGroup="g", topic="T", queueId=0, commitOffset=1)
    assert stats(node)["T", 0][:2] == (1, 1)


def test_unknown_groups_and_too_many_queues(node: Any) -> None:
    assert node.ask(208, consumerGroup="g").answer.code == 26
    assert node.ask(208, consumerGroup="a b").answer.code == 29
    assert node.ask(208).answer.code == 29
    node.create_topic("T", queues=ANSWER_QUEUES_MAX + 1)
    join(node, "a")
    answer = node.ask(208, consumerGroup="g").answer
    assert (answer.code, "ask for one topic" in (answer.remark or "")) == (1, True)


def test_who_is_connected_and_for_what(node: Any) -> None:
    assert node.ask(203, consumerGroup="g").answer.code == 206
    node.create_topic("T")
    join(node, "b", language="KLINGON")
    join(node, "a")
    node.leader = NodeId(1)
    told = json.loads(node.ask(203, consumerGroup="g").answer.body)
    assert [(row["clientId"], row["clientAddr"], row["language"], row["version"]) for row in told["connectionSet"]] == [
        ("a", "10.9.9.9:40000", "CPP", 401),
        ("b", "10.9.9.9:40000", "OTHER", 401),
    ]
    assert (told["consumeType"], told["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert told["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert told["subscriptionTable"]["T"]["subString"] == "*"


def test_who_reads_a_topic(node: Any) -> None:
    node.create_topic("T")
    node.create_topic("U")
    join(node, "a", "subscribed")
    node.command(PutGroup({"name": "by-offset"}, True))
    node.command(PutGroup({"name": "neither"}, True))
    node.command(CommitOffsets([("by-offset", node.state.topics["T"].id, 0, 0)]))
    assert json.loads(node.ask(300, topic="T").answer.body) == {"groupList": ["by-offset", "subscribed"]}
    assert json.loads(node.ask(300, topic="U").answer.body) == {"groupList": []}
    assert node.ask(300, topic="V").answer.code == 17
    node.confirms = False
    assert node.ask(300, topic="T").answer.code == 14
