"""Frames of one queue as an Arrow batch of the columns that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cluster.wire.message_format import parse_properties
from raftmq.arrow.columns import arrow_schema
from raftmq.arrow.frames import Frames
from raftmq.arrow.properties import Entries, as_map, as_text, find_entries, spans, values_of
from raftmq.client.message import COMPRESSED, plain_body

_US = 1000


class _Rows:
    """The frames of one batch; what several columns need is made once."""

    def __init__(self, frames: Frames, topic: str) -> None:
        self.frames = frames
        self.topic = topic
        self.buffer = pa.py_buffer(frames.data)
        self._properties: pa.BinaryArray | None = None
        self._entries: Entries | None = None

    @property
    def properties(self) -> pa.BinaryArray:
        if self._properties is None:
            self._properties = spans(self.buffer, self.frames.properties_at, self.frames.properties_end)
        return self._properties

    @property
    def entries(self) -> Entries:
        if self._entries is None:
            self._entries = find_entries(self.properties)
        return self._entries


def to_batch(frames: Frames, topic: str, names: Sequence[str]) -> pa.RecordBatch:
    """One row per frame, in order, in the columns `names`. All frames are of `topic`.

    Raises Failed for a compressed body that this client does not read.
    """
    rows, schema = _Rows(frames, topic), arrow_schema(names)
    if not len(frames.head):
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return pa.RecordBatch.from_arrays([_COLUMN[name](rows) for name in names], schema=schema)


def _topic(rows: _Rows) -> pa.Array:
    return pa.repeat(pa.scalar(rows.topic), len(rows.frames.head))


def _body(rows: _Rows) -> pa.Array:
    frames = rows.frames
    if not (frames.head["sys_flag"] & COMPRESSED).any():
        return spans(rows.buffer, frames.body_at, frames.body_end)
    stored = zip(
        frames.body_at.tolist(),
        frames.body_end.tolist(),
        frames.head["sys_flag"].tolist(),
        frames.head["queue_id"].tolist(),
        frames.head["queue_offset"].tolist(),
        strict=True,
    )
    plain = [
        plain_body(frames.data[at:end], flag, f"{rows.topic} queue {queue_id} offset {offset}")
        for at, end, flag, queue_id, offset in stored
    ]
    return pa.array(plain, pa.binary())


def _property(name: bytes) -> Callable[[_Rows], pa.Array]:
    return lambda rows: _text(values_of(rows.entries, name))


def _message_id(rows: _Rows) -> pa.Array:
    return _text(values_of(rows.entries, b"UNIQ_KEY")).fill_null("")


def _text(values: pa.BinaryArray) -> pa.StringArray:
    """As text, with U+FFFD for what is not UTF-8, as Java does it."""
    text = as_text(values)
    if text is not None:
        return text
    each = (None if value is None else value.decode(errors="replace") for value in values.to_pylist())
    return pa.array(each, pa.string())


def _properties(rows: _Rows) -> pa.Array:
    found = as_map(rows.entries)
    if found is not None:
        return found
    each = (list(parse_properties(raw).items()) for raw in rows.properties.to_pylist())
    return pa.array(each, pa.map_(pa.string(), pa.string()))


def _number(of: Callable[[Frames], Any], kind: type[np.generic]) -> Callable[[_Rows], pa.Array]:
    return lambda rows: pa.array(of(rows.frames).astype(kind))


def _store_time(rows: _Rows) -> pa.Array:
    return pa.array(rows.frames.store_ms.astype(np.int64) * _US).cast(pa.timestamp("us", tz="UTC"))


_COLUMN: dict[str, Callable[[_Rows], pa.Array]] = {
    "topic": _topic,
    "queue_id": _number(lambda frames: frames.head["queue_id"], np.int32),
    "queue_offset": _number(lambda frames: frames.head["queue_offset"], np.int64),
    "body": _body,
    "tag": _property(b"TAGS"),
    "keys": _property(b"KEYS"),
    "message_id": _message_id,
    "born_ms": _number(lambda frames: frames.head["born_ms"], np.int64),
    "store_ms": _number(lambda frames: frames.store_ms, np.int64),
    "position": _number(lambda frames: frames.head["position"], np.int64),
    "properties": _properties,
    "store_time": _store_time,
}
