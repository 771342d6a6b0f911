"""Copies of stored messages that go to a queue."""

from __future__ import annotations

from cluster.replication.message_batch import BatchMessage, TopicSlot
from cluster.replication.message_head import UNIQUE_MARK, MessageHead, property_of, tag_hash
from raftmq_wire.kernel import twin
from raftmq_wire.message_format import Message, MessageFormatError, born_host_of, decode_message, encode_host
from statemachine.payload import ITEM

SYS_FLAGS_OF_A_COPY = ~0x3C
"""All but where in a transaction it is and how its addresses are written."""


def queue_for(queue_id: int, slot: TopicSlot) -> int:
    """The queue of the topic that a copy for `queue_id` goes to: the topic may have been made anew with fewer."""
    return queue_id if queue_id < slot.queues else queue_id % slot.write_queues


def copied(
    message: Message,
    properties: bytes,
    *,
    sys_flag: int = 0,
    prepared_position: int = 0,
) -> BatchMessage:
    """A copy with the head of the message; `sys_flag`: bits that it has besides."""
    head = MessageHead(
        message.sys_flag & SYS_FLAGS_OF_A_COPY | sys_flag,
        message.born_ms,
        encode_host(message.born_host),
        message.reconsume_times,
        prepared_position,
    )
    unique_key = property_of(properties, UNIQUE_MARK)
    tag = tag_hash(property_of(properties, b"TAGS\x01"))
    return BatchMessage(message.flag, message.body, properties, tag, 0, unique_key, head)


@twin
def copies_of(stored: bytes, items: bytes) -> tuple[BatchMessage, ...]:
    """Copies of the messages of a row, with their own heads and properties; `items` are the row's, packed, and `stored`
    has the messages one behind the other. The hash of a tag is taken from the item.

    If one is no stored message, or has another size than its item says, there are copies of those before it alone.
    """
    copies: list[BatchMessage] = []
    at = 0
    for _, size, _, tag, _ in ITEM.iter_unpack(items):
        try:
            message, end = decode_message(stored, at, hosts=False)
        except MessageFormatError:
            break
        if end - at != size:
            break
        sys_flag = message.sys_flag & SYS_FLAGS_OF_A_COPY
        head = MessageHead(sys_flag, message.born_ms, born_host_of(stored, at), message.reconsume_times)
        unique_key = property_of(message.properties, UNIQUE_MARK)
        copies.append(BatchMessage(message.flag, message.body, message.properties, tag, 0, unique_key, head))
        at = end
    return tuple(copies)
