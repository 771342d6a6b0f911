"""Copies of stored messages that the broker makes for itself: no client waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.sends import tag_hash
from cluster.replication.ack_levels import Ack
from cluster.replication.message_batch import BatchMessage, Effect, Send, TopicSlot
from cluster.replication.message_head import MessageHead
from cluster.replication.message_keys import UNIQUE_MARK, property_of
from cluster.wire.message_format import Message, encode_host
from statemachine.payload import RowKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.replication.identity import ConnectionSession
    from cluster.replication.outcome import Outcome
    from cluster.replication.proposals import Proposals

SYS_FLAGS_OF_A_COPY = ~0x3C
"""All but where in a transaction it is and how its addresses are written."""


class NoClient:
    """In place of the connection of a send: it takes no answers."""

    def __init__(self) -> None:
        self.closed = False
        self.inflight_bytes = 0
        self.session: ConnectionSession | None = None

    def write(self, data: bytes) -> None:
        """Drops it: nobody reads it."""


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


def submit_copies(
    proposals: Proposals,
    client: NoClient,
    copies: Sequence[BatchMessage],
    slot: TopicSlot,
    queue_id: int,
    kind: RowKind,
    effect: Effect,
    done: Callable[[Outcome], None],
) -> int:
    """Queues copies for one queue, which come into one entry together with `effect`. Returns their bytes, roughly."""
    size = sum([115 + len(copy.body) + len(copy.properties) + len(slot.field) for copy in copies])
    send = Send(
        connection=client,
        size=size,
        origin=None,
        oneway=True,
        slot=slot,
        queue_id=queue_id,
        flag=0,
        sys_flag=0,
        born_ms=0,
        born_host=b"",
        reconsume_times=0,
        body=b"",
        properties=b"",
        tag_hash=0,
        unique_key="",
        kind=kind,
        producer_id=b"",
        sequence=0,
        low_sequence=0,
        batch=tuple(copies),
        received_ms=proposals.now_ms,
        ack=Ack.QUORUM_FSYNC,
        effect=effect,
        done=done,
    )
    client.inflight_bytes += size
    proposals.bytes_inflight += size
    proposals.submit_send(send)
    return size
