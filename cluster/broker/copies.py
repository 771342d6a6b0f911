"""Copies of stored messages that go to a queue."""

from __future__ import annotations

from cluster.broker.sends import tag_hash
from cluster.replication.message_batch import BatchMessage, TopicSlot
from cluster.replication.message_head import MessageHead
from cluster.replication.message_keys import UNIQUE_MARK, property_of
from cluster.wire.message_format import Message, encode_host

SYS_FLAGS_OF_A_COPY = ~0x3C
"""All but where in a transaction it is and how its addresses are written."""


def queue_for(queue_id: int, slot: TopicSlot) -> int:
    """The queue of the topic that a copy for `queue_id` goes to: the topic may have been made anew with fewer."""
    return queue_id if queue_id < slot.queues else queue_id % slot.write_queues


def copied(
    message: Message,
    properties: bytes,
    slot: TopicSlot,
    queue_id: int,
    *,
    sys_flag: int = 0,
    prepared_position: int = 0,
) -> BatchMessage:
    """A copy for a queue, with the head of the message; `sys_flag`: bits that it has besides."""
    head = MessageHead(
        slot,
        queue_id,
        message.sys_flag & SYS_FLAGS_OF_A_COPY | sys_flag,
        message.born_ms,
        encode_host(message.born_host),
        message.reconsume_times,
        prepared_position,
    )
    unique_key = property_of(properties, UNIQUE_MARK)
    tag = tag_hash(property_of(properties, b"TAGS\x01"))
    return BatchMessage(message.flag, message.body, properties, tag, 0, unique_key, head)
