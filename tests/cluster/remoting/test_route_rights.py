"""The needs of requests: a row for each code, and no row that a client can talk its way around."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.broker.refusal import Refused
from cluster.requests.judge import needs_of
from cluster.requests.table import SENT_BY_NODES, SUPERS_ALONE, VERBS
from raftmq_wire.codes import RequestCode
from statemachine.access.rules import Action, Need
from tests.support.rows import each_row


def told(code: int, body: Any = b"", **ext: str) -> list[str] | None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    needs = needs_of(code, ext, data, "C")
    return None if needs is None else [str(need) for need in needs]


def test_every_code_has_a_row_or_is_for_a_super_alone() -> None:
    assert {*RequestCode} - VERBS.keys() == SENT_BY_NODES.keys(), "sent by a node, never to one"
    assert {RequestCode(code).name[:5] for code in SUPERS_ALONE} == {"AUTH_", "SET_A"}
    assert told(25) is None, "a code that nobody handles"
    assert told(318) is None


@each_row(
    ("code", "fields", "needs"),
    [
        (10, {"topic": "T", "producerGroup": "p"}, ["Pub on Topic:T"]),
        (310, {"b": "T", "a": "p"}, ["Pub on Topic:T"]),
        (310, {"b": "%RETRY%g", "a": "another"}, ["Sub on Group:g"]),
        (320, {"b": "T"}, ["Pub on Topic:T"]),
        (11, {"topic": "T", "consumerGroup": "g"}, ["Sub on Topic:T", "Sub on Group:g"]),
        (11, {"topic": "%RETRY%g", "consumerGroup": "g"}, ["Sub on Group:g", "Sub on Group:g"]),
        (361, {"topic": "%DLQ%g", "consumerGroup": "h"}, ["Sub on Group:g", "Sub on Group:h"]),
        (14, {"topic": "T", "consumerGroup": "g"}, ["Sub or Get on Topic:T", "Sub or Get on Group:g"]),
        (15, {"topic": "T", "consumerGroup": "g"}, ["Sub or Update on Topic:T", "Sub or Update on Group:g"]),
        (35, {"producerGroup": "p"}, []),
        (35, {"consumerGroup": "g"}, ["Pub or Sub on Group:g"]),
        (36, {"group": "g", "originTopic": "T"}, ["Sub on Group:g"]),
        (37, {"topic": "T"}, []),
        (105, {"topic": "T"}, ["Pub or Sub or Get on Topic:T"]),
        (105, {"topic": "TBW102"}, []),
        (33, {"topic": "T"}, []),
        (206, {}, ["List on Cluster:C"]),
        (100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}, ["Update on Topic:T"]),
        (101, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}, ["Pub or Sub or Get on Topic:T"]),
        (102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}, ["Update on Topic:T"]),
        (324, {"topic": "T"}, ["Pub on Topic:C_REPLY_TOPIC"]),
        (325, {"b": "T"}, ["Pub on Topic:C_REPLY_TOPIC"]),
        (215, {"topic": "T"}, ["Delete on Topic:T"]),
        (222, {"topic": "T", "group": "g"}, ["Update on Topic:T", "Update on Group:g"]),
    ],
)
def test_rows(code: int, fields: dict[str, str], needs: list[str]) -> None:
    assert told(code, **fields) == needs


def test_a_heartbeat_needs_every_group_and_topic_in_it() -> None:
    consumers = [{"groupName": "g", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%g"}]}, {"groupName": "h"}]
    body = {"clientID": "c", "consumerDataSet": consumers, "producerDataSet": [{"groupName": "p"}]}
    assert told(34, body) == ["Sub on Group:g", "Sub on Topic:T", "Sub on Group:g", "Sub on Group:h"]
    assert told(34, {"clientID": "c", "producerDataSet": [{"groupName": "p"}]}) == []


def test_locks_and_assignments_are_about_what_their_bodies_name() -> None:
    queues = [{"topic": "T", "brokerName": "b", "queueId": number} for number in range(3)]
    body = {"consumerGroup": "g", "clientId": "c", "mqSet": queues}
    assert told(41, body) == told(42, body) == ["Sub on Group:g", "Sub on Topic:T"]
    assert told(400, {"topic": "T", "consumerGroup": "g"}) == ["Sub on Topic:T", "Sub on Group:g"]


@each_row("code", [34, 41, 42, 200, 400])
@each_row("body", [b"", b"{", b"[]", b'{"consumerDataSet":5,"mqSet":5,"topic":[],"groupName":[]}', b"\xff"])
def test_a_body_that_cannot_be_read_is_refused(code: int, body: bytes) -> None:
    with pytest.raises(Refused):
        needs_of(code, {}, body, "C")


def test_needs_are_compared_by_what_they_say() -> None:
    (one,), (other,) = (
        needs_of(10, {"topic": "T"}, b"", "C") or (),
        needs_of(310, {"b": "T"}, b"", "C") or (),
    )
    assert isinstance(one, Need)
    assert one == other


@pytest.mark.parametrize(
    ("count", "why"), [(3_000, "names more than 2048 topics and groups"), (20_000, "objects, 5000 are allowed")]
)
@pytest.mark.parametrize("code", [RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ])
def test_what_names_very_much_is_refused_before_it_is_judged(code: RequestCode, count: int, why: str) -> None:
    topics = [{"topic": f"t{number}", "queueId": 0} for number in range(count)]
    body = {"consumerGroup": "g", "mqSet": topics}
    if code == RequestCode.HEART_BEAT:
        body = {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": topics}]}
    with pytest.raises(Refused, match=why):
        told(code, body)


@pytest.mark.parametrize(
    ("code", "body", "ext"),
    [
        (RequestCode.HEART_BEAT, {"consumerDataSet": [{"groupName": "g" * 257}]}, {}),
        (RequestCode.LOCK_BATCH_MQ, {"consumerGroup": "g", "mqSet": [{"topic": "t" * 257}]}, {}),
        (RequestCode.PULL_MESSAGE, b"", {"topic": "t", "consumerGroup": "\N{GRINNING FACE}" * 2_000_000}),
        (RequestCode.SEND_MESSAGE_V2, b"", {"b": "t" * 257}),
    ],
)
def test_a_name_that_no_topic_has_is_refused_and_not_repeated(code: int, body: Any, ext: dict[str, str]) -> None:
    with pytest.raises(Refused) as caught:
        told(code, body, **ext)
    assert len(caught.value.remark) < 100
    assert "characters; 256 are allowed" in caught.value.remark


FIELDS = dict.fromkeys(["topic", "b", "group", "consumerGroup", "producerGroup", "srcGroup", "destGroup", "name"], "x")
BODY = {**FIELDS, "groupName": "x", "mqSet": [{"topic": "x"}], "consumerDataSet": [{"groupName": "x"}]}
CHANGES = {Action.CREATE, Action.UPDATE, Action.DELETE}


@each_row("code", sorted(VERBS))
def test_administrators_codes_are_those_that_need_a_super_or_the_right_to_a_change(code: int) -> None:
    needs = needs_of(code, FIELDS, json.dumps(BODY).encode(), "C")
    changes = needs is None or any(set(need.actions) <= CHANGES for need in needs)
    assert VERBS[code].is_for_administrators is changes
