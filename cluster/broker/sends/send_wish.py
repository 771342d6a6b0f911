"""The wish of a producer, and the request that it came in: values that a front hands to `Sends`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cluster.broker.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from cluster.replication.identity import Identity
from cluster.replication.outcome import ReplyTo
from raftmq_wire.kernel import twin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.config.config import LimitsSection
    from cluster.replication.message_batch import BatchMessage
    from statemachine.consuming.groups import GroupConfig


class SendPath(ReplyTo, Protocol):
    """The connection that a send came over, or its stand-in."""

    @property
    def born_host(self) -> bytes:
        """The client's own ip (4 or 16 bytes) and int32 port."""


class Origin(Protocol):
    """A request to send as its front keeps it: the broker looks at this much of it and hands it back."""

    identity: Identity | None
    """Given by the node that holds the client's connection; the client's own takes precedence."""

    @property
    def path(self) -> SendPath:
        """The connection that it came through; its answer goes back through it."""

    @property
    def version(self) -> int:
        """The version of the client's protocol."""

    @property
    def size(self) -> int:
        """Bytes that count against the limits until it is answered."""

    @property
    def body(self) -> bytes:
        """The message's, or the messages of a batch as clients pack them."""


class SendWish(Protocol):
    """The wish of a producer."""

    topic: str
    queue_id: int
    """-1: the broker chooses."""
    properties: str
    message_flag: int
    sys_flag: int
    born_ms: int
    reconsume_times: int | None
    max_reconsume_times: int | None
    default_queues: int
    """Queues of a topic that the send makes."""
    is_batch: bool | None
    producer_id: str
    """The producer's own identity, 32 hex digits; "" if it has none."""
    sequence: int
    low_sequence: int


@twin
class PlainBatches:
    """Divides batches whose messages are all plain: named by a UNIQ_KEY, and with no property that the broker acts on.
    In Python there is no shorter way than `Sends.split_batch`: it divides none."""

    def __init__(self, limits: LimitsSection, suffix: bytes) -> None:
        """`suffix`: properties that the broker adds to every message."""

    def split(self, body: bytes) -> tuple[BatchMessage, ...] | None:
        """The messages of a batch request to a topic without dedup=strict; None if one is not plain, does not fit the
        limits or is malformed."""
        return None


# Sends to `%RETRY%group`: a consumer whose request 36 was refused sends the message there itself.
#
# It asks for a delay (property DELAY) and tells how often the message was tried. Past the maximum the message goes to
# the dead letters of the group, without a delay. Source: RocketMQ's SendMessageProcessor.handleRetryAndDLQ.
#
# An orderly Java consumer sends here what it gives up, after as many tries as it may. Up to version 5.1.0 it counts
# only those before the last, so that its count never passes the maximum. What it asks for tells it from a concurrent
# one, which has a try left at that count: both ask for the level `3 + tries before`, and the concurrent one's count
# is one ahead. RocketMQ 4.9 looks at the count alone, and takes the last try from concurrent consumers; from 5.1.1 on
# it takes every send to here for a dead letter while any queue of the group is locked, which no client needs.

V5_1_1 = 435
"""Protocol version of the first RocketMQ whose orderly consumers count the last try (MQVersion.V5_1_1)."""
_FIRST_LEVEL = 3
_DELAY = re.compile(r"(?:^|\x02)DELAY\x01(\d{1,9})(?:\x02|$)")
_DELAYS = ("DELAY\x01", "TIMER_DELIVER_MS\x01", "TIMER_DELAY_SEC\x01", "TIMER_DELAY_MS\x01")


class Target(NamedTuple):
    """The topic and queue that a send goes to, and its properties there."""

    topic: str
    queue_id: int
    properties: str


def redirected(wish: SendWish, groups: Mapping[str, GroupConfig], version: int) -> Target:
    """The target of a send to a %RETRY% topic as above; of every other send what it asks for. `version`: of the
    client's protocol."""
    properties = wish.properties
    if not wish.topic.startswith(RETRY_PREFIX):
        return Target(wish.topic, wish.queue_id, properties)
    name = wish.topic.removeprefix(RETRY_PREFIX)
    group = groups.get(name)
    if group is not None:
        named = wish.max_reconsume_times
        maximum = named if named is not None and named >= 0 else group.retry_max_times
        tries = wish.reconsume_times or 0
        if tries > maximum or (tries == maximum and version < V5_1_1 and _is_given_up(properties, tries)):
            kept = [part for part in properties.split("\x02") if part and not part.startswith(_DELAYS)]
            properties = "".join(part + "\x02" for part in kept)
            return Target(DEAD_LETTER_PREFIX + name, 0, properties)
    return Target(wish.topic, wish.queue_id, properties)


def _is_given_up(properties: str, tries: int) -> bool:
    """Returns True if nobody who has a try left sends this."""
    asked = _DELAY.search(properties)
    return asked is None or int(asked[1]) >= _FIRST_LEVEL + tries
