"""The head of a message that is not stored as its Send says, and what raw properties say: keys and the tag's hash.

Copies that the broker makes, and messages that wait in no queue, are stored otherwise. The keys by which a message can
be found are UNIQ_KEY and the words of KEYS.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import msgspec

from raftlog.work import charge
from raftmq_wire.kernel import twin
from raftmq_wire.message_format import java_hash

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""RocketMQ's topic of messages with a delay level: queue id level - 1."""


class TopicField(msgspec.Struct, gc=False, frozen=True):
    """The name of a topic as a stored message holds it."""

    field: bytes
    """Length, and the name."""
    v2: bool
    """True if the length takes two bytes: the message then has the second magic number."""


def topic_field(name: str) -> TopicField:
    """The field of this topic."""
    encoded = name.encode()
    v2 = len(encoded) > 127
    return TopicField((len(encoded).to_bytes(2 if v2 else 1, "big")) + encoded, v2)


class NamedAs(Protocol):
    """Knows a topic's name in this form."""

    @property
    def field(self) -> bytes:
        """Length, and the name (`TopicField.field`)."""

    @property
    def v2(self) -> bool:
        """True if the length takes two bytes (`TopicField.v2`)."""


@twin
class MessageHead(msgspec.Struct, gc=False):
    """Fields of a stored message, named as those of a Send."""

    sys_flag: int
    born_ms: int
    born_host: bytes
    """ip (4 or 16 bytes) and int32 port."""
    reconsume_times: int
    prepared_position: int = 0
    """The position of the half message, if this is a committed message."""


class Schedule(msgspec.Struct, gc=False, frozen=True):
    """When a message is due, and where it is stored until then."""

    topic: TopicField
    queue_id: int
    delay_ms: int = 0
    """Counted from the store time, unless there is `due_ms`."""
    due_ms: int = 0
    """Log time."""
    names_due: bool = False
    """True if its property TIMER_OUT_MS is to say when it is due."""


UNIQUE_MARK = b"UNIQ_KEY\x01"
KEYS_MARK = b"KEYS\x01"


def property_of(properties: bytes, mark: bytes) -> bytes:
    """The value of a property in `name 0x01 value 0x02 ...`, `mark` being its name with the 0x01; b"" if absent."""
    at = properties.find(mark)
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(mark, at + 1)
    if at < 0:
        return b""
    start = at + len(mark)
    end = properties.find(b"\x02", start)
    return properties[start:] if end < 0 else properties[start:end]


def key_words(properties: bytes) -> list[bytes]:
    """The keys in KEYS, which RocketMQ separates by single spaces; each once, in their order."""
    return [word for word in dict.fromkeys(property_of(properties, KEYS_MARK).split(b" ")) if word]


CACHED_TAG_MAX = 64
"""Bytes of a tag whose hash is remembered; longer ones are rare, and 65,536 of them would be gigabytes."""
LETTERS_PER_UNIT = 16
"""Letters of a long tag that cost the meter one unit."""


@lru_cache(maxsize=65536)
def cached_tag_hash(tag: bytes) -> int:
    """Returns the hash of a tag of at most CACHED_TAG_MAX bytes that is not empty."""
    return java_hash(tag.decode("utf-8", "replace"))


def tag_hash(tag: bytes) -> int:
    """RocketMQ's tagsCode: Java hash of the tag, 0 without one."""
    if not tag:
        return 0
    if len(tag) <= CACHED_TAG_MAX:
        return cached_tag_hash(tag)
    charge(len(tag) // LETTERS_PER_UNIT)
    return java_hash(tag.decode("utf-8", "replace"))
