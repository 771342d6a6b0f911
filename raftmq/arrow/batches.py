"""Turns frames of one queue into an Arrow batch with the requested columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raftmq.arrow.columns import arrow_schema
from raftmq.arrow.frames import Frames
from raftmq.arrow.plain_arrays import binary_of, column_of, repeated
from raftmq.arrow.properties import MapParts, Texts, as_text, map_column, spans, split_properties, text_column
from raftmq.arrow.row_filter import RowFilter
from raftmq.arrow.undecodable import Undecodable
from raftmq.client.message import COMPRESSED, UnreadableError, plain_body
from raftmq_wire.properties import parse_properties

_US = 1000
MAX_BODIES_BYTES = 64 << 20
"""A batch is closed when its decompressed bodies reach this many bytes, because a few KiB of stored messages may
inflate to GiB."""
_PROPERTY = {"tag": b"TAGS", "keys": b"KEYS", "message_id": b"UNIQ_KEY"}
"""Column -> the message property that it shows."""


class _Rows:
    """The frames of one batch; values that several columns need are computed once."""

    def __init__(self, frames: Frames, topic: str, names: Sequence[str], bodies: Sequence[bytes] | None) -> None:
        self.frames = frames
        self.topic = topic
        self.bodies = bodies
        self.buffer = pa.py_buffer(frames.data)
        wanted = tuple(_PROPERTY[name] for name in names if name in _PROPERTY)
        self.values: dict[bytes, Texts] = {}
        self.map: MapParts | None = None
        if wanted or "properties" in names:
            at, end = frames.properties_at, frames.properties_end
            found, self.map = split_properties(frames.data, at, end, wanted, "properties" in names)
            self.values = dict(zip(wanted, found, strict=True))


def to_batches(
    frames: Frames,
    topic: str,
    names: Sequence[str],
    undecodable: Undecodable | None = None,
    rows: RowFilter | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields batches with one row per frame that `rows` keeps, in order, and the columns `names`: one batch, unless
    bodies inflate to more than MAX_BODIES_BYTES. All frames are of `topic`; they have `index` and `term` set if these
    columns are wanted. For frames that are not kept, only the columns that `rows` needs are built.

    Bodies are decompressed only if `body` is among the columns. `undecodable` decides about a body that cannot be
    decompressed. Raises Unreadable for such a body if `undecodable` is None or has the choice FAIL.
    """
    if rows is not None:
        kept = rows.keeps(_batch(frames, topic, rows.columns))
        if not kept.any():
            return
        frames = frames if kept.all() else frames.take(np.flatnonzero(kept))
    if "body" not in names or not (frames.head["sys_flag"] & COMPRESSED).any():
        yield _batch(frames, topic, names)
        return
    for part, bodies in _decoded(frames, topic, undecodable or Undecodable()):
        yield _batch(part, topic, names, bodies)


def _decoded(frames: Frames, topic: str, undecodable: Undecodable) -> Iterator[tuple[Frames, list[bytes]]]:
    """Yields the frames in parts, each with its bodies, decompressed. The bodies of a part take at most about
    MAX_BODIES_BYTES."""
    bodies: list[bytes] = []
    kept: list[int] = []
    size = 0
    head = frames.head
    places = zip(frames.body_at.tolist(), frames.body_end.tolist(), head["sys_flag"].tolist(), strict=True)
    for row, (at, end, flag) in enumerate(places):
        body = frames.data[at:end]
        try:
            body = plain_body(body, flag)
        except UnreadableError as error:
            if not undecodable.met(
                f"{topic} queue {head['queue_id'][row]} offset {head['queue_offset'][row]}", str(error)
            ):
                continue
        bodies.append(body)
        kept.append(row)
        size += len(body)
        if size >= MAX_BODIES_BYTES:
            yield frames.take(np.array(kept)), bodies
            bodies, kept, size = [], [], 0
    if kept:
        yield frames.take(np.array(kept)), bodies


def _batch(frames: Frames, topic: str, names: Sequence[str], bodies: Sequence[bytes] | None = None) -> pa.RecordBatch:
    """Returns a batch with one row per frame. `bodies`: the decompressed bodies; None if the frames' own bodies are
    right."""
    schema = arrow_schema(names)
    if not len(frames.head):
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    rows = _Rows(frames, topic, names, bodies)
    return pa.RecordBatch.from_arrays([_COLUMN[name](rows) for name in names], schema=schema)


def _topic(rows: _Rows) -> pa.Array:
    return repeated(rows.topic, len(rows.frames.head))


def _body(rows: _Rows) -> pa.Array:
    if rows.bodies is None:
        return spans(rows.buffer, rows.frames.body_at, rows.frames.body_end)
    return binary_of(rows.bodies)


def _property(name: str) -> Callable[[_Rows], pa.Array]:
    return lambda rows: _text(text_column(rows.values[_PROPERTY[name]]))


def _message_id(rows: _Rows) -> pa.Array:
    found = _property("message_id")(rows)
    return found.fill_null("") if found.null_count else found


def _text(values: pa.BinaryArray) -> pa.StringArray:
    """Returns the values as text, with U+FFFD for bytes that are not UTF-8, as Java does it."""
    text = as_text(values)
    if text is not None:
        return text
    each = (None if value is None else value.decode(errors="replace") for value in values.to_pylist())
    return pa.array(each, pa.string())


def _properties(rows: _Rows) -> pa.Array:
    assert rows.map is not None
    found = map_column(rows.map)
    if found is not None:
        return found
    places = zip(rows.frames.properties_at.tolist(), rows.frames.properties_end.tolist(), strict=True)
    each = (list(parse_properties(rows.frames.data[at:end]).items()) for at, end in places)
    return pa.array(each, pa.map_(pa.string(), pa.string()))


def _number(of: Callable[[Frames], Any], kind: type[np.generic]) -> Callable[[_Rows], pa.Array]:
    return lambda rows: column_of(of(rows.frames).astype(kind))


def _store_time(rows: _Rows) -> pa.Array:
    return column_of(rows.frames.store_ms.astype(np.int64) * _US).cast(pa.timestamp("us", tz="UTC"))


_COLUMN: dict[str, Callable[[_Rows], pa.Array]] = {
    "topic": _topic,
    "queue_id": _number(lambda frames: frames.head["queue_id"], np.int32),
    "queue_offset": _number(lambda frames: frames.head["queue_offset"], np.int64),
    "body": _body,
    "tag": _property("tag"),
    "keys": _property("keys"),
    "message_id": _message_id,
    "born_ms": _number(lambda frames: frames.head["born_ms"], np.int64),
    "store_ms": _number(lambda frames: frames.store_ms, np.int64),
    "position": _number(lambda frames: frames.head["position"], np.int64),
    "properties": _properties,
    "store_time": _store_time,
    "index": _number(lambda frames: frames.index, np.int64),
    "term": _number(lambda frames: frames.term, np.int64),
}
