"""Defines the values that the server of a protocol passes to `Sends`: a producer's send in decoded form, and the
request in which it came."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from cluster.broker.delivery_time import DELAY, TIMERS, level_of
from cluster.broker.name_rules import DEAD_LETTER_PREFIX, RETRY_PREFIX
from cluster.replication.message_head import property_of
from cluster.replication.outcome import ReplyTo
from cluster.replication.send_identity import Identity
from raftmq_wire.kernel import shortcut
from raftmq_wire.properties import without

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.config.service_sections import LimitsSection
    from cluster.replication.message_batch import BatchMessage
    from statemachine.consuming.groups import GroupConfig


class SendPath(ReplyTo, Protocol):
    """The connection over which a send came, or the stand-in for a connection of another node."""

    @property
    def born_host(self) -> bytes:
        """The client's own IP address (4 or 16 bytes), followed by its port as an int32."""

    @property
    def forwarded(self) -> bool:
        """True if another node holds the client's connection."""


class Origin(Protocol):
    """A send request in the form of its protocol. The broker reads these attributes, and passes the object back with
    the answer."""

    identity: Identity | None
    """The identity that the node with the client's connection has given to the send. None if it has given none, and for
    a send whose client has named the session itself. The session id that is derived from such a name is never kept
    here. The leader that handles the send derives it from the request and its user."""

    @property
    def path(self) -> SendPath:
        """The connection over which the request came, and over which its answer is sent."""

    @property
    def user(self) -> int:
        """The id of the user who signed the request; 0 if none is proven."""

    @property
    def version(self) -> int:
        """The version of the client's protocol."""

    @property
    def size(self) -> int:
        """The bytes that count against the limits until the request is answered."""

    @property
    def body(self) -> bytes:
        """The body of the message, or the messages of a batch as clients pack them."""


class DecodedSend(Protocol):
    """A producer's send, decoded and not yet checked."""

    topic: str
    queue_id: int
    """The queue; -1 if the broker chooses one."""
    properties: str
    message_flag: int
    sys_flag: int
    born_ms: int
    reconsume_times: int | None
    max_reconsume_times: int | None
    default_queues: int
    """The number of queues of a topic that the send creates."""
    is_batch: bool | None
    producer_id: str
    """The name that the producer gives its session: 32 hex digits, "" if it gives none."""
    sequence: int
    low_sequence: int


@shortcut
class PlainBatches:
    """Divides batches whose messages are all plain: each message has a UNIQ_KEY, and none has a property on which the
    broker acts. The Python version divides no batch and returns None for all, because `Sends.split_batch` does the same
    work."""

    def __init__(self, limits: LimitsSection, suffix: bytes) -> None:
        """`suffix`: the properties that the broker adds to every message."""

    def split(self, body: bytes) -> tuple[BatchMessage, ...] | None:
        """Returns the messages of a batch request to a topic without dedup=strict. Returns None if a message is not
        plain, does not fit the limits or is malformed; the caller then handles the batch in the general way."""
        return None


# Sends to `%RETRY%group`: a consumer whose request 36 was refused sends the message there itself.
#
# It asks for a delay (property DELAY) and states how often the message was tried. Past the maximum the message goes to
# the dead letters of the group, without a delay. Source: RocketMQ's SendMessageProcessor.handleRetryAndDLQ.
#
# An orderly Java consumer sends a message here when it gives the message up, after the maximum of tries. Up to version
# 5.1.0 it counts only the tries before the last, so that its count never passes the maximum. A concurrent consumer with
# the same count has one try left. The delay that they ask for tells them apart: both ask for the level `3 + tries
# before`, and the concurrent one's count is one ahead. RocketMQ 4.9 looks at the count alone, and takes the last try
# from concurrent consumers; from 5.1.1 on it takes every send to this topic for a dead letter while any queue of the
# group is locked, which no client needs.

V5_1_1 = 435
"""Protocol version of the first RocketMQ whose orderly consumers count the last try (MQVersion.V5_1_1)."""
_FIRST_LEVEL = 3


class SendTarget(NamedTuple):
    """The topic and queue to which a send goes, and its properties there."""

    topic: str
    queue_id: int
    properties: str


def redirected(decoded: DecodedSend, groups: Mapping[str, GroupConfig], version: int) -> SendTarget:
    """Returns the target of a send. For a send to a %RETRY% topic the comment above describes it; any other send goes
    where it asks. `version`: the version of the client's protocol. Raises Refused if the property DELAY has to be read
    and is not a number."""
    properties = decoded.properties
    if not decoded.topic.startswith(RETRY_PREFIX):
        return SendTarget(decoded.topic, decoded.queue_id, properties)
    name = decoded.topic.removeprefix(RETRY_PREFIX)
    group = groups.get(name)
    if group is not None:
        named = decoded.max_reconsume_times
        maximum = named if named is not None and named >= 0 else group.retry_max_times
        tries = decoded.reconsume_times or 0
        if tries > maximum or (tries == maximum and version < V5_1_1 and _is_given_up(properties, tries)):
            kept = without(properties.encode(), DELAY, *TIMERS).decode()
            return SendTarget(DEAD_LETTER_PREFIX + name, 0, kept)
    return SendTarget(decoded.topic, decoded.queue_id, properties)


def _is_given_up(properties: str, tries: int) -> bool:
    """Returns True if only a consumer with no try left can have sent this. `properties`: those of the send. `tries`:
    the number of tries that it states. Raises Refused if the property DELAY is not a number."""
    asked = properties.encode()
    return not property_of(asked, DELAY) or level_of(asked) >= _FIRST_LEVEL + tries
