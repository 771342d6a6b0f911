"""Fields and bodies of requests in the form of RocketMQ's clients, for raw clients of all kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def place_of(group: str, topic: str, queue_id: int) -> dict[str, str]:
    """Returns the fields that name a group's queue."""
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}


def topic_fields(name: str, queues: int = 1, perm: int = 6) -> dict[str, str]:
    """Returns the fields of request 17."""
    return {"topic": name, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": str(perm)}


def send_fields(topic: str, properties: str = "") -> dict[str, str]:
    """Returns the fields of requests 310 and 320, for queue 0."""
    return {"a": "hostile", "b": topic, "e": "0", "g": "1", "i": properties}


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
    """Returns the fields of request 11, which carries its own subscription: all tags, or the filter `wanted`. It waits
    for messages if `suspend_ms` is given."""
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
    """Returns the body of request 200."""
    return json.dumps({"groupName": name, **more}).encode()


def beat_body(client: str, groups: Sequence[str], topics: Sequence[str] = (), version: int = 1) -> bytes:
    """Returns the body of request 34: a client with consumers of these groups, each subscribed to all these topics."""
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
