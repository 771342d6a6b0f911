"""Topics and groups made, changed and deleted over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.replication.outcome import Outcome
from statemachine.consuming.consumer_offsets import CommitOffsets
from tests.support.rows import each_row


def put(node: Any, topic: str = "T", **fields: Any) -> Any:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    return node.ask(17, **(ext | fields)).answer


def test_create_and_change_a_topic(node: Any) -> None:
    assert put(node, attributes="+dedup=off,+message.type=FIFO").code == 0
    topic = node.state.topics["T"]
    assert (topic.read_queues, topic.write_queues, topic.perm, topic.order) == (4, 2, 6, False)
    assert topic.attributes == {"dedup": "off", "message.type": "FIFO"}
    assert put(node, readQueueNums=8, order="true", attributes="-message.type").code == 0
    changed = node.state.topics["T"]
    assert (changed.id, changed.read_queues, changed.order, changed.attributes) == (topic.id, 8, True, {"dedup": "off"})


@each_row(
    ("fields", "named"),
    [
        ({"topic": "a b"}, "a b"),
        ({"topic": ""}, "topic"),
        ({"topic": "t" * 128}, "limits.topic_length_max is 127"),
        ({"topic": "TBW102"}, "TBW102"),
        ({"readQueueNums": 0}, "readQueueNums"),
        ({"writeQueueNums": 1025}, "1024"),
        ({"writeQueueNums": None}, "writeQueueNums"),
        ({"perm": 8}, "perm"),
        ({"attributes": "+dedup=maybe"}, "off, retry, strict"),
        ({"attributes": "+dedupe=off"}, 'did you mean "dedup"'),
        ({"attributes": "dedup=off"}, "+name=value"),
        ({"attributes": "+queue.type=BatchCQ"}, "SimpleCQ"),
    ],
)
def test_bad_topics_are_refused(node: Any, fields: dict[str, Any], named: str) -> None:
    answer = put(node, **fields)
    assert answer.code == 29
    assert named in (answer.remark or "")
    assert node.proposed == []


def test_delete_a_topic_also_when_it_is_gone(node: Any) -> None:
    put(node)
    assert [node.ask(215, topic="T").answer.code for _ in range(2)] == [0, 0]
    assert "T" not in node.state.topics


def test_what_is_deleted_leaves_a_trace_of_who_asked(node: Any, connect: Any) -> None:
    put(node)
    asks = connect()
    asks.peer_address = ("fd00::7", 40000)
    for _ in range(2):  # nothing is there to be deleted a second time
        node.ask(215, topic="T")
    assert node.changes == [("topic T", "the topic was deleted, asked for over remoting by 10.9.9.9:40000")]
    node.changes.clear()
    for name, clean in (("kept", "false"), ("swept", "true")):
        node.ask(200, b'{"groupName":"%b"}' % name.encode())
        node.ask(207, connection=asks, groupName=name, cleanOffset=clean)
    by = "asked for over remoting by [fd00::7]:40000"
    assert node.changes == [
        ("group kept", f"the group was deleted without its offsets, {by}"),
        ("group swept", f"the group was deleted with its offsets, {by}"),
    ]


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.FAIL, 14), (Outcome.UNKNOWN, 1)])
def test_outcomes(node: Any, outcome: Outcome, code: int) -> None:
    node.propose_outcome = outcome
    answers = [
        put(node),
        node.ask(215, topic="T").answer,
        node.ask(200, b'{"groupName":"g"}').answer,
        node.ask(207, groupName="g").answer,
    ]
    assert [answer.code for answer in answers] == [code] * 4
    assert all((answer.remark or "").startswith("[UNKNOWN]") == (code == 1) for answer in answers)
    assert node.changes == []


def test_groups(node: Any) -> None:
    body = {"groupName": "g", "consumeEnable": False, "retryMaxTimes": 3, "groupRetryPolicy": {"type": "EXPONENTIAL"}}
    assert node.ask(200, json.dumps(body).encode()).answer.code == 0
    assert node.ask(200, b'{"groupName":"a","groupRetryPolicy":null,"attributes":null,"someday":1}').answer.code == 0
    answer = node.ask(201).answer
    assert answer.ext == {"totalGroupNum": "2"}
    table = json.loads(answer.body)["subscriptionGroupTable"]
    assert table["a"] == {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": "a",
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
    assert (table["g"]["consumeEnable"], table["g"]["retryMaxTimes"]) == (False, 3)
    assert table["g"]["groupRetryPolicy"] == {"type": "EXPONENTIAL"}
    assert [node.ask(207, groupName="g", cleanOffset="true").answer.code for _ in range(2)] == [0, 0]
    assert list(node.state.groups) == ["a"]


@each_row("body", [b"", b"{}", b"[]", b'{"groupName":"a b"}', b'{"groupName":"g","retryMaxTimes":"x"}', b"\xff"])
def test_bad_groups_are_refused(node: Any, body: bytes) -> None:
    assert node.ask(200, body).answer.code == 29
    assert node.proposed == []


def test_what_is_out_of_range_is_answered(node: Any) -> None:
    answer = node.ask(200, b'{"groupName":"g","retryMaxTimes":-5}').answer
    assert answer.code == 29
    assert "retryMaxTimes" in (answer.remark or "")


def test_deleting_offsets_with_the_group(node: Any) -> None:
    put(node)
    node.ask(200, b'{"groupName":"g"}')
    topic_id = node.state.topics["T"].id
    node.command(CommitOffsets([("g", topic_id, 0, 5)]))
    node.ask(207, groupName="g", cleanOffset="true")
    assert node.state.offset("g", topic_id, 0) is None
