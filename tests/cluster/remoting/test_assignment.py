"""The queues that a consumer is told to read (400), and filters that are refused before it starts (46)."""

from __future__ import annotations

import json
from typing import Any

import pytest


def join(node: Any, client: str, group: str = "g") -> None:
    data = {"groupName": group, "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}]}
    node.ask(34, json.dumps({"clientID": client, "consumerDataSet": [data]}).encode())


def assigned(node: Any, client: str, **more: Any) -> Any:
    question = {
        "topic": "T",
        "consumerGroup": "g",
        "clientId": client,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **more,
    }
    return json.loads(node.ask(400, json.dumps(question).encode()).answer.body)["messageQueueAssignments"]


def test_the_answer_is_pull_and_the_client_s_share(node: Any) -> None:
    node.create_topic("T", queues=3)
    for client in ("b", "a"):
        join(node, client)
    name = node.config.cluster.broker_name
    assert assigned(node, "b") == [
        {"messageQueue": {"brokerName": name, "queueId": 2, "topic": "T"}, "mode": "PULL"},
    ]
    assert [row["messageQueue"]["queueId"] for row in assigned(node, "a", strategyName="AVG_BY_CIRCLE")] == [0, 2]
    for model in ("BROADCASTING", 0):
        assert len(assigned(node, "b", messageModel=model)) == 3
    join(node, "x", "%RETRY%"[1:6])
    assert [row["mode"] for row in assigned(node, "a", topic="%RETRY%g")] == ["PULL"]


def test_what_cannot_be_said_changes_nothing_at_the_client(node: Any) -> None:
    node.create_topic("T")
    assert assigned(node, "a") is None, "no member of the group is known"
    join(node, "a")
    assert assigned(node, "a", strategyName="MACHINE_ROOM") is None
    assert assigned(node, "a", topic="U") is None
    assert assigned(node, "stranger") == []
    node.confirms = False
    assert node.ask(400, b'{"topic":"T","consumerGroup":"g"}').answer.code == 14


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"topic":1}', b'{"topic":"T"}', b"\xff", b"[" * 100_000])
def test_bad_bodies_are_refused(node: Any, body: bytes) -> None:
    assert node.ask(400, body).answer.code == 29
    if body:
        assert node.ask(46, body).answer.code in (0, 29)


def test_filters_are_checked_before_a_consumer_starts(node: Any) -> None:
    def check(kind: str | None, text: str = "a > 1") -> tuple[int, str | None]:
        data = {"topic": "T", "subString": text, "expressionType": kind}
        answer = node.ask(46, json.dumps({"clientId": "c", "group": "g", "subscriptionData": data}).encode()).answer
        return answer.code, answer.remark

    assert check("TAG") == check(None) == check("SQL92") == (0, None)
    assert check("SQL92", "a >") == (23, "not an SQL92 filter: at character 4: unexpected end")
    assert check("SQL92", "") == (23, "not an SQL92 filter: at character 1: unexpected end")
    assert check("SQL99") == (1, "The broker does not support consumer to filter message by SQL99")


def test_the_template_topic_has_two_names(node: Any) -> None:
    old, new = (json.loads(node.ask(105, topic=name).answer.body) for name in ("AUTO_CREATE_TOPIC_KEY", "TBW102"))
    assert old == new
    assert old["queueDatas"][0]["perm"] & 1
