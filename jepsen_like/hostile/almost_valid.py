"""Almost valid requests: for every code its fields and its body, and the faults that may be put into them.

The fields of a code are those of its row (`cluster.requests.table`). A new field gets one of a few plain values until
it has a line here. Names come from small pools, so that a long run uses existing topics and groups and does not fill
the log with new ones. The fuzzer and the hostile clients of the simulator draw from here.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.requests.table import ROWS, SENDS
from cluster.requests.verb import Verb
from jepsen_like.hostile import almost_valid_values
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import RecallHandle

TOPICS = tuple(f"fuzz-{number}" for number in range(6))
ODD_TOPICS = (
    "fuzz new",
    "%RETRY%fuzz-g0",
    "%DLQ%fuzz-g0",
    "TBW102",
    "SELF_TEST_TOPIC",
    "f" * 127,
    "f" * 128,
    "f" * 300,
)
GROUPS = tuple(f"fuzz-g{number}" for number in range(6))
MADE = tuple(f"fuzz-made-{number}" for number in range(20))
"""Names of topics and groups that are created, changed and deleted all the time."""
SUSPEND_MAX_MS = 300
"""The longest time in ms for which a pull may be held, which is shorter than the wait for its answer."""

DrawValue = Callable[[random.Random], Any]


def _of(*values: Any) -> DrawValue:
    return lambda rng: rng.choice(values)


def _int(low: int, high: int) -> DrawValue:
    return lambda rng: str(rng.randint(low, high))


def _handle(rng: random.Random) -> str:
    return RecallHandle(rng.choice(TOPICS), "raftmq", 1_700_000_000_000, "u", rng.randrange(200_000)).encode()


_topic, _group, _made = _of(*TOPICS, *TOPICS, *TOPICS, *ODD_TOPICS), _of(*GROUPS), _of(*MADE)
_queue, _offset = _int(0, 4), _int(0, 40)
_bool = _of("true", "false")
_PLACE: dict[str, DrawValue] = {"topic": _topic, "queueId": _queue}
_PULL: dict[str, DrawValue] = {
    "consumerGroup": _group,
    **_PLACE,
    "queueOffset": _offset,
    "maxMsgNums": _int(1, 40),
    "sysFlag": _of("0", "2", "4", "7"),
    "commitOffset": _offset,
    "suspendTimeoutMillis": _int(0, SUSPEND_MAX_MS),
    "subVersion": _of("0", "1"),
    "subscription": _of("*", "a", "a || b", "", "a > 1", "TAGS IN ('a') OR NOT a"),
    "expressionType": _of("TAG", "TAG", "SQL92", ""),
    "maxMsgBytes": _of("1", "1000", "262144"),
}
_user = _of("fuzzer", "another", "", "n" * 300)
_subject = _of("User:fuzzer", "User:", "Group:fuzzer", "fuzzer")
_SEND_LETTERS: dict[str, DrawValue] = {
    "a": _group,
    "b": _topic,
    "c": _of("TBW102"),
    "d": _int(1, 8),
    "e": _int(-1, 4),
    "f": _of("0", "1", "4", "8", "12", "256"),
    "g": _of("1700000000000"),
    "h": _int(0, 3),
    "i": _of(
        "", "TAGS\1a\2", "KEYS\1k1 k2\2UNIQ_KEY\1u\2", "ACK_LEVEL\1leader\2", "WAIT\1false", "DELAY\0013\2", "\2\1\2"
    ),
    "j": _int(0, 3),
    "l": _int(0, 16),
    "m": _bool,
    "raftmqPid": lambda rng: f"{rng.getrandbits(3):032x}",
    "raftmqSeq": _int(1, 9),
    "raftmqLow": _int(0, 3),
}
_REPLY_PROPERTIES = _of("", "MSG_TYPE\1reply\2REPLY_TO_CLIENT\1fuzz-1\2CORRELATION_ID\1c\2", "REPLY_TO_CLIENT\1x")
_LONG = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
_SEND_NAMES = {_LONG.get(letter, letter): draw for letter, draw in _SEND_LETTERS.items()}

_BY_NAME: dict[str, DrawValue] = {
    **_SEND_LETTERS,
    **_SEND_NAMES,
    **_PULL,
    "group": _group,
    "groupName": _made,
    "srcGroup": _group,
    "destGroup": _made,
    "key": _of("k1", "u", "none"),
    "maxNum": _int(0, 70),
    "beginTimestamp": _of("0"),
    "endTimestamp": _of("9999999999999"),
    "_UNIQUE_KEY_QUERY": _bool,
    "setZeroIfNotFound": _bool,
    "readQueueNums": _int(1, 8),
    "writeQueueNums": _int(1, 8),
    "perm": _int(0, 7),
    "topicSysFlag": _of("0"),
    "order": _bool,
    "attributes": _of("", "+dedup=strict", "-dedup", "+message.type=FIFO,-x"),
    "timestamp": _of("0", "1700000000000"),
    "boundaryType": _of("LOWER", "UPPER", "upper", "?"),
    "offset": _int(0, 200_000),
    "clientID": _int(0, 9),
    "clientId": _int(0, 9),
    "delayLevel": _int(-1, 4),
    "originMsgId": _of("", "0A"),
    "originTopic": _topic,
    "unitMode": _bool,
    "maxReconsumeTimes": _int(-1, 16),
    "tranStateTableOffset": _int(0, 9),
    "commitLogOffset": _int(0, 200_000),
    "commitOrRollback": _of("0", "8", "12", "1"),
    "msgId": _of("", "0A"),
    "transactionId": _of("", "0A"),
    "fromTransactionCheck": _bool,
    "recallHandle": _handle,
    "name": _of("nightly", ""),
    "write": _int(-1, 9),
    "attempt": _int(0, 9),
    "sequence": _int(0, 9),
    "isForce": _bool,
    "jstackEnable": _bool,
    "namespace": _of("x"),
    "value": _of("raftmq:4", "raftmq:8", "raftmq-1:4;raftmq-2:4", "raftmq", ""),
    "cleanOffset": _bool,
    "cluster": _of("DefaultCluster", "x"),
    "username": _user,
    "filter": _user,
    "subject": _subject,
    "subjectFilter": _subject,
    "resourceFilter": _of("", "Topic:T*", "Topic"),
    "policyType": _of("", "Custom", "Default"),
    "resource": _of("", "Topic:T*", "*"),
    "mode": _of("off", "observe", "enforce", "ENFORCE"),
}
"""Name of a field -> a function that draws good values for it."""
_ORDER = _of("ORDER_TOPIC_CONFIG", "ORDER_TOPIC_CONFIG", "x")
_BY_CODE: dict[int, dict[str, DrawValue]] = {
    RequestCode.SEND_MESSAGE: _SEND_NAMES,
    RequestCode.UPDATE_AND_CREATE_TOPIC: {"topic": _made},
    RequestCode.OPEN_ATTEMPT: {"name": _of("nightly", "", "n" * 300)},
    RequestCode.STAGE_MESSAGES: {"queueId": _int(-1, 9), "bornTimestamp": _int(0, 9)},
    RequestCode.GET_CONSUME_STATS: {"topic": _of("", *TOPICS)},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {
        "timestamp": _of("-1", "0", "1700000000000"),
        "queueId": _int(-1, 9),
        "offset": _int(-1, 30),
    },
    RequestCode.CLONE_GROUP_OFFSET: {"topic": _of("", *TOPICS)},
    RequestCode.SEND_REPLY_MESSAGE: _SEND_NAMES | {"properties": _REPLY_PROPERTIES},
    RequestCode.SEND_REPLY_MESSAGE_V2: {"i": _REPLY_PROPERTIES},
    RequestCode.CONSUME_MESSAGE_DIRECTLY: {"msgId": _of("", "7F00000100002A9F0000000000000400", "0A")},
    RequestCode.GET_KV_CONFIG: {"key": _of("y")},
    RequestCode.PUT_KV_CONFIG: {"namespace": _ORDER, "key": _made},
    RequestCode.DELETE_KV_CONFIG: {"namespace": _of("ORDER_TOPIC_CONFIG", "x"), "key": _made},
    RequestCode.DELETE_TOPIC_IN_BROKER: {"topic": _made},
    RequestCode.DELETE_TOPIC_IN_NAMESRV: {"topic": _made},
}
"""Request code -> the fields for which other values are good than elsewhere."""
_UNKNOWN = _of("", "0", "7", "true", "fuzz-0")
"""Values of a field that has no line of its own."""


def _draws(verb: Verb) -> dict[str, DrawValue]:
    own = _BY_CODE.get(verb.code, {})
    names = [name.removesuffix("!") for name in verb.fields.split()]
    return {name: own.get(name) or _BY_NAME.get(name, _UNKNOWN) for name in names}


FIELDS: dict[int, dict[str, DrawValue]] = {verb.code: _draws(verb) for verb in ROWS}
"""Request code -> the fields of its row, each with a function that draws good values."""
_NAMES = {"topic": (*TOPICS, *ODD_TOPICS, *MADE), "b": (*TOPICS, *ODD_TOPICS)}


class Drawn(NamedTuple):
    """A drawn request of one code: ext fields, which may be of any JSON type, and a body."""

    code: int
    fields: dict[str, Any]
    body: bytes


def good(rng: random.Random, code: int) -> Drawn:
    """Draws a request of the code in which nothing is wrong."""
    document = _DOCUMENTS.get(code)
    body = json.dumps(document(rng)).encode() if document is not None else b""
    if code in SENDS:
        body = rng.randbytes(rng.randrange(80))
    fields: dict[str, Any] = {name: draw(rng) for name, draw in FIELDS[code].items()}
    _tame(rng, code, fields)
    return Drawn(int(code), fields, body)


def draw(rng: random.Random, code: int) -> Drawn:
    """Draws the next request of the code. Up to three of its fields may be wrong, and its body may be."""
    fields: dict[str, Any] = {name: draw(rng) for name, draw in FIELDS[code].items()}
    body = _body(rng, code)
    times = rng.choice((0, 1, 1, 1, 2, 3))
    if times and fields:
        good = dict(fields)
        if not almost_valid_values.is_json(almost_valid_values.flat(rng, fields, times)):
            fields = good
    _tame(rng, code, fields)
    return Drawn(int(code), fields, body)


def _tame(rng: random.Random, code: int, fields: dict[str, Any]) -> None:
    """Limits fields that would make a run different from its purpose: endless new names, answers that may be held for
    long."""
    for name, known in _NAMES.items():
        if name in fields and fields[name] not in known and rng.random() < 0.5:
            fields[name] = rng.choice(known)
        elif isinstance(fields.get(name), str) and len(fields[name]) < 100 and code in SENDS:
            fields[name] = (
                fields[name] if fields[name] in known or fields[name] in almost_valid_values.TEXTS else "fuzz-0"
            )
    if "suspendTimeoutMillis" in fields and rng.random() < 0.9:
        fields["suspendTimeoutMillis"] = str(rng.randrange(SUSPEND_MAX_MS))
    elif code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        fields["sysFlag"] = rng.choice(("0", "4"))


def _body(rng: random.Random, code: int) -> bytes:
    if (document := _DOCUMENTS.get(code)) is not None:
        return almost_valid_values.encode(rng, almost_valid_values.tree(rng, document(rng), rng.choice((0, 1, 1, 2))))
    if code in SENDS:
        return _batch(rng) if rng.random() < 0.4 else rng.randbytes(rng.randrange(80))
    return almost_valid_values.noise(rng) if rng.random() < 0.05 else b""


def _heartbeat(rng: random.Random) -> dict[str, Any]:
    consumer = {
        "groupName": rng.choice((*GROUPS, *MADE)),
        "consumeType": rng.choice(("CONSUME_PASSIVELY", 1, "?")),
        "messageModel": rng.choice(("CLUSTERING", "BROADCASTING", 0)),
        "consumeFromWhere": rng.choice((0, 5, "?")),
        "subscriptionDataSet": [
            {
                "topic": rng.choice(TOPICS),
                "subString": rng.choice(("*", "a || b")),
                "subVersion": rng.randrange(9),
                "expressionType": "TAG",
                "codeSet": [1],
                "tagsSet": ["a"],
            }
        ],
    }
    return {
        "clientID": f"fuzz-{rng.randrange(9)}",
        "consumerDataSet": [consumer],
        "producerDataSet": [{"groupName": rng.choice(GROUPS)}],
        "heartbeatFingerprint": rng.choice((0, 1, -5)),
        "withoutSub": rng.random() < 0.2,
    }


def _user_info(rng: random.Random) -> dict[str, Any]:
    return {
        "username": rng.choice(("fuzzer", "another", None)),
        "password": rng.choice(("a secret of length", "short", None)),
        "userType": rng.choice(("Normal", "Super", "?")),
        "userStatus": rng.choice(("enable", "disable", "?")),
    }


def _rules(rng: random.Random) -> dict[str, Any]:
    entry = {
        "resource": rng.choice(("Topic:T", "Topic:T*", "Group:*", "*", "Topic:", "?")),
        "actions": rng.sample(("Pub", "Sub", "Create", "All", "?"), 2),
        "sourceIps": rng.choice((None, ["10.0.0.0/8"], ["::1"], ["?"])),
        "decision": rng.choice(("Allow", "Deny", "?")),
    }
    return {
        "subject": "User:fuzzer",
        "policies": [{"policyType": rng.choice(("Custom", "Default", "?")), "entries": [entry]}],
    }


def _group_config(rng: random.Random) -> dict[str, Any]:
    return {
        "groupName": rng.choice((*GROUPS, *MADE)),
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": rng.randrange(20),
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
        "groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 2000]}},
        "attributes": {},
    }


def _question(rng: random.Random) -> dict[str, Any]:
    return {
        "topic": rng.choice(TOPICS),
        "consumerGroup": rng.choice(GROUPS),
        "clientId": f"fuzz-{rng.randrange(9)}",
        "strategyName": rng.choice(("AVG", "AVG_BY_CIRCLE", "?")),
        "messageModel": rng.choice(("CLUSTERING", 0)),
    }


def _client_check(rng: random.Random) -> dict[str, Any]:
    subscription = {
        "topic": rng.choice(TOPICS),
        "subString": rng.choice(("*", "a > 1")),
        "expressionType": rng.choice(("TAG", "SQL92")),
    }
    return {"clientId": "x", "group": rng.choice(GROUPS), "namespace": "", "subscriptionData": subscription}


def _locks(rng: random.Random) -> dict[str, Any]:
    rows = [
        {"topic": _topic(rng), "brokerName": "raftmq", "queueId": rng.randrange(-1, 9)} for _ in range(rng.randrange(5))
    ]
    return {"consumerGroup": _group(rng), "clientId": f"c{rng.randrange(9)}", "mqSet": rows, "onlyThisBroker": False}


_DOCUMENTS: dict[int, Callable[[random.Random], dict[str, Any]]] = {
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_config,
    RequestCode.QUERY_ASSIGNMENT: _question,
    RequestCode.CHECK_CLIENT_CONFIG: _client_check,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.AUTH_CREATE_USER: _user_info,
    RequestCode.AUTH_UPDATE_USER: _user_info,
    RequestCode.AUTH_CREATE_ACL: _rules,
    RequestCode.AUTH_UPDATE_ACL: _rules,
}
"""Request code -> a function that draws a good JSON body."""


def _batch(rng: random.Random) -> bytes:
    """Draws a batch of some messages, sometimes with wrong lengths."""
    parts = []
    for _ in range(rng.randrange(1, 5)):
        body, properties = rng.randbytes(rng.randrange(20)), rng.choice((b"", b"TAGS\x01a\x02", b"\x01"))
        lengths = [20 + len(body) + 2 + len(properties), len(body), len(properties)]
        if rng.random() < 0.2:
            lengths[rng.randrange(3)] = rng.choice((0, -1, 1, 5, (1 << 31) - 1, -(1 << 31)))
        size, body_size, rest = lengths
        parts.append(struct.pack(">iIiii", size, 0xDAA320A7, 0, 0, body_size) + body)
        parts.append(struct.pack(">h", max(-(1 << 15), min(rest, (1 << 15) - 1))) + properties)
    return b"".join(parts)
