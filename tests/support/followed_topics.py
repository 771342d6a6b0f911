"""Topics that a table follows: fills them, and says which messages a table of them should have."""

from __future__ import annotations

import raftmq


def send(mq: raftmq.Client, topic: str, *counts: int) -> None:
    """Sends so many messages to each queue."""
    for queue, count in enumerate(counts):
        if count:
            mq.send_batch(topic, [b"x" * 10] * count, queue_id=queue, key="k", properties={"shop": "7"})


def stored(mq: raftmq.Client, topic: str) -> list[tuple[int, int]]:
    """The messages of the topic: (queue, offset)."""
    queues = mq.admin.describe_topic(topic).queues
    return [(queue.queue_id, offset) for queue in queues for offset in range(queue.min_offset, queue.max_offset)]
