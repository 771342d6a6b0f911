"""The properties of many messages at once: `name \\x01 value \\x02`, repeated.

As in `message_format.parse_properties`, an entry with an empty name or value is skipped, and a later duplicate wins.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raftmq.arrow.frames import windows

_NAME_ENDS, _ENTRY_ENDS = 1, 2
_NAMES_MAX = 256
"""Of all rows: a table of rows and names is made to see whether a row has one twice."""


class Entries(NamedTuple):
    """Arrays of equal length, one element per entry with a name and a value, in order of rows and within them.
    Positions are those in `packed`."""

    packed: Any
    """The properties of all rows, back to back."""
    rows: int
    row: Any
    name_at: Any
    name_end: Any
    value_end: Any
    """The value begins one after `name_end`."""


def find_entries(properties: pa.BinaryArray) -> Entries:
    """The entries of each row's properties. `properties` is not a slice and has no nulls."""
    rows = len(properties)
    _, bounds_buffer, data = properties.buffers()
    bounds = np.frombuffer(bounds_buffer, dtype=np.int32, count=rows + 1).astype(np.int64)
    packed = np.frombuffer(data, dtype=np.uint8, count=bounds[-1]) if bounds[-1] else np.zeros(0, np.uint8)
    between = np.flatnonzero(packed == _ENTRY_ENDS)
    per_row = np.diff(np.searchsorted(between, bounds)) + 1
    after = np.cumsum(per_row)
    # The first entry of a row begins with the row, each other one behind a separator; likewise the last one ends.
    at, end = np.empty(after[-1] if rows else 0, np.int64), np.empty(after[-1] if rows else 0, np.int64)
    is_first, is_last = np.zeros(len(at), bool), np.zeros(len(at), bool)
    is_first[after - per_row] = is_last[after - 1] = True
    at[is_first], at[~is_first] = bounds[:-1], between + 1
    end[is_last], end[~is_last] = bounds[1:], between
    row = np.repeat(np.arange(rows), per_row)
    not_empty = end > at
    row, at, end = row[not_empty], at[not_empty], end[not_empty]
    name_ends = np.flatnonzero(packed == _NAME_ENDS)
    if len(name_ends) == len(at) and ((name_ends >= at) & (name_ends < end)).all():
        name_end = name_ends  # one in each entry, as producers write them
    else:
        name_end = np.append(name_ends, len(packed))[np.searchsorted(name_ends, at)]
    kept = (name_end > at) & (name_end + 1 < end)
    if kept.all():
        return Entries(packed, rows, row, at, name_end, end)
    return Entries(packed, rows, row[kept], at[kept], name_end[kept], end[kept])


def values_of(entries: Entries, name: bytes) -> pa.BinaryArray:
    """Each row's value of the property `name`; null where it has none."""
    long_enough = np.flatnonzero(entries.name_end - entries.name_at == len(name))
    letters = windows(entries.packed, entries.name_at[long_enough], len(name))
    found = long_enough[(letters == np.frombuffer(name, np.uint8)).all(axis=1)]
    entry_of = np.full(entries.rows, -1, dtype=np.int64)
    entry_of[entries.row[found]] = found  # of repeated rows the last is kept: a later duplicate wins
    has = entry_of >= 0
    used = entry_of[has]
    taken = spans(pa.py_buffer(entries.packed), entries.name_end[used] + 1, entries.value_end[used])
    places = np.cumsum(has) - 1
    return taken.take(pa.array(places, mask=~has))


def as_map(entries: Entries) -> pa.MapArray | None:
    """Each row's properties as a map, in order. None if a row has a name twice, for bytes that are not UTF-8, and for
    very many names: then the rows are to be made one by one."""
    buffer = pa.py_buffer(entries.packed)
    names = as_text(spans(buffer, entries.name_at, entries.name_end))
    values = as_text(spans(buffer, entries.name_end + 1, entries.value_end))
    if names is None or values is None:
        return None
    codes = names.dictionary_encode()
    different = len(codes.dictionary)
    if different > _NAMES_MAX:
        return None
    named = entries.row * different + np.asarray(codes.indices, dtype=np.int64)
    if len(named) and np.bincount(named).max() > 1:
        return None
    bounds = np.searchsorted(entries.row, np.arange(entries.rows + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(bounds), names, values)


def as_text(values: pa.BinaryArray) -> pa.StringArray | None:
    """The same bytes as text; None if they are not all UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def spans(data: pa.Buffer, at: Any, end: Any) -> pa.BinaryArray:
    """`data[at:end]` of each pair; the pairs ascend and do not overlap."""
    count = len(at)
    if not count:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2], bounds[1::2] = at, end
    # One value for each pair and one for each gap between pairs, without a copy; the pairs are then taken out of it.
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), data])
    return both.take(pa.array(np.arange(0, 2 * count - 1, 2)))
