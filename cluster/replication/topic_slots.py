"""A topic as the send path needs it, made from its configuration once per term of leadership."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.replication.ack_levels import ATTRIBUTE, NAMES
from cluster.replication.message_batch import QueueCursor, TopicSlot

if TYPE_CHECKING:
    from statemachine.topics import TopicConfig


def slot_of(config: TopicConfig, default: int, cursor: Callable[[int, int], QueueCursor]) -> TopicSlot:
    """`default`: the acknowledgement level where the topic names none."""
    dedup = config.attributes.get("dedup", "retry")
    if dedup == "strict" and config.name[0] == "%":
        dedup = "retry"  # a message sent back again has the key and body of the copy before
    queues = max(config.read_queues, config.write_queues)
    ack = NAMES.get(config.attributes.get(ATTRIBUTE, ""), default)
    return TopicSlot(config.name, config.id, config.write_queues, queues, config.perm, dedup, cursor, ack)
