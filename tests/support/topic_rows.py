"""The rows of a topic as a plain consumer sees them."""

from __future__ import annotations

import time

import raftmq

SETTLES_S = 60


def rows_of(mq: raftmq.Client, topic: str) -> list[raftmq.Message]:
    """Every message of the topic, queue by queue."""
    found: list[raftmq.Message] = []
    for queue in mq.admin.describe_topic(topic).queues:
        found += _queue(mq, topic, queue.queue_id, queue.min_offset, queue.max_offset)
    return found


def wait_for_rows(mq: raftmq.Client, topic: str, count: int) -> list[raftmq.Message]:
    """All messages once there are `count`. Fails if there are more."""
    end = time.monotonic() + SETTLES_S
    while len(found := rows_of(mq, topic)) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} messages"
        time.sleep(0.2)
    assert len(found) == count
    return found


def _queue(mq: raftmq.Client, topic: str, queue_id: int, at: int, end: int) -> list[raftmq.Message]:
    found: list[raftmq.Message] = []
    while at < end:
        messages = mq.pull(topic, queue_id, at).messages
        found += messages
        at += len(messages)
    return found
