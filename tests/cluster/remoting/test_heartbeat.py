"""Heartbeats in the dialects that clients speak, membership, and what of it reaches the log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.broker.filters.subscription import tag_hashes
from cluster.node import node_view
from cluster.replication.outcome import Outcome
from raftlog.types import NodeId
from raftmq_wire.message_format import java_hash
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row

JAVA = {
    "clientID": "10.0.0.9@1#2",
    "consumerDataSet": [
        {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": "g",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                {
                    "classFilterMode": False,
                    "codeSet": [120],
                    "expressionType": "TAG",
                    "subString": "x || y",
                    "subVersion": 1700000000000,
                    "tagsSet": ["x", "y"],
                    "topic": "T",
                }
            ],
            "unitMode": False,
        }
    ],
    "heartbeatFingerprint": 0,
    "producerDataSet": [{"groupName": "p"}],
    "withoutSub": False,
}
CPP = {
    "clientID": "10.0.0.8@1",
    "consumerDataSet": [
        {
            "consumeFromWhere": 4,
            "consumeType": 1,
            "groupName": "g",
            "messageModel": 1,
            "subscriptionDataSet": [{"subString": "x || y", "subVersion": "1700000000000", "topic": "T"}],
        }
    ],
    "producerDataSet": [],
}


def consumer(
    client: str = "c", group: str = "g", version: int = 1, sub: str = "*", topic: str = "T", **more: Any
) -> bytes:
    subscriptions = [{"topic": topic, "subString": sub, "subVersion": version}]
    data = {"groupName": group, "messageModel": more.pop("model", "CLUSTERING"), "subscriptionDataSet": subscriptions}
    return json.dumps({"clientID": client, "consumerDataSet": [data], **more}).encode()


@pytest.mark.parametrize("body", [JAVA, CPP])
def test_dialects(node: Any, body: dict[str, Any]) -> None:
    answer = node.ask(34, json.dumps(body).encode()).answer
    assert (answer.code, answer.ext) == (0, {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})
    group = node.members.consumers["g"]
    assert (group.consume_type, group.message_model, group.consume_from_where) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    assert group.subscriptions["T"] == ("T", "TAG", "x || y", 1700000000000)
    assert node.state.groups["g"].subscriptions == {"T": ("TAG", "x || y", 1700000000000)}
    retry = node.state.topics["%RETRY%g"]
    assert (retry.read_queues, retry.write_queues, retry.perm) == (1, 1, 6)
    assert list(node.members.producers) == (["p"] if body is JAVA else [])


def test_tags_become_java_hashes() -> None:
    assert tag_hashes("x || y") == {java_hash("x"), java_hash("y")}
    assert tag_hashes("TagA") == {2598919}
    assert tag_hashes("*") is tag_hashes("") is tag_hashes(" || ") is None


@each_row(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"clientID":""}',
        b"\xff",
        consumer(group="a b"),
        consumer(group="g" * 121),
        consumer(group=""),
        consumer(model="SOMETIMES"),
        consumer(model=2),
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"subString":"*"}]}]}',
        b"[" * 100_000,
    ],
)
def test_bad_heartbeats_are_refused_and_leave_nothing(node: Any, body: bytes) -> None:
    assert node.ask(34, body).answer.code == 29
    assert node.proposed == []


def test_only_news_is_proposed(node: Any) -> None:
    for _ in range(3):
        node.ask(34, consumer())
    assert [type(command) for command in node.proposed] == [PutGroup, CreateTopic, Subscribe]
    node.proposed.clear()
    node.ask(34, consumer(version=2, sub="x"))
    assert node.proposed == [Subscribe("g", [("T", "TAG", "x", 2)])]
    node.proposed.clear()
    node.ask(34, consumer(client="late", version=1, sub="y"))
    assert node.proposed == [], "an older subscription does not replace a newer one"
    assert node.members.subscription("g", "T").sub_string == "x"
    node.ask(34, consumer(topic="U", version=3))
    both = [("T", "TAG", "x", 2), ("U", "TAG", "*", 3)]
    assert node.proposed == [Subscribe("g", both)], "another member wants T"
    node.proposed.clear()
    node.ask(34, consumer(client="late", topic="U", version=3))
    assert node.proposed == [Subscribe("g", [("U", "TAG", "*", 3)])], "topics that nobody lists go"


def test_an_older_subscription_does_not_win_after_a_restart(node: Any) -> None:
    node.ask(34, consumer(version=5, sub="x"))
    node.members.consumers.clear()
    node.proposed.clear()
    node.ask(34, consumer(client="late", version=4, sub="y"))
    assert node.proposed == []
    assert node.state.groups["g"].subscriptions == {"T": ("TAG", "x", 5)}


def test_a_heartbeat_without_subscriptions_erases_none_after_a_restart(node: Any) -> None:
    node.ask(34, consumer(sub="x"))
    node.members.consumers.clear()
    node.ask(34, consumer(withoutSub=True, heartbeatFingerprint=7))
    assert node.state.groups["g"].subscriptions == {"T": ("TAG", "x", 1)}


def test_a_follower_remembers_and_proposes_nothing(node: Any) -> None:
    node.leader = NodeId(1)
    assert node.ask(34, consumer()).answer.code == 0
    assert node.proposed == []
    assert node.members.consumer_ids("g") == ["c"]
    node.leader = node.node_id
    node.ask(34, consumer())
    assert "g" in node.state.groups


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.UNKNOWN])
def test_a_heartbeat_succeeds_even_if_nothing_can_be_written(node: Any, outcome: Outcome) -> None:
    node.propose_outcome = outcome
    assert node.ask(34, consumer()).answer.code == 0
    node.propose_outcome = Outcome.OK
    node.ask(34, consumer())
    assert "g" in node.state.groups


def test_a_group_is_proposed_once_while_under_way(node: Any) -> None:
    pending: list[Any] = []
    node.propose = lambda run, done: pending.append((run, done))
    first = node.ask(34, consumer())
    second = node.ask(34, consumer(client="d"))
    assert len(pending) == 1
    assert not first.replies, "answered when the log knows the group"
    assert second.answer.code == 0


def test_fingerprints(node: Any, connect: Any) -> None:
    connection = connect()

    def beat(**fields: Any) -> str:
        return node.ask(34, consumer(**fields), connection=connection).answer.ext["IS_SUB_CHANGE"]

    assert beat(withoutSub=True, heartbeatFingerprint=7) == "true", "this node does not know the subscriptions"
    assert beat(withoutSub=True, heartbeatFingerprint=7) == "true"
    assert [type(command) for command in node.proposed] == [PutGroup, CreateTopic]
    assert beat(heartbeatFingerprint=7) == "true"
    assert beat(heartbeatFingerprint=7) == "false"
    assert beat(heartbeatFingerprint=7, withoutSub=True, sub="ignored") == "false"
    assert node.members.subscription("g", "T").sub_string == "*"
    assert beat(heartbeatFingerprint=8, version=2) == "true"
    assert beat(heartbeatFingerprint=0) == "true"


def test_members_of_a_group_are_told_of_changes(node: Any, connect: Any) -> None:
    one, two, other = connect(), connect(), connect()
    node.ask(34, consumer("c1"), connection=one)
    node.ask(34, consumer("x", group="other"), connection=other)
    assert (one.notified(), other.notified()) == (["g"], ["other"])
    node.ask(34, consumer("c2"), connection=two)
    assert (one.notified(), two.notified(), other.notified()) == (["g"], ["g"], [])
    node.ask(34, consumer("c1"), connection=one)
    assert (one.notified(), two.notified()) == ([], []), "nothing changed"
    node.ask(34, consumer("c1", version=2, sub="x"), connection=one)
    assert (one.notified(), two.notified()) == (["g"], ["g"])
    node.ask(35, connection=one, clientID="c1", consumerGroup="g", producerGroup="")
    assert (one.notified(), two.notified()) == ([], ["g"])
    node.ask(34, consumer("c1"), connection=one)
    two.notified()
    one.close()
    assert two.notified() == ["g"]
    assert node.members.consumer_ids("g") == ["c2"]


def test_broadcasting_groups_are_not_told(node: Any, connect: Any) -> None:
    connection = connect()
    node.ask(34, consumer("c1", model="BROADCASTING"), connection=connection)
    node.ask(34, consumer("c2", model=0), connection=connection)
    assert connection.notified() == []


def test_a_reconnected_client_survives_the_end_of_its_old_connection(node: Any, connect: Any) -> None:
    old, new = connect(), connect()
    node.ask(34, consumer("c"), connection=old)
    node.ask(34, consumer("c"), connection=new)
    assert new.notified() == ["g"]
    old.close()
    assert node.members.consumer_ids("g") == ["c"]
    new.close()
    assert node.members.consumer_ids("g") == []


def test_silence_expires(node: Any, connect: Any) -> None:
    connection = connect()
    node.ask(34, consumer("silent", producerDataSet=[{"groupName": "p"}]))
    node.ask(34, consumer("alive"), connection=connection)
    for _ in range(4):
        node.advance(30_000)
        node.ask(34, consumer("alive"), connection=connection)
    connection.notified()
    assert node.members.consumer_ids("g") == ["alive", "silent"]
    node.advance(11_000)
    assert node.members.consumer_ids("g") == ["alive"]
    assert node.members.producers == {}
    assert connection.notified() == ["g"]
    node.advance(300_000)
    assert node.members.consumers == {}
    assert node.timers == 0


def test_consumer_list(node: Any) -> None:
    for client in ("b", "c", "a"):
        node.ask(34, consumer(client))
    assert node.ask(38, consumerGroup="g").answer.body == b'{"consumerIdList":["a","b","c"]}'
    answer = node.ask(38, consumerGroup="nobody").answer
    assert (answer.code, "nobody" in (answer.remark or "")) == (1, True)
    node.confirms = False
    assert node.ask(38, consumerGroup="g").answer.code == 14


def test_a_group_that_reads_by_broadcasting_is_known_by_its_members(node: Any, connect: Any) -> None:
    assert not node_view.broadcasts(node.members, "g")
    for model in ("CLUSTERING", "BROADCASTING"):
        node.ask(34, consumer("c1", model=model), connection=connect("broker"))
        assert node_view.broadcasts(node.members, "g") is (model == "BROADCASTING")
