"""Where messages are in a cluster of several groups of brokers: a foreign client tells the number of a queue within its
group, so our own client reads what is stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import raftmq
from raftmq_wire.queue_numbers import queue_in_group
from tests.support.compat_judges import Seen


class Place(NamedTuple):
    """What a foreign client tells of a message. Two groups have the same place of one key only if a repeated send was
    stored in both at one offset of queues of one number."""

    key: str
    queue: int
    offset: int


def stored_in(mq: raftmq.Client, topic: str) -> list[raftmq.Message]:
    """Returns every message of a topic up to the ends of its queues, by plain pulls. Raises NotFound."""
    messages: list[raftmq.Message] = []
    for queue in mq.admin.describe_topic(topic).queues:
        at = queue.min_offset
        while at < queue.max_offset:
            pulled = mq.pull(topic, queue.queue_id, at, wait_s=5)
            messages += pulled.messages
            assert pulled.next_offset > at, f"queue {queue.queue_id} ends at {queue.max_offset}, and {at} is not served"
            at = pulled.next_offset
    return messages


def places(mq: raftmq.Client, topic: str) -> dict[Place, int]:
    """Returns the place of each message of a topic -> the number of its queue in the cluster. Raises NotFound."""
    return {
        Place(message.key or "", queue_in_group(message.queue_id), message.queue_offset): message.queue_id
        for message in stored_in(mq, topic)
    }


def in_cluster(seen: Seen, stored: dict[Place, int]) -> Seen:
    """Returns what was seen, each delivery with the number of its queue in the cluster. A retry is of another topic:
    it keeps the number that the client told."""
    deliveries = [
        replace(each, queue=stored.get(Place(each.key, each.queue, each.offset), each.queue))
        for each in seen.deliveries
    ]
    return replace(seen, deliveries=deliveries)
