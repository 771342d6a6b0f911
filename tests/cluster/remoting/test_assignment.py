"""The queues that a consumer is told to read (400), and filters that are refused before it starts (46)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.broker.groups.assignment import own_place, owner
from cluster.broker.groups.other_members import FRESH_MS
from cluster.placement.group_map import Epoch, GroupMember, GroupRecord
from cluster.runtime.peer_frames import Kind
from statemachine.topics.topics import CreateTopic
from tests.cluster.remoting.test_other_members import answer
from tests.support.rows import each_row


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


class TestTopicsOfTwoGroups:
    """The leader of either group gives the shares that the client would choose by all queues and all members."""

    @pytest.fixture
    def two(self, two: Any) -> Any:
        two.other_groups = {
            2: GroupRecord(2, "raftmq-g02", Epoch(1, 1), 1, [GroupMember(1, "10.0.0.9", 9, "", {})], [], 14)
        }
        two.command(CreateTopic({"name": "T", "place": [[1, 3, 3], [2, 2, 2]]}, False))
        return two

    @staticmethod
    def ask(node: Any, client: str, **more: Any) -> Any:
        question = {"topic": "T", "consumerGroup": "g", "clientId": client, **more}
        return node.ask(400, json.dumps(question).encode())

    @staticmethod
    def places(request: Any) -> list[tuple[str, int]] | None:
        rows = json.loads(request.answer.body)["messageQueueAssignments"]
        found = [row["messageQueue"] for row in rows or ()]
        return None if rows is None else [(each["brokerName"], each["queueId"]) for each in found]

    def test_the_queues_of_both_are_divided_among_all_that_either_has_heard_of(self, two: Any) -> None:
        own = two.config.cluster.broker_name
        join(two, "m")
        asked = self.ask(two, "m")
        assert two.group_links.sent == [(2, Kind.MEMBERS, [1, "g"], b"")]
        assert asked.replies == []
        answer(two, 1, ["a", "m"])
        assert self.places(asked) == [("raftmq-g02", 0), ("raftmq-g02", 1)], own
        asked = self.ask(two, "only-there", strategyName="AVG_BY_CIRCLE")
        answer(two, 2, ["a", "only-there"])
        assert self.places(asked) == [(own, 2)], "third of three"
        two.advance(FRESH_MS)
        join(two, "n")
        assert self.places(self.ask(two, "m")) == [(own, 0), (own, 1), (own, 2)]
        assert len(two.group_links.sent) == 2
        assert len(self.places(self.ask(two, "m", messageModel="BROADCASTING")) or ()) == 5

    def test_without_the_other_nothing_changes(self, two: Any) -> None:
        join(two, "m")
        two.group_links.is_open = False
        assert self.places(self.ask(two, "m")) is None
        two.advance(FRESH_MS)
        two.other_groups = {}
        assert self.places(self.ask(two, "m")) is None, "the name of the other group is not known"

    def test_the_owner_of_a_queue_is_who_gets_it(self, two: Any) -> None:
        clients: list[str | None] = ["a", "b"]
        owners = [owner(*own_place(two, "T", queue), clients) for queue in range(4)]
        assert owners == ["a", "a", "a", None]
        two.other_groups[2] = replace(two.other_groups[2], name="a-before-it")
        assert [owner(*own_place(two, "T", queue), clients) for queue in range(3)] == ["a", "b", "b"]


@each_row("body", [b"", b"[]", b"{", b'{"topic":1}', b'{"topic":"T"}', b"\xff", b"[" * 100_000])
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
