"""Row keys of every family, drawn. All integers big-endian, so byte order is numeric order. ::

    family   key                                                           value
    meta     "applied"                                                     applied row (below)
             "format"                                                      u32, FORMAT
             "next_topic_id"                                               u32, id of the next topic created
    topics   topic_id u32                                                  msgpack array, topics.py
    groups   group name (ASCII)                                            msgpack array, groups.py
    offsets  group name | 00 | topic_id u32 | queue_id u32                 u64, next queue offset to consume
    cq       topic_id u32 | queue_id u32 | base_offset u64                 1..256 items of 32 bytes, payload.py
    dedup    "p" | producer_id 16                                          low u64 | max u64 | last_ms u64
             "s" | producer_id 16 | entry index u64                        session rows of 32 bytes, payload.py
             "u" | topic_id u32 | key_hash u64 | body_crc u32              queue_id u32 | queue_offset u64 |
                                                                           position u64 | time_ms u64
             "t" | time_ms u64 | topic_id u32 | key_hash u64 | body_crc u32   empty: when a "u" row may expire

    applied row (36 bytes)
      term u64 | index u64 | end_position u64 | timestamp_ms u64 | header_crc u32      of the last applied entry

Group names contain neither 00 nor bytes above 7F (groups.py checks), so 00 ends a name and no name is a prefix of
another's keys.
"""

from __future__ import annotations

import struct

FORMAT = 1
"""Raised when rows change in a way an older version would misread."""

APPLIED_KEY = b"applied"
FORMAT_KEY = b"format"
NEXT_TOPIC_ID_KEY = b"next_topic_id"

APPLIED = struct.Struct(">QQQQI")
U32 = struct.Struct(">I")
U64 = struct.Struct(">Q")
PRODUCER = struct.Struct(">QQQ")
UNIQUE_VALUE = struct.Struct(">IQQQ")

_CQ = struct.Struct(">IIQ")
_QUEUE = struct.Struct(">II")
_SESSION = struct.Struct(">s16sQ")
_UNIQUE = struct.Struct(">sIQI")
_UNIQUE_TIME = struct.Struct(">sQIQI")

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
FIRST = b""
LAST = b"\xff" * 64
"""Above every key of every family."""

cq_key = _CQ.pack
"""(topic_id, queue_id, base_offset) -> key."""


def cq_base(key: bytes) -> int:
    """The base offset in a cq key."""
    base: int = _CQ.unpack(key)[2]
    return base


def cq_topic_range(topic_id: int) -> tuple[bytes, bytes]:
    """Keys [start, end) of all chunks of a topic."""
    return U32.pack(topic_id), U32.pack(topic_id) + b"\xff" * 16


def offset_key(group: str, topic_id: int, queue_id: int) -> bytes:
    """Key of a consumer offset."""
    return group.encode("ascii") + b"\0" + _QUEUE.pack(topic_id, queue_id)


def parse_offset_key(key: bytes) -> tuple[str, int, int]:
    """(group, topic_id, queue_id)."""
    topic_id, queue_id = _QUEUE.unpack(key[-8:])
    return key[:-9].decode("ascii"), topic_id, queue_id


def offsets_range(group: str) -> tuple[bytes, bytes]:
    """Keys [start, end) of a group's offsets."""
    name = group.encode("ascii")
    return name + b"\0", name + b"\x01"


def producer_key(producer_id: bytes) -> bytes:
    """Key of a producer's row."""
    return b"p" + producer_id


def session_key(producer_id: bytes, index: int) -> bytes:
    """Key of what one entry stored for a producer."""
    return _SESSION.pack(b"s", producer_id, index)


def parse_session_key(key: bytes) -> tuple[bytes, int]:
    """(producer_id, entry index)."""
    _, producer_id, index = _SESSION.unpack(key)
    return producer_id, index


def unique_key(topic_id: int, key_hash: int, body_crc: int) -> bytes:
    """Key of a message of a topic with dedup=strict."""
    return _UNIQUE.pack(b"u", topic_id, key_hash, body_crc)


def unique_topic_range(topic_id: int) -> tuple[bytes, bytes]:
    """Keys [start, end) of a topic's unique rows."""
    start = b"u" + U32.pack(topic_id)
    return start, start + b"\xff" * 13


def unique_time_key(time_ms: int, topic_id: int, key_hash: int, body_crc: int) -> bytes:
    """Key that finds a unique row by the log time it was written."""
    return _UNIQUE_TIME.pack(b"t", time_ms, topic_id, key_hash, body_crc)


def unique_time_range(before_ms: int) -> tuple[bytes, bytes]:
    """Keys [start, end) of unique rows written before `before_ms`."""
    return b"t", b"t" + U64.pack(before_ms)


def unique_key_of_time_key(key: bytes) -> tuple[bytes, int]:
    """(unique row's key, time_ms)."""
    _, time_ms, topic_id, key_hash, body_crc = _UNIQUE_TIME.unpack(key)
    return unique_key(topic_id, key_hash, body_crc), time_ms
