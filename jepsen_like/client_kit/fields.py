"""Fields and bodies of requests in the form of RocketMQ's clients, for raw clients of all kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

WAIT_FALSE = "WAIT=false"
"""RocketMQ's property for acknowledgement level `leader`."""


def place_of(group: str, topic: str, queue_id: int) -> dict[str, str]:
    """Returns the fields that name a group's queue."""
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}


def topic_fields(name: str, queues: int = 1, perm: int = 6) -> dict[str, str]:
    """Returns the fields of request 17, which creates or changes a topic."""
    return {"topic": name, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": str(perm)}


def send_fields(topic: str, properties: str = "") -> dict[str, str]:
    """Returns the fields of a send to queue 0 (requests 310 and 320)."""
    return {"a": "hostile", "b": topic, "e": "0", "g": "1", "i": properties}


def foreign_send(topic: str, message_id: str, queue_id: int, level: str = "", group: str = "g") -> dict[str, str]:
    """Returns the fields of a send as RocketMQ's clients write them, with the id as UNIQ_KEY. `level`: the
    acknowledgement level, or `WAIT=false`."""
    more = f"ACK_LEVEL\x01{level}\x02" if level else ""
    if level == WAIT_FALSE:
        more = "WAIT\x01false\x02"
    return {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": f"UNIQ_KEY\x01{message_id}\x02{more}",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def pull_fields(
    group: str,
    topic: str,
    queue_id: int = 0,
    offset: int = 0,
    *,
    count: int = 32,
    wanted: str = "",
    suspend_ms: int = 0,
) -> dict[str, str]:
    """Returns the fields of request 11, which carries its own subscription: all tags, or the SQL92 filter `wanted`. The
    node may wait up to `suspend_ms` milliseconds for messages; 0: it answers at once.
    """
    return place_of(group, topic, queue_id) | {
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": "6" if suspend_ms else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": wanted or "*",
        "subVersion": "0",
        "expressionType": "SQL92" if wanted else "TAG",
    }


def group_body(name: str, **more: object) -> bytes:
    """Returns the body of request 200, which creates or changes a consumer group."""
    return json.dumps({"groupName": name, **more}).encode()


def beat_body(client: str, groups: Sequence[str], topics: Sequence[str] = (), version: int = 1) -> bytes:
    """Returns the body of request 34, the heartbeat of a client with consumers of these groups, each subscribed to all
    these topics.
    """
    subscriptions = [{"topic": each, "subString": "*", "subVersion": version} for each in topics]
    consumers: list[dict[str, Any]] = [
        {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
        }
        for group in groups
    ]
    return json.dumps({"clientID": client, "consumerDataSet": consumers, "producerDataSet": []}).encode()
