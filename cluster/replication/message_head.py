"""Defines the fields of a stored message that may differ from those of its Send (`MessageHead` for copies that the
broker makes, `DeliverySchedule` for messages that are not yet in their queue). Also reads keys and the tag's hash from
raw properties.

The keys by which a message can be found are UNIQ_KEY and the words of KEYS.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import msgspec

from raftlog.work import charge
from raftmq_wire import properties as wire_properties
from raftmq_wire.kernel import twin
from raftmq_wire.message_format import java_hash

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""RocketMQ's topic of messages with a delay level; their queue id is the level - 1."""


class TopicField(msgspec.Struct, gc=False, frozen=True):
    """The name of a topic in the form in which stored messages contain it."""

    field: bytes
    """The length of the name, followed by the name."""
    v2: bool
    """True if the length takes two bytes: the message then has RocketMQ's second magic number."""


def topic_field(name: str) -> TopicField:
    """Returns a topic's name in the form of stored messages."""
    encoded = name.encode()
    v2 = len(encoded) > 127
    return TopicField((len(encoded).to_bytes(2 if v2 else 1, "big")) + encoded, v2)


class NamedAs(Protocol):
    """An object that has a topic's name in the form of stored messages."""

    @property
    def field(self) -> bytes:
        """The length of the name, followed by the name (`TopicField.field`)."""

    @property
    def v2(self) -> bool:
        """True if the length takes two bytes (`TopicField.v2`)."""


@twin
class MessageHead(msgspec.Struct, gc=False):
    """Fields of a stored message that replace those of its Send with the same names."""

    sys_flag: int
    born_ms: int
    born_host: bytes
    """The client's address: ip (4 or 16 bytes) and int32 port."""
    reconsume_times: int
    prepared_position: int = 0
    """The position of the half message whose transaction is committed by this copy; otherwise 0."""


class DeliverySchedule(msgspec.Struct, gc=False, frozen=True):
    """The due time of a message, and the topic and queue id under which it is stored until then."""

    topic: TopicField
    queue_id: int
    delay_ms: int = 0
    """The delay after the store time in milliseconds; used only if `due_ms` is 0."""
    due_ms: int = 0
    """The log time at which the message is due; 0 if `delay_ms` determines it."""
    names_due: bool = False
    """True if the message gets a property TIMER_OUT_MS with its due time."""
    owner: int = 0
    """Id of the user whose half message it is; 0 if no owner is recorded."""

    def owned_by(self, user: int) -> DeliverySchedule:
        """Returns this schedule with the id of the user whose half message it is."""
        return msgspec.structs.replace(self, owner=user)


UNIQUE_MARK = b"UNIQ_KEY\x01"
KEYS_MARK = b"KEYS\x01"
TAG_MARK = b"TAGS\x01"

property_of = twin(wire_properties.property_of)
"""property_of(properties, mark) returns the value of one property (`raftmq_wire.properties.property_of`)."""


def key_words(properties: bytes) -> list[bytes]:
    """Returns the keys in the property KEYS, which RocketMQ separates by single spaces; each key once, in the order of
    its first occurrence."""
    return [word for word in dict.fromkeys(property_of(properties, KEYS_MARK).split(b" ")) if word]


CACHED_TAG_MAX = 64
"""The most bytes of a tag whose hash is cached; longer ones are rare, and a full cache of them could take gigabytes."""
LETTERS_PER_UNIT = 16
"""The letters of a long tag whose hashing costs one unit of `raftlog.work`."""


@lru_cache(maxsize=65536)
def cached_tag_hash(tag: bytes) -> int:
    """Returns the hash of a tag that has 1 to CACHED_TAG_MAX bytes."""
    return java_hash(tag.decode("utf-8", "replace"))


def tag_hash(tag: bytes) -> int:
    """Returns RocketMQ's tagsCode: the Java hash of the tag, 0 for no tag."""
    if not tag:
        return 0
    if len(tag) <= CACHED_TAG_MAX:
        return cached_tag_hash(tag)
    charge(len(tag) // LETTERS_PER_UNIT)
    return java_hash(tag.decode("utf-8", "replace"))
