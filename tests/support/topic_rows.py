"""The rows of a topic as a plain consumer sees them."""

from __future__ import annotations

import raftmq
from tests.support.wait_until import wait


def rows_of(mq: raftmq.Client, topic: str) -> list[raftmq.Message]:
    """Every message of the topic, queue by queue."""
    found: list[raftmq.Message] = []
    for queue in mq.admin.describe_topic(topic).queues:
        found += _queue(mq, topic, queue.queue_id, queue.min_offset, queue.max_offset)
    return found


def wait_for_rows(mq: raftmq.Client, topic: str, count: int) -> list[raftmq.Message]:
    """All messages once there are `count`. Fails if there are more."""
    found: list[raftmq.Message] = []

    def all_there() -> bool:
        found[:] = rows_of(mq, topic)
        return len(found) >= count

    wait(all_there, lambda: f"{len(found)} of {count} messages", progress=lambda: len(found), every_s=0.2)
    assert len(found) == count
    return found


def _queue(mq: raftmq.Client, topic: str, queue_id: int, at: int, end: int) -> list[raftmq.Message]:
    found: list[raftmq.Message] = []
    while at < end:
        messages = mq.pull(topic, queue_id, at).messages
        found += messages
        at += len(messages)
    return found
