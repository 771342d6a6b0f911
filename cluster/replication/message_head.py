"""How a message is stored if not as its Send says: copies that the broker makes, and messages that wait in no queue."""

from __future__ import annotations

from typing import Protocol

import msgspec

from cluster.kernel import twin

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""RocketMQ's topic of messages with a delay level: queue id level - 1."""


class TopicField(msgspec.Struct, gc=False, frozen=True):
    """The name of a topic as a stored message holds it."""

    field: bytes
    """Length, and the name."""
    v2: bool
    """Whether the length takes two bytes: the message then has the second magic number."""


def topic_field(name: str) -> TopicField:
    """The field of this topic."""
    encoded = name.encode()
    v2 = len(encoded) > 127
    return TopicField((len(encoded).to_bytes(2 if v2 else 1, "big")) + encoded, v2)


class NamedAs(Protocol):
    """What knows a topic's name in this form."""

    @property
    def field(self) -> bytes:
        """See TopicField."""

    @property
    def v2(self) -> bool:
        """See TopicField."""


@twin
class MessageHead(msgspec.Struct, gc=False):
    """Fields of a stored message, named as those of a Send."""

    sys_flag: int
    born_ms: int
    born_host: bytes
    """ip (4 or 16 bytes) and int32 port."""
    reconsume_times: int
    prepared_position: int = 0
    """Of a committed message: the position of its half message."""


class Schedule(msgspec.Struct, gc=False, frozen=True):
    """When a message is due, and where it is stored until then."""

    topic: TopicField
    queue_id: int
    delay_ms: int = 0
    """Counted from the store time, unless there is `due_ms`."""
    due_ms: int = 0
    """Log time."""
    names_due: bool = False
    """Whether its property TIMER_OUT_MS is to say when it is due."""
