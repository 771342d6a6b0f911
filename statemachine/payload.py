"""The payload of a MESSAGES entry: `[head | messages | runs | sessions | unique | keys | effects]`.

Drawn in docs/disk-format.md; all integers big-endian. The leader builds it once, when it proposes; every replica
applies it without looking at a message: a run's items are, byte for byte, what apply stores in the consume queue. ::

    head (40 bytes)
      0  version       u8   10
      1  reserved      3
      4  messages_len  u32  stored messages, back to back, in RocketMQ's stored form
      8  message_count u32
     12  runs_len      u32
     16  sessions_len  u32
     20  unique_len    u32
     24  keys_len      u32  records of the message index, 8 bytes each
     28  effects_len   u32  msgpack array of commands, applied in the same step, before the rows
     32  reserved      u64

    run = header (24 bytes), then `count` items
      topic_id u32 | queue_id u32 | base_offset u64 | count u32 | kind u8 | reserved 3
      kinds from SCHEDULED on are in no queue yet: topic and queue are those that the messages are for, and
      base_offset is the time they are due (SCHEDULED) or their producer is first asked (HALF); of messages that are
      carried forward (CARRIED_TIMERS, CARRIED_HALF) it is the position at which the first of these messages was first
      stored
    item (32 bytes)
      position u64 | size u32 | crc32c u32 | tag_hash i64 | store_time_ms u64
    session = header (40 bytes), then `count` rows
      producer_id 16 | low_sequence u64 | max_sequence u64 | count u32 | reserved u32
    session row (32 bytes)
      sequence u64 | topic_id u32 | queue_id u32 | queue_offset u64 | position u64
    unique (40 bytes; only for topics with dedup=strict)
      key_hash u64 | topic_id u32 | queue_id u32 | queue_offset u64 | position u64 | body_crc u32 | reserved u32
    key (8 bytes; one per key of a message, in the order of the messages)
      hash u32 | low half of the message's position u32

`position` is that of a message's first byte in the commit log (RocketMQ's physical offset):
entry position + 64 (frame header) + 40 (head) + bytes of the messages before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from raftlog.format_versions import remark

VERSION = 10
HEAD = struct.Struct(">B3xIIIIIII8x")
RUN = struct.Struct(">IIQIB3x")
ITEM = struct.Struct(">QIIqQ")
SESSION = struct.Struct(">16sQQI4x")
SESSION_ROW = struct.Struct(">QIIQQ")
UNIQUE = struct.Struct(">QIIQQI4x")
KEY_SIZE = 8
MESSAGES_AT = 64 + HEAD.size
"""Offset in bytes of an entry's first message from the position of its frame."""


class RowKind(IntEnum):
    """The kind of a message: where it comes from, which also says whether it is in a queue. Copies that the broker
    makes (RETRY, DELIVERED, COMMITTED, DEAD_LETTER) are never taken for repeated sends."""

    NORMAL = 0
    RETRY = 1
    DELIVERED = 2
    COMMITTED = 3
    DEAD_LETTER = 4
    SCHEDULED = 5
    """The message waits until its due time. A run of such messages, at most 256, is one row of the family `timer`."""
    HALF = 6
    """The message waits until its transaction ends."""
    CARRIED_TIMERS = 7
    """The scheduled messages of a row of the family `timer`, stored again at a later position (docs/adr/0054). The new
    row replaces the old one."""
    CARRIED_HALF = 8
    """A half message, stored again at a later position. The new row replaces the old one."""


class Run(NamedTuple):
    """Consecutive messages that one entry adds to one queue, now or later. `items` is `count` packed items."""

    topic_id: int
    queue_id: int
    base_offset: int
    """The queue offset of the first message. For kinds from SCHEDULED on it has another meaning, which the module
    describes."""
    count: int  # type: ignore[assignment]
    kind: int
    items: bytes


class SessionRows(NamedTuple):
    """The messages that one producer session stored with this entry; `rows` is the packed session rows, sequences
    ascending."""

    producer_id: bytes
    low_sequence: int
    """The lowest sequence number that the producer has not settled (may send again). Lower ones may be forgotten."""
    max_sequence: int
    rows: bytes


class UniqueRow(NamedTuple):
    """The place, key and body checksum of one stored message of a topic with dedup=strict."""

    key_hash: int
    topic_id: int
    queue_id: int
    queue_offset: int
    position: int
    body_crc: int


class PayloadError(ValueError):
    """The bytes are not a valid payload of a MESSAGES entry. The frame's CRC was good, so this is a bug or a newer
    format."""


