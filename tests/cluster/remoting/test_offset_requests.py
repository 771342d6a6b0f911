"""Consumer offsets and queue bounds over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.broker.groups.group_offsets import YOUNG_MS
from cluster.replication.outcome import Outcome
from raftmq_wire.topic_identity import IDENTITY_FIELD, TopicIdentity, parse_identity, why_another
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.removal_slices import DeleteTopic


@pytest.fixture
def topic(node: Any) -> Any:
    """Topic T with 4 queues, queue 0 holding 3 messages, and group g."""
    node.create_topic("T")
    node.command(PutGroup({"name": "g"}, False))
    for time_ms in (1_000_000, 1_000_010, 1_000_020):
        node.now_ms = time_ms
        node.store("T", b"m")
    return node.state.topics["T"]


def query(node: Any, group: str = "g", topic: str = "T", queue: int = 0, **more: Any) -> Any:
    return node.ask(14, consumerGroup=group, topic=topic, queueId=queue, **more)


def found(node: Any, **more: Any) -> str:
    """The committed offset of T, whose identity stands beside it."""
    ext = query(node, **more).answer.ext
    assert ext == {"offset": ext["offset"], **node.topic_identity("T")}
    return str(ext["offset"])


def update(
    node: Any, offset: int, group: str = "g", topic: str = "T", queue: int = 0, oneway: bool = False, **more: Any
) -> Any:
    return node.ask(15, oneway=oneway, consumerGroup=group, topic=topic, queueId=queue, commitOffset=offset, **more)


def test_query_table(node: Any, topic: Any) -> None:
    assert found(node) == "0", "the first message is there"
    assert query(node, setZeroIfNotFound="false").answer.code == 22
    assert query(node, queue=1).answer.code == 22, "no first message"
    assert query(node, topic="U").answer.code == 22
    assert query(node, queue=99).answer.code == 22
    node.state.min_offset = lambda topic_id, queue_id: 1
    assert query(node).answer.code == 22, "the first message is gone"
    node.command(CommitOffsets([("g", topic.id, 0, 2), ("g", topic.id, 1, 0)]))
    assert found(node) == "2"
    assert found(node, queue=1) == "0"
    assert query(node, group="other").answer.code == 22


def test_a_queue_that_has_been_there_for_long_is_not_read_from_its_beginning(node: Any, topic: Any) -> None:
    node.now_ms = 1_000_000 + YOUNG_MS - 1
    assert found(node) == "0"
    node.now_ms += 1
    assert query(node).answer.code == 22, "the client's ConsumeFromWhere decides"


def test_a_group_that_begins_at_a_time_looks_for_the_offset_itself(node: Any, topic: Any) -> None:
    consumer = {"groupName": "g", "consumeFromWhere": "CONSUME_FROM_TIMESTAMP", "subscriptionDataSet": []}
    node.ask(34, json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode())
    assert query(node).answer.code == 22
    assert found(node, group="other") == "0"


def test_query_is_held_while_no_leader_confirms(node: Any, topic: Any) -> None:
    node.confirms = False
    request = query(node)
    node.advance(2_000)
    assert not request.replies
    node.confirms = True
    node.advance(100)
    assert request.answer.ext["offset"] == "0"


def test_query_is_never_answered_with_an_error_while_leaderless(node: Any, topic: Any, connect: Any) -> None:
    node.confirms = False
    request, gone = query(node), connect()
    query(node, connection=gone)
    gone.close()
    node.advance(60_000)
    assert request.replies == []
    assert node.timers == 0, "nobody asks for ever"


def test_two_way_updates_are_answered_after_they_are_applied(node: Any, topic: Any) -> None:
    pending: list[Any] = []
    propose = node.propose
    node.propose = lambda run, done: pending.append((run, done))
    request = update(node, 2)
    assert not request.replies
    propose(*pending.pop())
    assert request.answer.code == 0
    assert node.state.offset("g", topic.id, 0) == 2


@pytest.mark.parametrize(
    ("outcome", "code", "remark"), [(Outcome.FAIL, 14, "as"), (Outcome.UNKNOWN, 1, "[UNKNOWN] as")]
)
def test_update_outcomes(node: Any, topic: Any, outcome: Outcome, code: int, remark: str) -> None:
    node.propose_outcome = outcome
    answer = update(node, 2).answer
    assert answer.code == code
    assert (answer.remark or "").startswith(remark)


def test_oneway_updates_are_coalesced(node: Any, topic: Any) -> None:
    assert update(node, 2, oneway=True).replies == []
    assert node.later == [("g", topic.id, 0, 2)]
    assert node.proposed == []


def test_updates_that_make_no_sense(node: Any, topic: Any) -> None:
    assert update(node, -1).answer.code == 0
    assert update(node, -1, group="other").answer.code == 0
    assert update(node, 1, group="other").answer.code == 26
    assert update(node, 1, topic="U").answer.code == 17
    assert update(node, 1, queue=4).answer.code == 29
    assert node.ask(15, consumerGroup="g", topic="T", queueId=0).answer.code == 29
    assert node.proposed == []
    assert node.later == []


def test_a_topic_deleted_while_its_offset_is_under_way(node: Any, topic: Any) -> None:
    propose = node.propose

    def delete_first(run: Any, done: Any) -> None:
        node.command(DeleteTopic("T"))
        propose(run, done)

    node.propose = delete_first
    assert update(node, 1).answer.code == 17


def test_bounds(node: Any, topic: Any) -> None:
    def ask(code: int, queue: int = 0, **more: Any) -> dict[str, str]:
        return node.ask(code, topic="T", queueId=queue, **more).answer.ext

    counted = {IDENTITY_FIELD: node.topic_identity("T")[IDENTITY_FIELD]}
    assert ask(30) == {"offset": "3", **counted}
    assert ask(31) == {"offset": "0", **counted}
    assert ask(30, queue=3) == {"offset": "0", **counted}
    assert ask(32) == {"timestamp": "1000000", **counted}
    assert ask(32, queue=3) == {"timestamp": "-1", **counted}
    assert ask(29, timestamp=1_000_001) == {"offset": "1", **counted}
    assert ask(29, timestamp=1_000_010) == {"offset": "1", **counted}
    assert ask(29, timestamp=1_000_019, boundaryType="UPPER") == {"offset": "1", **counted}
    assert ask(29, timestamp=1_000_021) == {"offset": "3", **counted}


@pytest.mark.parametrize("code", [29, 30, 31, 32])
def test_bounds_refusals(node: Any, topic: Any, code: int) -> None:
    assert node.ask(code, topic="U", queueId=0, timestamp=0).answer.code == 17
    assert node.ask(code, topic="T", queueId=4, timestamp=0).answer.code == 29
    assert node.ask(code, topic="T", timestamp=0).answer.code == 29
    node.confirms = False
    assert node.ask(code, topic="T", queueId=0, timestamp=0).answer.code == 14


def test_a_query_sees_the_oneway_commit_before_it(node: Any, topic: Any) -> None:
    update(node, 2, oneway=True)
    assert node.state.offset("g", topic.id, 0) is None, "it gathers first"
    assert found(node) == "2"


def test_a_topic_made_again_has_another_identity(node: Any, topic: Any) -> None:
    """The clients keep it with offsets, which mean nothing in the new topic of the same name."""

    def identities() -> set[TopicIdentity]:
        update(node, 0)
        asked = {"topic": "T", "queueId": 0, "consumerGroup": "g", "timestamp": 0}
        told = [node.ask(code, **asked).answer.ext for code in (14, 29, 30, 31, 32, 351)]
        return {parse_identity(ext[IDENTITY_FIELD]) for ext in told}

    (first,) = identities()
    node.command(DeleteTopic("T"))
    node.create_topic("T")
    (second,) = identities()
    assert second == first._replace(topic_id=first.topic_id + 1)
    assert why_another(first, second)


@pytest.mark.parametrize("oneway", [False, True])
def test_an_offset_of_a_topic_that_is_gone_is_not_committed(node: Any, topic: Any, oneway: bool) -> None:
    counted = node.topic_identity("T")
    assert update(node, 2, **counted).answer.code == 0
    node.command(DeleteTopic("T"))
    node.create_topic("T")
    again, proposed = node.topic_identity("T"), len(node.proposed)
    late = update(node, 3, oneway=oneway, **counted).answer
    assert (late.code, late.remark.startswith("offset 3 means nothing in topic T: it counts in the topic")) == (
        17,
        True,
    )
    assert (node.proposed[proposed:], node.later) == ([], [])
    assert update(node, 1, **again).answer.code == 0
    newer = parse_identity(again[IDENTITY_FIELD])
    behind = newer._replace(topic_id=newer.topic_id + 1)
    assert update(node, 1, raftmqTopicId=behind).answer.code == 14, "this node has not seen it yet"
    assert update(node, 1, raftmqTopicId="T").answer.code == 29
    elsewhere = newer._replace(cluster="00000000-0000-0000-0000-000000000000", topic_id=newer.topic_id + 1)
    assert update(node, 1, raftmqTopicId=elsewhere).answer.code == 17
