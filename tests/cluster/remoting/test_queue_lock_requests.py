"""41 and 42: what clients are granted and told, and how little of it becomes an entry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.replication.outcome import Outcome
from cluster.runtime.environment import LOCK_TTL_MS
from cluster.wire.codes import ResponseCode
from raftlog.types import NodeId
from statemachine.commands import LOCKS_LEVEL
from statemachine.queue_locks import QUEUES_MAX

FRESH_MS = 50_000


def body(client: str, *queues: int, group: str = "g", topic: str = "T", broker: str = "b-0") -> bytes:
    rows = [{"topic": topic, "brokerName": broker, "queueId": queue} for queue in queues]
    return json.dumps(
        {"consumerGroup": group, "clientId": client, "mqSet": rows, "onlyThisBroker": False, "new field": 1}
    ).encode()


def lock(node: Any, client: str, *queues: int, **more: Any) -> Any:
    answer = node.ask(41, body(client, *queues, **more)).answer
    assert answer.code == 0, answer.remark
    return [row["queueId"] for row in json.loads(answer.body)["lockOKMQSet"]]


@pytest.fixture
def ordered(node: Any) -> Any:
    node.create_topic("T", queues=4)
    return node


def test_one_client_holds_a_queue_and_the_others_are_told_so(ordered: Any) -> None:
    assert lock(ordered, "a", 0, 1) == [0, 1]
    assert lock(ordered, "b", 0, 1, 2) == [2]
    assert lock(ordered, "a", 0, 1, 2) == [0, 1]
    ordered.advance(LOCK_TTL_MS)
    assert lock(ordered, "b", 0, 1, 2) == [0, 1, 2]
    assert lock(ordered, "a", 0, 1, 2) == []


def test_queues_are_named_as_the_client_named_them(ordered: Any) -> None:
    answer = ordered.ask(41, body("a", 3, broker="broker-b")).answer
    assert json.loads(answer.body) == {"lockOKMQSet": [{"topic": "T", "queueId": 3, "brokerName": "broker-b"}]}


def test_what_is_held_for_long_and_what_others_hold_costs_no_entry(ordered: Any) -> None:
    lock(ordered, "a", 0)
    assert [command[0] for command in ordered.proposed] == ["raise_level", "put_group", "lock_queues"]
    ordered.proposed.clear()
    ordered.advance(LOCK_TTL_MS - FRESH_MS - 1)
    assert lock(ordered, "a", 0) == [0]
    assert lock(ordered, "b", 0) == []
    assert ordered.proposed == []
    ordered.advance(1)
    assert lock(ordered, "a", 0) == [0]
    assert [command[0] for command in ordered.proposed] == ["lock_queues"]
    ordered.advance(LOCK_TTL_MS - 1)
    assert lock(ordered, "b", 0) == [], "it was refreshed"


def test_unknown_topics_and_queues_are_not_granted(ordered: Any) -> None:
    assert lock(ordered, "a", 0, topic="Nowhere") == []
    assert lock(ordered, "a", 4, 0) == [0]
    assert lock(ordered, "b") == []
    assert ordered.state.locks_of_group("g").keys() == {(ordered.state.topics["T"].id, 0)}


def test_a_client_gives_up_what_it_holds_and_nothing_else(ordered: Any) -> None:
    lock(ordered, "a", 0, 1)
    ordered.proposed.clear()
    assert ordered.ask(42, body("b", 0)).answer.code == 0
    assert ordered.proposed == []
    assert ordered.ask(42, body("a", 0, 3)).answer.code == 0
    assert lock(ordered, "b", 0, 1) == [0]


def test_an_orderly_leave_hands_the_queues_over(ordered: Any) -> None:
    lock(ordered, "a", 0, 1)
    lock(ordered, "a", 2, group="h")
    ordered.ask(35, clientID="a", consumerGroup="g")
    assert lock(ordered, "b", 0, 1) == [0, 1]
    assert lock(ordered, "b", 2, group="h") == [], "it left one group only"


def test_nothing_is_granted_while_a_member_could_not_apply_it(ordered: Any) -> None:
    ordered.old_member = NodeId(3)
    answer = ordered.ask(41, body("a", 0)).answer
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "node 3" in answer.remark
    assert ordered.proposed == []
    ordered.old_member = NodeId(0)
    assert lock(ordered, "a", 0) == [0]
    assert ordered.state.level == LOCKS_LEVEL


def test_a_leader_that_nobody_confirms_grants_nothing(ordered: Any) -> None:
    lock(ordered, "a", 0)
    ordered.confirms = False
    assert ordered.ask(41, body("a", 0)).answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("outcome", "code", "says"),
    [(Outcome.FAIL, ResponseCode.SERVICE_NOT_AVAILABLE, ""), (Outcome.UNKNOWN, ResponseCode.SYSTEM_ERROR, "[UNKNOWN]")],
)
def test_what_is_not_decided_is_not_granted(ordered: Any, outcome: Outcome, code: int, says: str) -> None:
    ordered.propose_outcome = outcome
    answer = ordered.ask(41, body("a", 0)).answer
    assert answer.code == code
    assert answer.remark.startswith(says)


BAD = {
    "no body": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "no client": b'{"consumerGroup":"g","clientId":"","mqSet":[]}',
    "no group": b'{"clientId":"a","mqSet":[]}',
    "bad group": b'{"consumerGroup":"g g","clientId":"a","mqSet":[]}',
    "no name": b'{"consumerGroup":"","clientId":"a","mqSet":[]}',
    "negative queue": body("a", -1),
    "queue of 2^40": body("a", 1 << 40),
    "long client": body("a" * 513, 1),
    "long topic": body("a", 1, topic="T" * 257),
    "many queues": body("a", *range(QUEUES_MAX + 1)),
    "deep": b'{"consumerGroup":"g","clientId":"a","mqSet":' + b"[" * 20_000,
}


@pytest.mark.parametrize("code", [41, 42])
@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad_bodies_are_refused(ordered: Any, code: int, data: bytes) -> None:
    assert ordered.ask(code, data).answer.code == ResponseCode.INVALID_PARAMETER
    assert ordered.proposed == []
