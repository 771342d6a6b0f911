"""Stored messages, many at once: parses the body of pull replies into arrays, with one element per message.

The format is that of `raftmq_wire.message_format`, which stays the reference: bytes that fail a check here are parsed
again there, so that both parsers raise the same error. Both check the CRC of each message's body.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple, NoReturn

import numpy as np

from raftmq_wire import message_format
from raftmq_wire.crc import crc32
from raftmq_wire.kernel import twin
from raftmq_wire.message_format import (
    BODY_HEAD,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    SYS_FLAG_BORN_IPV6,
    SYS_FLAG_STORE_IPV6,
    MessageFormatError,
)
from raftmq_wire.queue_numbers import number_of

_HEAD = np.dtype(
    [
        ("total", ">u4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("position", ">i8"),
        ("sys_flag", ">i4"),
        ("born_ms", ">i8"),
    ]
)
"""The fields of a message before the body, as in `message_format.HEAD`."""
_BODY_HEAD = np.dtype([("reconsume_times", ">i4"), ("prepared_position", ">i8"), ("body_length", ">u4")])
"""The fields directly before the body, as in `message_format.BODY_HEAD`."""
_I64 = np.dtype(">i8")
_AFTER_BODY_MIN = 3
"""Bytes that follow the body of the smallest message: the lengths of topic and properties."""


class Frames(NamedTuple):
    """Messages as arrays of equal length, one element per message, in order. `*_at` and `*_end` are byte positions in
    `data`."""

    data: bytes
    head: Any
    """A structured array of type _HEAD."""
    store_ms: Any
    body_at: Any
    body_end: Any
    topic_at: Any
    topic_end: Any
    properties_at: Any
    properties_end: Any
    index: Any = None
    """Index of the entry of the Raft log that contains each message (int64); None if it was not looked up. The same
    holds for `term`."""
    term: Any = None

    def of_queue(self, number: int) -> Frames:
        """Returns the messages, which are all of one queue, with the queue's number in the cluster in place of the id
        with which they were stored (`raftmq_wire.queue_numbers`)."""
        head = self.head.copy()
        head["queue_id"] = number
        return self._replace(head=head)

    def of_group(self, group: int) -> Frames:
        """Returns the messages, which one group of brokers has stored, with the numbers that their queues have in the
        cluster."""
        first = number_of(group, 0)
        if not first:
            return self
        head = self.head.copy()
        head["queue_id"] += first
        return self._replace(head=head)

    def take(self, rows: Any) -> Frames:
        """Returns some of the messages; `rows` is a slice, or an array of their numbers."""
        data, *columns = self
        return Frames(data, *(None if column is None else column[rows] for column in columns))


@twin
def message_starts(data: bytes) -> bytes | None:
    """Returns the offsets at which the messages in `data` begin, as packed int64. Returns None unless the messages are
    back to back, and each body lies within its message and matches its CRC. Nothing else is checked."""
    starts = array("q")
    view, size = memoryview(data), len(data)
    at = 0
    while at < size:
        if at > size - HEAD.size:
            return None
        total, _, crc, _, _, _, _, sys_flag, _ = HEAD.unpack_from(data, at)
        body_at = at + message_format.body_begin(sys_flag)
        if total > size - at or body_at > at + total:
            return None
        _, _, length = BODY_HEAD.unpack_from(data, body_at - BODY_HEAD.size)
        if length > at + total - body_at or crc32(view[body_at : body_at + length]) & 0x7FFFFFFF != crc:
            return None
        starts.append(at)
        at += total
    return starts.tobytes()


def parse_frames(data: bytes) -> Frames:
    """Parses every message in `data`, which contains complete stored messages back to back. Raises
    MessageFormatError."""
    starts = message_starts(data)
    if starts is None:
        _refuse(data)
    return _parse(data, np.frombuffer(starts, dtype=np.int64))


def parse_checked(data: bytes, sizes: Any) -> Frames:
    """Parses messages of the given sizes as `parse_frames` does, but does not check CRCs, because the caller has
    already compared the bytes with a checksum."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    _check(data, sizes >= HEAD.size, ends[-1:] == len(data))
    frames = _parse(data, starts)
    _check(data, frames.head["total"] == sizes)
    return frames


def _parse(data: bytes, starts: Any) -> Frames:
    """Parses the messages that begin at `starts`."""
    raw = np.frombuffer(data, dtype=np.uint8)
    head = _gather(raw, starts, _HEAD)
    ends = starts + head["total"]
    born_bytes = np.where(head["sys_flag"] & SYS_FLAG_BORN_IPV6, 20, 8)
    store_bytes = np.where(head["sys_flag"] & SYS_FLAG_STORE_IPV6, 20, 8)
    store_ms_at = starts + HEAD.size + born_bytes
    body_head_at = store_ms_at + _I64.itemsize + store_bytes
    body_at = body_head_at + BODY_HEAD.size
    _check(data, (head["magic"] == MAGIC_V1) | (head["magic"] == MAGIC_V2), body_at + _AFTER_BODY_MIN <= ends)
    body_end = body_at + _gather(raw, body_head_at, _BODY_HEAD)["body_length"]
    v2 = head["magic"] == MAGIC_V2
    topic_at = body_end + 1 + v2
    _check(data, topic_at + 2 <= ends)
    topic_end = topic_at + np.where(v2, _u16(raw, body_end), raw[body_end])
    properties_at = topic_end + 2
    _check(data, properties_at <= ends)
    _check(data, properties_at + _u16(raw, topic_end) == ends)
    store_ms = _gather(raw, store_ms_at, _I64)
    return Frames(data, head, store_ms, body_at, body_end, topic_at, topic_end, properties_at, ends)


def are_of_topic(frames: Frames, topic: str) -> Any:
    """Returns a mask of numpy: True for the messages of `topic`."""
    name = np.frombuffer(topic.encode(), dtype=np.uint8)
    fits = frames.topic_end - frames.topic_at == len(name)
    long_enough = np.flatnonzero(fits)
    raw = np.frombuffer(frames.data, dtype=np.uint8)
    letters = windows(raw, frames.topic_at[long_enough], len(name))
    fits[long_enough] = (letters == name).all(axis=1)
    return fits


def _gather(raw: Any, at: Any, dtype: Any) -> Any:
    """Returns the value of type `dtype` that begins at each of the positions `at` in `raw`."""
    return windows(raw, at, dtype.itemsize).view(dtype)[:, 0]


def windows(raw: Any, at: Any, width: int) -> Any:
    """Returns an array with one row for each position in `at`: the `width` bytes of `raw` from there on."""
    if not len(at) or not width:
        return np.zeros((len(at), width), dtype=np.uint8)
    # The windows overlap in memory; only those that are taken are copied, `width` bytes each.
    items = np.ndarray((len(raw) - width + 1,), dtype=f"V{width}", buffer=raw, strides=(1,))
    return items[at].view(np.uint8).reshape(len(at), width)


def _u16(raw: Any, at: Any) -> Any:
    return raw[at].astype(np.int64) << 8 | raw[at + 1]


def _check(data: bytes, *fits: Any) -> None:
    if not all(each.all() for each in fits):
        _refuse(data)


def _refuse(data: bytes) -> NoReturn:
    """Raises the error that the reference parser raises for these bytes."""
    for _ in message_format.decode_messages(data, hosts=False):
        pass
    raise MessageFormatError(f"{len(data)} bytes are not a sequence of stored messages")
