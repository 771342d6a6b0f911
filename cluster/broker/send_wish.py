"""What a front hands to `Sends`: the wish of a producer, and the request that it came in."""

from __future__ import annotations

from typing import Protocol

from cluster.replication.identity import Identity
from cluster.replication.outcome import ReplyTo


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
        """Where it came from, and its answer goes."""

    @property
    def version(self) -> int:
        """Of the client's protocol."""

    @property
    def size(self) -> int:
        """Bytes that count against the limits until it is answered."""

    @property
    def body(self) -> bytes:
        """The message's, or the messages of a batch as clients pack them."""


class SendWish(Protocol):
    """What a producer asks for."""

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
    """Of a topic that the send makes."""
    is_batch: bool | None
    producer_id: str
    """The producer's own identity, 32 hex digits; "" if it has none."""
    sequence: int
    low_sequence: int
