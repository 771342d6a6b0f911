"""Requests that are frames and make no sense: every code with fields that are missing, huge or contradictory.

Only names of their own are written, deleted and committed to; other people's are read. What is odd stands in the
fields, so each of these must be answered, once, and change nothing for anybody else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.broker.reads.pull_values import SUSPEND_MS_MAX
from jepsen_like.sim.clients.client_machines import TOPIC
from raftmq_wire.codes import RequestCode

OWN_TOPICS = ("odd-a", "odd-b", "odd-c")
OWN_GROUPS = ("odd-g", "odd-h")
NUMBERS = (
    "",
    "0",
    "1",
    "7",
    "-1",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "100000000000000000000000",
    "1e15",
    "0x10",
    "NaN",
    " 12 ",
    "\u0663",
    "1_000",
    "true",
    "\x00",
)
INTEGERS = (0, 1, -1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63) - 1, 10**23)
"""Integers of JSON bodies."""
NAMES = ("", "x" * 300, "\x00", "a b", "%RETRY%", "%DLQ%odd-g", "../../odd", "TBW102", "\u2603", "absent-1", "absent-2")
FLAGS = ("", "true", "false", "7", "maybe")


class OddRequest(NamedTuple):
    """A request that makes no sense, and the answer that it must get."""

    code: int
    ext: dict[str, str]
    body: bytes = b""
    silent: bool = False
    """It may rightly get no answer while nobody leads."""
    parked_s: float = 0.0
    """Seconds that it may be kept waiting for messages."""


class _Fields:
    """Draws the fields of one request: `oddness` of them are odd, or missing."""

    def __init__(self, rng: random.Random, oddness: float) -> None:
        self.rng, self.oddness = rng, oddness

    def number(self, sane: int) -> str | None:
        return self._odd(str(sane), NUMBERS)

    def own_topic(self) -> str | None:
        return self._odd(self.rng.choice(OWN_TOPICS), NAMES)

    def own_group(self) -> str | None:
        return self._odd(self.rng.choice(OWN_GROUPS), NAMES)

    def any_topic(self) -> str | None:
        return self._odd(self.rng.choice((TOPIC, *OWN_TOPICS)), NAMES)

    def flag(self) -> str | None:
        return self._odd("true", FLAGS)

    def integer(self, sane: int) -> Any:
        return sane if self.rng.random() >= self.oddness else self.rng.choice(INTEGERS)

    def text(self, sane: str, odd: tuple[str, ...]) -> str | None:
        return self._odd(sane, odd)

    def _odd(self, sane: str, odd: tuple[str, ...]) -> str | None:
        if self.rng.random() >= self.oddness:
            return sane
        return None if self.rng.random() < 0.15 else self.rng.choice(odd)


Made = tuple[dict[str, str | None], bytes]


def _send(f: _Fields) -> Made:
    properties = f.text(
        f"UNIQ_KEY\x01{f.rng.randrange(1 << 40):X}\x02",
        (
            "",
            "\x01\x02\x01",
            "ACK_LEVEL\x01never\x02",
            "DELAY\x01" + "9" * 30 + "\x02",
            "KEYS\x01" + "k " * 200 + "\x02",
        ),
    )
    return {
        "a": "g",
        "b": f.own_topic(),
        "c": "TBW102",
        "d": f.number(4),
        "e": f.number(0),
        "f": f.number(0),
        "g": f.number(1_700_000_000_000),
        "h": f.number(0),
        "i": properties,
        "j": f.number(0),
        "k": f.flag(),
        "l": f.number(16),
        "m": f.text("false", FLAGS),
    }, b"odd" * f.rng.choice((0, 1, 50, 2000))


def _send_long(f: _Fields) -> Made:
    return {
        "producerGroup": "g",
        "topic": f.own_topic(),
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": f.number(4),
        "queueId": f.number(0),
        "sysFlag": f.number(0),
        "bornTimestamp": f.number(1),
        "flag": f.number(0),
        "properties": "",
        "reconsumeTimes": f.number(0),
        "batch": f.text("false", FLAGS),
    }, b"odd"


def _send_batch(f: _Fields) -> Made:
    fields, _ = _send(f)
    body = f.rng.choice((b"", bytes(20), b"\xff" * 64, (1 << 30).to_bytes(4) + bytes(60), f.rng.randbytes(90)))
    return {**fields, "m": "true"}, body


def _pull(f: _Fields) -> Made:
    return {
        "consumerGroup": f.own_group(),
        "topic": f.any_topic(),
        "queueId": f.number(0),
        "queueOffset": f.number(0),
        "maxMsgNums": f.number(32),
        "sysFlag": f.number(f.rng.choice((4, 5, 6, 7))),
        "commitOffset": f.number(3),
        "suspendTimeoutMillis": f.number(500),
        "maxMsgBytes": f.number(4096),
        "subVersion": f.number(0),
        "subscription": f.text("*", ("a || b", "||", "x" * 3000, "\x00", "A && B")),
        "expressionType": f.text("TAG", ("SQL92", "", "what")),
    }, b""


def _offset(f: _Fields) -> Made:
    return {
        "consumerGroup": f.own_group(),
        "topic": f.own_topic(),
        "queueId": f.number(0),
        "commitOffset": f.number(9),
        "setZeroIfNotFound": f.flag(),
        "timestamp": f.number(1_700_000_000_000),
        "boundaryType": f.text("LOWER", NAMES),
    }, b""


def _put_topic(f: _Fields) -> Made:
    attributes = f.text("", ("+dedup=off", "+dedup=", "-dedup", "+x=y", "+retention.ms=" + "9" * 30, ",,,", "+" * 500))
    return {
        "topic": f.own_topic(),
        "readQueueNums": f.number(2),
        "writeQueueNums": f.number(2),
        "perm": f.number(6),
        "order": f.flag(),
        "topicSysFlag": f.number(0),
        "attributes": attributes,
    }, b""


def _put_group(f: _Fields) -> Made:
    fields = {
        "groupName": f.own_group(),
        "retryQueueNums": f.integer(1),
        "retryMaxTimes": f.integer(16),
        "brokerId": f.integer(0),
        "groupSysFlag": f.integer(0),
        "consumeTimeoutMinute": f.integer(15),
        "whichBrokerWhenConsumeSlowly": f.integer(1),
    }
    if f.rng.random() < f.oddness:
        fields["groupRetryPolicy"] = {"type": "CUSTOMIZED", "next": [f.integer(1), {"deep": [[[1e300]]]}]}
    if f.rng.random() < f.oddness:
        fields["attributes"] = {"k" * f.rng.choice((1, 2000)): "v"}
    return {}, _json(f, fields)


def _heartbeat(f: _Fields) -> Made:
    subscription = {
        "topic": f.any_topic(),
        "subString": f.text("*", ("x" * 3000, "a||b", "")),
        "subVersion": f.integer(1),
        "expressionType": f.text("TAG", ("SQL92", "what")),
    }
    consumer = {
        "groupName": f.own_group(),
        "consumeType": f.rng.choice(("CONSUME_PASSIVELY", f.integer(1))),
        "messageModel": f.rng.choice(("CLUSTERING", f.integer(1))),
        "subscriptionDataSet": [subscription],
        "consumeFromWhere": f.rng.choice(("CONSUME_FROM_LAST_OFFSET", f.integer(0))),
    }
    fields = {
        "clientID": f.text("odd", ("", "x" * 3000)),
        "heartbeatFingerprint": f.integer(0),
        "withoutSub": f.flag() == "true",
        "consumerDataSet": [consumer] * f.rng.choice((0, 1, 1, 3)),
        "producerDataSet": [{"groupName": f.own_group()}],
    }
    return {}, _json(f, fields)


def _json(f: _Fields, fields: dict[str, Any]) -> bytes:
    text = json.dumps({name: value for name, value in fields.items() if value is not None})
    return text.encode() if f.rng.random() >= f.oddness / 4 else text.encode()[: f.rng.randrange(len(text))]


def _query(f: _Fields) -> Made:
    return {
        "topic": f.any_topic(),
        "key": f.text("k", NAMES),
        "maxNum": f.number(32),
        "beginTimestamp": f.number(0),
        "endTimestamp": f.number(1 << 62),
        "offset": f.number(0),
        "uniqMsgId": f.text("", NAMES),
    }, b""


def _named(*names: str) -> Callable[[_Fields], Made]:
    """Fields that are all names."""

    def made(f: _Fields) -> Made:
        fields = {name: f.own_group() if "roup" in name else f.own_topic() for name in names}
        return {**fields, "cleanOffset": f.flag()}, b""

    return made


_MAKERS: dict[int, Callable[[_Fields], Made]] = {
    RequestCode.SEND_MESSAGE: _send_long,
    RequestCode.SEND_MESSAGE_V2: _send,
    RequestCode.SEND_BATCH_MESSAGE: _send_batch,
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.QUERY_MESSAGE: _query,
    RequestCode.VIEW_MESSAGE_BY_ID: _query,
    RequestCode.QUERY_CONSUMER_OFFSET: _offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: _offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _offset,
    RequestCode.GET_MAX_OFFSET: _offset,
    RequestCode.GET_MIN_OFFSET: _offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _offset,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _put_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: _named("topic"),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _named("topic"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _put_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _named("groupName"),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _named("clientID", "consumerGroup", "producerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _named("consumerGroup"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _named("groupName"),
    RequestCode.GET_KV_CONFIG: _named("namespace", "key"),
    RequestCode.GET_KVLIST_BY_NAMESPACE: _named("namespace"),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _named("topic"),
    RequestCode.GET_TOPIC_CONFIG: _named("topic"),
    RequestCode.GET_TOPICS_BY_CLUSTER: _named("cluster"),
    RequestCode.GET_BROKER_CLUSTER_INFO: _named("cluster"),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _named("topic"),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _named("topic"),
    36: _offset,
    4711: _offset,
    -5: _offset,
}
CODES = tuple(_MAKERS)
"""Codes of all requests, three that nobody handles among them."""


def draw_odd(rng: random.Random, code: int | None = None) -> OddRequest:
    """The next odd request."""
    oddness = rng.choice((0.05, 0.2, 0.6))
    code = rng.choice(CODES) if code is None else code
    fields, body = _MAKERS[code](_Fields(rng, oddness))
    ext = {name: value for name, value in fields.items() if value is not None}
    return OddRequest(int(code), ext, body, code == RequestCode.QUERY_CONSUMER_OFFSET, _parked_s(ext))


def _parked_s(ext: dict[str, str]) -> float:
    """Returns the seconds that a pull with these fields may wait, at most."""
    wanted = ext.get("suspendTimeoutMillis", "").strip()
    return min(int(wanted), SUSPEND_MS_MAX) / 1000 if wanted.isdecimal() else 0.0
