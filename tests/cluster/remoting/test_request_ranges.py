"""Every number, text and list of a request has a range where it is decoded; beyond it the request is refused, alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.runtime import request_limits
from raftmq_wire.codec import CodecError, decode_header, ext_of
from statemachine.consuming.groups import PutGroup
from tests.support.rows import each_row

BEYOND = (10**23, 10**30, -(10**23), 2**63)


def heartbeat(groups: int = 1, subscriptions: int = 1, **fields: Any) -> bytes:
    row = {"topic": "T", "subString": "*", "subVersion": 1} | {k[4:]: v for k, v in fields.items() if k[:4] == "sub_"}
    group = {"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    group |= {k[6:]: v for k, v in fields.items() if k[:6] == "group_"}
    sets = [{"groupName": f"g{at}", **group, "subscriptionDataSet": [row] * subscriptions} for at in range(groups)]
    body = {"clientID": "c", "consumerDataSet": sets} | {k[5:]: v for k, v in fields.items() if k[:5] == "beat_"}
    return json.dumps(body).encode()


def group(**fields: Any) -> bytes:
    return json.dumps({"groupName": "g", **fields}).encode()


NUMBERS = [
    "retryMaxTimes",
    "retryQueueNums",
    "brokerId",
    "whichBrokerWhenConsumeSlowly",
    "groupSysFlag",
    "consumeTimeoutMinute",
]
HEARTBEATS = {
    "too many groups": heartbeat(request_limits.HEARTBEAT_GROUPS_MAX + 1),
    "too many producers": heartbeat(beat_producerDataSet=[{"groupName": "p"}] * 1025),
    "too many topics of a group": heartbeat(1, request_limits.HEARTBEAT_SUBSCRIPTIONS_MAX + 1),
    "a long expression": heartbeat(sub_subString="x" * (64 * 1024 + 1)),
    "a long topic": heartbeat(sub_topic="t" * 257),
    "a long client": heartbeat(beat_clientID="c" * 513),
    "an ordinal of 5,000 digits": heartbeat(group_messageModel="9" * 5000),
    "an ordinal in words": heartbeat(group_consumeFromWhere="sometimes"),
    "a version as true": heartbeat(sub_subVersion=True),
    "a version that is no number": heartbeat().replace(b'"subVersion": 1', b'"subVersion": NaN'),
    "a version beyond any": heartbeat().replace(b'"subVersion": 1', b'"subVersion": 1e400'),
    "half a surrogate": heartbeat().replace(b'"T"', b'"\\ud800"'),
    **{f"version {number}": heartbeat(sub_subVersion=number) for number in BEYOND},
    **{f"fingerprint {number}": heartbeat(beat_heartbeatFingerprint=number) for number in BEYOND},
}
GROUPS = {
    **{f"{name} = {number}": group(**{name: number}) for name in NUMBERS for number in (*BEYOND, 2**31)},
    "true times": group(retryMaxTimes=True),
    "half a time": group(retryMaxTimes=0.5),
    "numbers that grow": group(groupRetryPolicy={"x": []}).replace(b"[]", b"[" + b"1e15," * 3000 + b"1]"),
    "a deep policy": group(groupRetryPolicy={}).replace(b"{}", b'{"x":' + b"[" * 9000 + b"]" * 9000 + b"}"),
    "many attributes": group(attributes={f"a{at}": "x" for at in range(65)}),
    "a long attribute": group(attributes={"a": "x" * 4097}),
    "a group with a NUL": group(groupName="g\0"),
    "more queues than a topic has": group(retryQueueNums=1025),
    "an unknown policy": group(groupRetryPolicy={"type": "LINEAR"}),
    "a policy with an unknown field": group(groupRetryPolicy={"next": [1000]}),
    "a policy without delays": group(groupRetryPolicy={"customizedRetryPolicy": {"next": []}}),
    "a negative delay": group(groupRetryPolicy={"exponentialRetryPolicy": {"initial": -1}}),
}


@each_row("name", HEARTBEATS)
def test_heartbeats(node: Any, name: str) -> None:
    assert node.ask(34, HEARTBEATS[name]).answer.code == 29
    assert node.proposed == []
    assert not node.members.consumers, "nothing of it counts"


@each_row("name", GROUPS)
def test_groups(node: Any, name: str) -> None:
    answer = node.ask(200, GROUPS[name]).answer
    assert answer.code == 29
    assert len(answer.remark or "") < 1000
    assert node.proposed == []


def test_what_is_at_the_edge_is_taken(node: Any) -> None:
    for number in (2**63 - 1, -(2**63)):
        assert node.ask(34, heartbeat(sub_subVersion=number, beat_clientID=f"c{number}")).answer.code == 0
    edge = {"retryMaxTimes": 2**31 - 1, "consumeTimeoutMinute": 2**31 - 1, "retryQueueNums": 1024}
    delays = {"customizedRetryPolicy": {"next": [10**14] * 1000}}
    assert node.ask(200, group(**edge, groupRetryPolicy=delays)).answer.code == 0
    beat = node.ask(34, heartbeat(200, 5))
    node.advance(0)  # the turns that so many groups take
    assert beat.answer.code == 0


@each_row("value", [*map(str, BEYOND), "9" * 5000, "9" * (1 << 19), "1.5", "0x10", "x" * 5000, "\0"])
@each_row("field", ["queueId", "commitOffset"])
def test_numbers_in_headers(node: Any, field: str, value: str) -> None:
    node.create_topic("T")
    node.command(PutGroup({"name": "g"}, False))
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "5", field: value}
    answer = node.ask(15, **ext).answer
    if not (field == "commitOffset" and value.startswith("-")):
        assert answer.code == 29
    assert len(answer.remark or "") < 200
    assert node.state.offset("g", node.state.topics["T"].id, 0) is None


@pytest.mark.parametrize(("code", "field"), [(215, "topic"), (207, "groupName"), (17, "topic"), (35, "clientID")])
def test_names_in_headers(node: Any, code: int, field: str) -> None:
    answer = node.ask(code, **{field: "x" * (1 << 20)}).answer
    assert answer.code == 29
    assert len(answer.remark or "") < 200
    assert node.proposed == []


@each_row(
    "header",
    [
        b'{"code":10,"opaque":%d}' % 10**23,
        b'{"code":%d}' % 2**31,
        b'{"code":10,"flag":1e400}',
        b'{"code":10,"version":%d}' % 2**40,
        b'{"code":10,"opaque":true}',
        b'{"code":10,"language":%d}' % 2**40,
        b'{"code":10,"remark":"\\ud800"}',
        b" " * (1 << 20) + b'{"code":10}',
    ],
)
def test_headers(header: bytes) -> None:
    with pytest.raises(CodecError):
        decode_header(0, header)


@each_row(
    "fields",
    [
        b'{"a":[1]}',
        b'{"a":{"b":1}}',
        b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
        b"[]",
        b'{"a":1e400}',
        b"{" + b",".join(b'"%d":1' % at for at in range(257)) + b"}",
    ],
)
def test_ext_fields(fields: bytes) -> None:
    header = decode_header(0, b'{"code":10,"extFields":' + fields + b"}")
    with pytest.raises(CodecError):
        ext_of(header)
