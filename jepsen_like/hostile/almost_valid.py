"""Almost valid requests: for every code its fields and its body, and the faults that they may have.

`FIELDS` is the table of the fields that handlers read (docs/wire-protocol.md); a code without a row fails a unit test.
Names come from small pools, so that a long run uses existing topics and groups and does not fill the log with new ones.
The fuzzer and the hostile clients of the simulator draw from here.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

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

Draw = Callable[[random.Random], Any]


def _of(*values: Any) -> Draw:
    return lambda rng: rng.choice(values)


def _int(low: int, high: int) -> Draw:
    return lambda rng: str(rng.randint(low, high))


def _handle(rng: random.Random) -> str:
    return RecallHandle(rng.choice(TOPICS), "raftmq", 1_700_000_000_000, "u", rng.randrange(200_000)).encode()


_topic, _group, _made = _of(*TOPICS, *TOPICS, *TOPICS, *ODD_TOPICS), _of(*GROUPS), _of(*MADE)
_queue, _offset = _int(0, 4), _int(0, 40)
_bool = _of("true", "false")
_PLACE: dict[str, Draw] = {"topic": _topic, "queueId": _queue}
_PULL: dict[str, Draw] = {
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
_SEND_LETTERS: dict[str, Draw] = {
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

FIELDS: dict[int, dict[str, Draw]] = {
    RequestCode.SEND_MESSAGE: _SEND_NAMES,
    RequestCode.SEND_MESSAGE_V2: _SEND_LETTERS,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_LETTERS,
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.QUERY_MESSAGE: {
        "topic": _topic,
        "key": _of("k1", "u", "none"),
        "maxNum": _int(0, 70),
        "beginTimestamp": _of("0"),
        "endTimestamp": _of("9999999999999"),
        "_UNIQUE_KEY_QUERY": _bool,
    },
    RequestCode.QUERY_CONSUMER_OFFSET: {"consumerGroup": _group, **_PLACE, "setZeroIfNotFound": _bool},
    RequestCode.UPDATE_CONSUMER_OFFSET: {"consumerGroup": _group, **_PLACE, "commitOffset": _offset},
    RequestCode.UPDATE_AND_CREATE_TOPIC: {
        "topic": _made,
        "readQueueNums": _int(1, 8),
        "writeQueueNums": _int(1, 8),
        "perm": _int(0, 7),
        "topicSysFlag": _of("0"),
        "order": _bool,
        "attributes": _of("", "+dedup=strict", "-dedup", "+message.type=FIFO,-x"),
    },
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {
        **_PLACE,
        "timestamp": _of("0", "1700000000000"),
        "boundaryType": _of("LOWER", "UPPER", "upper", "?"),
    },
    RequestCode.GET_MAX_OFFSET: _PLACE,
    RequestCode.GET_MIN_OFFSET: _PLACE,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _PLACE,
    RequestCode.VIEW_MESSAGE_BY_ID: {"offset": _int(0, 200_000), "topic": _topic},
    RequestCode.HEART_BEAT: {},
    RequestCode.UNREGISTER_CLIENT: {"clientID": _int(0, 9), "producerGroup": _group, "consumerGroup": _group},
    RequestCode.CONSUMER_SEND_MSG_BACK: {
        "offset": _int(0, 200_000),
        "group": _group,
        "delayLevel": _int(-1, 4),
        "originMsgId": _of("", "0A"),
        "originTopic": _topic,
        "unitMode": _bool,
        "maxReconsumeTimes": _int(-1, 16),
    },
    RequestCode.END_TRANSACTION: {
        "producerGroup": _group,
        "tranStateTableOffset": _int(0, 9),
        "commitLogOffset": _int(0, 200_000),
        "commitOrRollback": _of("0", "8", "12", "1"),
        "msgId": _of("", "0A"),
        "transactionId": _of("", "0A"),
        "fromTransactionCheck": _bool,
    },
    RequestCode.RECALL_MESSAGE: {"producerGroup": _group, "topic": _topic, "recallHandle": _handle},
    RequestCode.OPEN_ATTEMPT: {"name": _of("nightly", "", "n" * 300), "write": _int(-1, 9)},
    RequestCode.STAGE_MESSAGES: {
        "attempt": _int(0, 9),
        "sequence": _int(0, 9),
        "topic": _topic,
        "queueId": _int(-1, 9),
        "bornTimestamp": _int(0, 9),
    },
    RequestCode.COMMIT_WRITE: {"name": _of("nightly", ""), "write": _int(-1, 9)},
    RequestCode.ABORT_WRITE: {"name": _of("nightly", ""), "write": _int(-1, 9)},
    RequestCode.ENTRIES_AT: {},
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: {"consumerGroup": _group},
    RequestCode.LOCK_BATCH_MQ: {},
    RequestCode.UNLOCK_BATCH_MQ: {},
    RequestCode.CHECK_CLIENT_CONFIG: {},
    RequestCode.GET_CONSUMER_CONNECTION_LIST: {"consumerGroup": _group},
    RequestCode.GET_CONSUME_STATS: {"consumerGroup": _group, "topic": _of("", *TOPICS)},
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: {"topic": _topic},
    RequestCode.QUERY_ASSIGNMENT: {},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {
        "group": _group,
        "topic": _topic,
        "timestamp": _of("-1", "0", "1700000000000"),
        "isForce": _bool,
        "queueId": _int(-1, 9),
        "offset": _int(-1, 30),
    },
    RequestCode.CLONE_GROUP_OFFSET: {"srcGroup": _group, "destGroup": _made, "topic": _of("", *TOPICS)},
    RequestCode.GET_CONSUMER_RUNNING_INFO: {"consumerGroup": _group, "clientId": _int(0, 9), "jstackEnable": _bool},
    RequestCode.SEND_REPLY_MESSAGE: _SEND_NAMES | {"properties": _REPLY_PROPERTIES},
    RequestCode.SEND_REPLY_MESSAGE_V2: _SEND_LETTERS | {"i": _REPLY_PROPERTIES},
    RequestCode.CONSUME_MESSAGE_DIRECTLY: {
        "consumerGroup": _group,
        "clientId": _int(0, 9),
        "msgId": _of("", "7F00000100002A9F0000000000000400", "0A"),
    },
    RequestCode.GET_KV_CONFIG: {"namespace": _of("x"), "key": _of("y")},
    RequestCode.PUT_KV_CONFIG: {
        "namespace": _of("ORDER_TOPIC_CONFIG", "ORDER_TOPIC_CONFIG", "x"),
        "key": _made,
        "value": _of("raftmq:4", "raftmq:8", "raftmq-1:4;raftmq-2:4", "raftmq", ""),
    },
    RequestCode.DELETE_KV_CONFIG: {"namespace": _of("ORDER_TOPIC_CONFIG", "x"), "key": _made},
    RequestCode.GET_BROKER_CONFIG: {},
    RequestCode.GET_BROKER_RUNTIME_INFO: {},
    RequestCode.GET_TOPIC_STATS_INFO: {"topic": _topic},
    RequestCode.GET_PRODUCER_CONNECTION_LIST: {"producerGroup": _group},
    RequestCode.GET_ROUTEINFO_BY_TOPIC: {"topic": _topic},
    RequestCode.GET_BROKER_CLUSTER_INFO: {},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {},
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {},
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: {},
    RequestCode.DELETE_SUBSCRIPTIONGROUP: {"groupName": _made, "cleanOffset": _bool},
    RequestCode.DELETE_TOPIC_IN_BROKER: {"topic": _made},
    RequestCode.DELETE_TOPIC_IN_NAMESRV: {"topic": _made},
    RequestCode.GET_KVLIST_BY_NAMESPACE: {"namespace": _of("x")},
    RequestCode.GET_TOPICS_BY_CLUSTER: {"cluster": _of("DefaultCluster", "x")},
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: {},
    RequestCode.GET_TOPIC_CONFIG: {"topic": _topic},
    RequestCode.AUTH_CREATE_USER: {"username": _user},
    RequestCode.AUTH_UPDATE_USER: {"username": _user},
    RequestCode.AUTH_DELETE_USER: {"username": _user},
    RequestCode.AUTH_GET_USER: {"username": _user},
    RequestCode.AUTH_LIST_USER: {"filter": _user},
    RequestCode.AUTH_CREATE_ACL: {"subject": _subject},
    RequestCode.AUTH_UPDATE_ACL: {"subject": _subject},
    RequestCode.AUTH_DELETE_ACL: {
        "subject": _subject,
        "policyType": _of("", "Custom", "Default"),
        "resource": _of("", "Topic:T*", "*"),
    },
    RequestCode.AUTH_GET_ACL: {"subject": _subject},
    RequestCode.AUTH_LIST_ACL: {"subjectFilter": _subject, "resourceFilter": _of("", "Topic:T*", "Topic")},
    RequestCode.SET_AUTH_MODE: {"mode": _of("off", "observe", "enforce", "ENFORCE")},
}
"""Request code -> the fields that its handler reads, each with a function that draws good values."""
NOT_FUZZED = {
    RequestCode.CHECK_TRANSACTION_STATE: "what the node itself sends",
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "what the node itself sends",
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: "what the node itself sends",
}
SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
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
    """Draws the next request of the code: a good one, or one with up to three wrong fields and a wrong body."""
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
