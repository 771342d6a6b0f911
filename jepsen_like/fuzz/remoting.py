"""Requests of the remoting protocol: for every code its fields and its body, and what may be wrong with them.

`FIELDS` is the table of what handlers read (docs/wire-protocol.md); a code without a row fails a unit test. Names come
from small pools, so that a long run meets existing topics and groups and does not fill the log with new ones.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from jepsen_like.fuzz import mutate
from jepsen_like.fuzz.shot import Port, Shot
from raftmq_wire.codec import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, JSON, encode_frame
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
"""Topics and groups that are made, changed and deleted all the time."""
SUSPEND_MAX_MS = 300
"""A pull may be held; not for longer than its answer is waited for."""

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
"""Request code -> the fields that its handler reads, and good values of each."""
NOT_FUZZED = {
    RequestCode.CHECK_TRANSACTION_STATE: "what the node itself sends",
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "what the node itself sends",
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: "what the node itself sends",
}
UNKNOWN_CODES = (0, 1, 13, 41, 42, 318, 999, 32767, 65535)
UNKNOWN = "a code that nobody handles"
RAW = "bytes that are no frame"
SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_NAMES = {"topic": (*TOPICS, *ODD_TOPICS, *MADE), "b": (*TOPICS, *ODD_TOPICS)}
_SELDOM = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    }
)
_CODES = [code for code in FIELDS for _ in range(1 if code in _SELDOM else 5)]
_SENDS, _OTHERS = ([code for code in _CODES if (code in SENDS) == wanted] for wanted in (True, False))
_SENDS_SHARE = 0.2
"""Share of the batches that are sends."""
HANDLERS = (*(f"{int(code)} {RequestCode(code).name}" for code in FIELDS), UNKNOWN, RAW)
"""All that must be reached."""


class Requests:
    """Draws requests; opaques count up."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._opaque = 0

    def batch(self, count: int) -> list[Shot]:
        """Requests for one connection: sends, or others. A send that cannot be read may end it with all under way."""
        codes = _SENDS if self._rng.random() < _SENDS_SHARE else _OTHERS
        return [self.draw(codes) for _ in range(count)]

    def draw(self, codes: Sequence[int] = ()) -> Shot:
        """The next request, of any code or one of these."""
        rng = self._rng
        self._opaque += 1
        if rng.random() < 0.01:
            return self._unknown()
        code = rng.choice(codes or _CODES)
        fields: dict[str, Any] = {name: draw(rng) for name, draw in FIELDS[code].items()}
        body = self._body(code)
        times = rng.choice((0, 1, 1, 1, 2, 3))
        if times and fields:
            good = dict(fields)
            if not mutate.is_json(mutate.flat(rng, fields, times)):
                fields = good
        self._tame(code, fields)
        return self._shot(f"{int(code)} {RequestCode(code).name}", int(code), fields, body)

    def raw(self) -> Shot:
        """Draws bytes that are no frame of the protocol: the node closes their connection, sooner or later."""
        rng = self._rng
        good = self.draw().data
        kind = rng.randrange(7)
        if kind == 0:
            data = struct.pack(">i", rng.choice((-1, 3, 0, 1, (16 << 20) + 1, (1 << 31) - 1))) + good
        elif kind == 1:
            at = rng.randrange(len(good))
            data = good[:at] + rng.randbytes(1 + rng.randrange(8)) + good[at + 1 :]
        elif kind == 2:
            data = good[:4] + struct.pack(">I", rng.getrandbits(32)) + good[8:]
        elif kind == 3:
            data = good[: rng.randrange(len(good))]
        elif kind == 4:
            data = self._binary_broken()
        elif kind == 5:
            fields = {rng.choice("abx"): mutate.value(rng) for _ in range(3)}
            header = mutate.encode(
                rng,
                {
                    "code": rng.choice(_CODES),
                    "opaque": mutate.value(rng),
                    "extFields": fields,
                    "flag": mutate.value(rng),
                    "remark": mutate.value(rng),
                },
            )
            data = struct.pack(">iI", 4 + len(header), len(header)) + header
        else:
            data = mutate.noise(rng, 400)
        return Shot(Port.REMOTING, RAW, data)

    def _unknown(self) -> Shot:
        return self._shot(UNKNOWN, self._rng.choice(UNKNOWN_CODES), {"x": str(mutate.number(self._rng))}, b"")

    def _shot(self, handler: str, code: int, fields: dict[str, Any], body: bytes) -> Shot:
        rng = self._rng
        flag = 0
        kind = rng.random()
        if kind < 0.08:
            flag = FLAG_ONEWAY
        elif kind < 0.1:
            flag = rng.choice((FLAG_RESPONSE, FLAG_RESPONSE | FLAG_ONEWAY))
        elif kind < 0.12:
            flag = rng.choice((4, 8, 1 << 20))
        if rng.random() < 0.15 and all(type(each) is str for each in fields.values()):
            try:
                data = self._binary(code, flag, fields, body)
            except (UnicodeEncodeError, struct.error):
                data = self._json(code, flag, fields, body)
        else:
            data = self._json(code, flag, fields, body)
        is_answered = not flag & (FLAG_ONEWAY | FLAG_RESPONSE)
        return Shot(Port.REMOTING, handler, data, self._opaque if is_answered else -1)

    def _binary(self, code: int, flag: int, fields: dict[str, str], body: bytes) -> bytes:
        return encode_frame(code, self._opaque, flag, ext=fields, body=body, serialize_type=BINARY)

    def _json(self, code: int, flag: int, fields: dict[str, Any], body: bytes) -> bytes:
        rng = self._rng
        header: dict[str, Any] = {
            "code": code,
            "language": rng.choice(("JAVA", "CPP", "GO", 7)),
            "version": rng.choice((477, 0, 100)),
            "opaque": self._opaque,
            "flag": flag,
            "extFields": fields,
        }
        if rng.random() < 0.03:
            odd = {rng.choice(("remark", "language", "x", "serializeTypeCurrentRPC")): mutate.text(rng)}
            header |= odd if mutate.is_json(odd) else {}
        data = json.dumps(header).encode()
        return struct.pack(">iI", 4 + len(data) + len(body), JSON << 24 | len(data)) + data + body

    def _binary_broken(self) -> bytes:
        rng = self._rng
        good = bytearray(encode_frame(34, 1, 0, ext={"a": "b", "c": "d"}, serialize_type=BINARY))
        at = rng.randrange(8, len(good) - 4)
        good[at : at + 4] = struct.pack(">I", rng.choice((0xFFFFFFFF, 0x7FFFFFFF, 0, 0x80000000)))
        return bytes(good)

    def _tame(self, code: int, fields: dict[str, Any]) -> None:
        """Tames fields that would make a run different from what it is meant to be: endless names, answers that may be
        held long.
        """
        for name, known in _NAMES.items():
            if name in fields and fields[name] not in known and self._rng.random() < 0.5:
                fields[name] = self._rng.choice(known)
            elif isinstance(fields.get(name), str) and len(fields[name]) < 100 and code in SENDS:
                fields[name] = fields[name] if fields[name] in known or fields[name] in mutate.TEXTS else "fuzz-0"
        if "suspendTimeoutMillis" in fields and self._rng.random() < 0.9:
            fields["suspendTimeoutMillis"] = str(self._rng.randrange(SUSPEND_MAX_MS))
        elif code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            fields["sysFlag"] = self._rng.choice(("0", "4"))

    def _body(self, code: int) -> bytes:
        rng = self._rng
        if (document := _DOCUMENTS.get(code)) is not None:
            return mutate.encode(rng, mutate.tree(rng, document(rng), rng.choice((0, 1, 1, 2))))
        if code in SENDS:
            return _batch(rng) if rng.random() < 0.4 else rng.randbytes(rng.randrange(80))
        return mutate.noise(rng) if rng.random() < 0.05 else b""


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
        "groupRetryPolicy": {"type": "CUSTOMIZED", "next": [1000, 2000]},
        "attributes": {"a": "b"},
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
"""Request code -> a good body, which is JSON."""


def _batch(rng: random.Random) -> bytes:
    """Some messages behind one another, sometimes with lengths that lie."""
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