class Payload(NamedTuple):
    """A MESSAGES payload, split into its sections; `effects` is still packed by msgpack."""

    message_count: int
    messages_len: int
    runs: bytes
    sessions: bytes
    unique: bytes
    keys: bytes
    effects: bytes

    def decoded_runs(self) -> list[Run]:
        """Returns the runs of messages in payload order. Raises PayloadError if one is cut short."""
        data, at, end = self.runs, 0, len(self.runs)
        runs: list[Run] = []
        while at < end:
            if end - at < RUN.size:
                raise PayloadError("a run's header is cut")
            topic_id, queue_id, base, count, kind = RUN.unpack_from(data, at)
            stop = at + RUN.size + count * ITEM.size
            if stop > end:
                raise PayloadError("a run is cut")
            runs.append(Run(topic_id, queue_id, base, count, kind, data[at + RUN.size : stop]))
            at = stop
        return runs

    def iter_sessions(self) -> Iterator[SessionRows]:
        """Yields the producer sessions in payload order. Raises PayloadError if one is cut short."""
        at, end = 0, len(self.sessions)
        while at < end:
            session, at = session_at(self.sessions, at)
            yield session

    def iter_unique(self) -> Iterator[UniqueRow]:
        """Yields the unique rows, one for each message of a topic with dedup=strict."""
        for row in UNIQUE.iter_unpack(self.unique):
            yield UniqueRow(*row)


def session_at(data: bytes, at: int) -> tuple[SessionRows, int]:
    """Returns the session at offset `at` of an entry's sessions section, and the offset at which it ends. Raises
    PayloadError if the session is cut short."""
    if len(data) - at < SESSION.size:
        raise PayloadError("a session's header is cut")
    producer_id, low, high, count = SESSION.unpack_from(data, at)
    stop = at + SESSION.size + count * SESSION_ROW.size
    if stop > len(data):
        raise PayloadError("a session is cut")
    return SessionRows(producer_id, low, high, data[at + SESSION.size : stop]), stop


def encode(
    messages: Sequence[bytes],
    message_count: int,
    runs: Sequence[Run],
    sessions: Sequence[SessionRows] | bytes = (),
    unique: Sequence[UniqueRow] = (),
    effects: bytes = b"",
    keys: bytes = b"",
) -> bytes:
    """Packs the payload of a MESSAGES entry. `messages`: byte strings that, joined, are the stored messages; a string
    may have a part of a message, or several. `sessions`: the sessions, or bytes if they are packed already."""
    messages_len = sum(map(len, messages))
    run_parts: list[bytes] = []
    for run in runs:
        run_parts.append(RUN.pack(run.topic_id, run.queue_id, run.base_offset, run.count, run.kind))
        run_parts.append(run.items)
    runs_data = b"".join(run_parts)
    sessions_data = sessions if isinstance(sessions, bytes) else b"".join(map(_packed, sessions))
    unique_data = b"".join([UNIQUE.pack(*row) for row in unique])
    head = HEAD.pack(
        VERSION,
        messages_len,
        message_count,
        len(runs_data),
        len(sessions_data),
        len(unique_data),
        len(keys),
        len(effects),
    )
    return b"".join([head, *messages, runs_data, sessions_data, unique_data, keys, effects])


def _packed(session: SessionRows) -> bytes:
    count = len(session.rows) // SESSION_ROW.size
    return SESSION.pack(session.producer_id, session.low_sequence, session.max_sequence, count) + session.rows


def has_messages(payload: bytes) -> bool:
    """Returns False if the payload contains no messages but only commands and sessions."""
    return len(payload) < HEAD.size or any(payload[8:12])


def decode(payload: bytes) -> Payload:
    """Splits the payload of a MESSAGES entry into its sections. Raises PayloadError if lengths or version do not
    fit."""
    if len(payload) < HEAD.size:
        raise PayloadError(f"a payload has at least {HEAD.size} bytes, not {len(payload)}")
    version, messages_len, count, runs_len, sessions_len, unique_len, keys_len, effects_len = HEAD.unpack_from(payload)
    if version != VERSION:
        raise PayloadError(remark("MESSAGES", version, VERSION))
    a = HEAD.size + messages_len
    b = a + runs_len
    c = b + sessions_len
    d = c + unique_len
    e = d + keys_len
    if e + effects_len != len(payload) or unique_len % UNIQUE.size or keys_len % KEY_SIZE:
        raise PayloadError("section lengths do not add up")
    return Payload(count, messages_len, payload[a:b], payload[b:c], payload[c:d], payload[d:e], payload[e:])
