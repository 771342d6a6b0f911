"""Request and reply: a reply is pushed to the client that asked, and the replier hears what became of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.broker.services import ClientAnswer
from raftmq_wire.properties import parse_properties

LONG = {
    "producerGroup": "repliers",
    "topic": "DefaultCluster_REPLY_TOPIC",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 1,
    "bornTimestamp": 1_700_000_000_000,
    "flag": 7,
    "properties": "MSG_TYPE\1reply\2REPLY_TO_CLIENT\1asker\2CORRELATION_ID\1c-1\2TTL\x013000",
    "reconsumeTimes": 0,
    "unitMode": "false",
    "batch": "false",
}
LETTERS = dict(zip("abcdefghijkm", LONG.values(), strict=True))


@pytest.fixture
def asker(node: Any, connect: Any) -> Any:
    """The connection of a client that waits for replies."""
    connection = connect()
    body = json.dumps({"clientID": "asker", "producerDataSet": [{"groupName": "askers"}]}).encode()
    assert node.ask(34, body, connection).answer.code == 0
    return connection


@pytest.mark.parametrize(("code", "ext"), [(324, LONG), (325, LETTERS)])
def test_a_reply_is_pushed_to_who_asked(node: Any, asker: Any, code: int, ext: dict[str, Any]) -> None:
    request = node.ask(code, b"the reply", **ext)
    ((pushed, ended),) = asker.calls
    assert (pushed.code, pushed.body, pushed.oneway) == (326, b"the reply", False)
    named = dict(pushed.ext)
    properties = parse_properties(named.pop("properties"))
    assert properties == {
        "MSG_TYPE": "reply",
        "REPLY_TO_CLIENT": "asker",
        "CORRELATION_ID": "c-1",
        "TTL": "3000",
        "PUSH_REPLY_TIME": named["storeTimestamp"],
    }
    assert named == {
        "producerGroup": "repliers",
        "topic": "DefaultCluster_REPLY_TOPIC",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "1",
        "bornTimestamp": "1700000000000",
        "flag": "7",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "10.9.9.9:40000",
        "storeHost": "10.0.0.2:10911",
        "storeTimestamp": str(node.state.applied_mark.timestamp_ms),
    }
    assert not request.replies
    ended(ClientAnswer(0))
    assert request.answer.code == 0
    assert request.answer.ext["msgId"] == request.answer.ext["queueOffset"] == "0"


@pytest.mark.parametrize(
    ("changes", "body", "code"),
    [
        ({"properties": "REPLY_TO_CLIENT\1nobody\2"}, b"", 1),
        ({"properties": "MSG_TYPE\1reply\2"}, b"", 13),
        ({"properties": ""}, b"", 13),
        ({"properties": "REPLY_TO_CLIENT\1asker\2P\1" + "x" * 40_000}, b"", 13),
        ({}, bytes((4 << 20) + 1), 13),
        ({"sysFlag": "many"}, b"", 29),
        ({"topic": None}, b"", 29),
    ],
)
def test_what_is_not_pushed(node: Any, asker: Any, changes: dict[str, Any], body: bytes, code: int) -> None:
    assert node.ask(324, body, **{**LONG, **changes}).answer.code == code
    assert not asker.calls


def test_a_requester_that_refuses_or_goes(node: Any, asker: Any) -> None:
    refused, lost, silent = (node.ask(324, **LONG) for _ in range(3))
    (_, first), (_, second), _ = asker.calls
    first(ClientAnswer(1, "unknown correlation id"))
    second(None)
    assert refused.answer.code == lost.answer.code == 1
    assert "unknown correlation id" in refused.answer.remark
    node.advance(10_000)
    assert silent.answer.code == 1


def test_the_topic_of_replies_has_a_route_and_is_not_stored(node: Any) -> None:
    name = f"{node.config.cluster.name}_REPLY_TOPIC"
    body = json.loads(node.ask(105, topic=name).answer.body)
    assert sum(row["writeQueueNums"] for row in body["queueDatas"] if row["perm"] & 2) >= 1
    assert name not in node.state.topics
