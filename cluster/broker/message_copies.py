"""Makes copies of stored messages. The copies are stored in another queue."""

from __future__ import annotations

from cluster.replication.message_batch import BatchMessage, TopicSlot
from cluster.replication.message_head import TAG_MARK, UNIQUE_MARK, MessageHead, property_of, tag_hash
from raftmq_wire.kernel import twin
from raftmq_wire.message_format import Message, MessageFormatError, born_host_of, decode_message, encode_host
from statemachine.payload import ITEM

SYS_FLAGS_OF_A_COPY = ~0x3C
"""The mask of the system flags that a copy keeps: all except the state of its transaction and the form of its
addresses."""


def queue_for(queue_id: int, slot: TopicSlot) -> int:
    """Returns the queue for a copy that was meant for `queue_id`. It may be another one, because the topic may have
    been created again with fewer queues."""
    return queue_id if queue_id < slot.queues else queue_id % slot.write_queues


def copied(
    message: Message,
    properties: bytes,
    *,
    sys_flag: int = 0,
    prepared_position: int = 0,
) -> BatchMessage:
    """Returns a copy of the message with other properties and, apart from the flags that a copy does not keep, the same
    head. `sys_flag`: further bits to set in its system flags."""
    head = MessageHead(
        message.sys_flag & SYS_FLAGS_OF_A_COPY | sys_flag,
        message.born_ms,
        encode_host(message.born_host),
        message.reconsume_times,
        prepared_position,
    )
    unique_key = property_of(properties, UNIQUE_MARK)
    tag = tag_hash(property_of(properties, TAG_MARK))
    return BatchMessage(message.flag, message.body, properties, tag, 0, unique_key, head)


@twin
def copies_of(stored: bytes, items: bytes) -> tuple[BatchMessage, ...]:
    """Returns copies of a row's messages, with their own heads and properties. `items` are the row's packed items, and
    `stored` holds the messages back to back. The tag's hash is taken from the item.

    If one of them is not a stored message, or has another size than its item says, only the messages before it are
    copied.
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
