"""Parses the properties of many messages at once: `name \\x01 value \\x02`, repeated.

Entries without a name or a value are ignored; of several entries with one name the last wins, as in
`raftmq_wire.properties`. The native kernel has its own `split_properties`, which does this in one pass. This module
does it with numpy arrays, without a step per message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raftmq.arrow.frames import windows
from raftmq.arrow.plain_arrays import column_of
from raftmq_wire.kernel import twin

_NAME_ENDS, _ENTRY_ENDS = 1, 2
_ENTRIES_MAX = 64
"""The most entries that a row may have. If a row has more, or a name twice, `map_column` returns None, and its caller
builds the rows one by one."""
_WANTED_MAX = 8
_COLUMN_BYTES_MAX = (1 << 31) - 1
_I32 = 4

Texts = tuple[bytes, bytes, bytes]
"""The buffers of an Arrow column of texts: a bit per row that is set if the row has a text, where each text ends
(int32, one more than rows), and the texts."""
MapParts = tuple[bytes, bytes, bytes, bytes, bytes, bool]
"""The buffers of an Arrow column of maps: the ends of each row's entries (int32, one more than rows), two buffers for
the names, two for the values, and True if a row has a name twice, or more than 64 entries."""


class Entries(NamedTuple):
    """The entries of many properties, as arrays of equal length: one element per entry with a name and a value, in
    order of rows and within them. Positions are those in `packed`."""

    packed: Any
    """The properties of all rows, back to back."""
    rows: int
    row: Any
    name_at: Any
    name_end: Any
    value_end: Any
    """The end of the value, which begins one byte after `name_end`."""


@twin
def split_properties(
    data: bytes, at: Any, end: Any, names: tuple[bytes, ...], as_map: bool
) -> tuple[list[Texts], MapParts | None]:
    """Returns values of properties: each row's value of each of at most eight `names` and, if `as_map`, all properties.
    The rows' properties are `data[at:end]` (int64, ascending, not overlapping).

    Raises ValueError for more than eight names, for positions outside of the data, and for properties of more than 2
    GiB in all.
    """
    if len(names) > _WANTED_MAX:
        raise ValueError(f"{len(names)} names, of at most {_WANTED_MAX}")
    if len(at) != len(end):
        raise ValueError(f"{len(at)} rows begin and {len(end)} end")
    fits = (at >= 0) & (at <= end) & (end <= len(data))
    if not fits.all():
        raise ValueError(f"row {np.argmin(fits)} is not in the data")
    if (end - at).sum() > _COLUMN_BYTES_MAX:
        raise ValueError(f"{(end - at).sum()} bytes are more than a column holds")
    entries = _find_entries(spans(pa.py_buffer(data), at, end))
    return [_values_of(entries, name) for name in names], _map_of(entries) if as_map else None


def _find_entries(properties: pa.BinaryArray) -> Entries:
    """Returns the entries of each row's properties. `properties` is not a slice and has no nulls."""
    rows = len(properties)
    _, bounds_buffer, data = properties.buffers()
    bounds = np.frombuffer(bounds_buffer, dtype=np.int32, count=rows + 1).astype(np.int64)
    packed = np.frombuffer(data, dtype=np.uint8, count=bounds[-1]) if bounds[-1] else np.zeros(0, np.uint8)
    between = np.flatnonzero(packed == _ENTRY_ENDS)
    per_row = np.diff(np.searchsorted(between, bounds)) + 1
    after = np.cumsum(per_row)
    # The first entry of a row begins where the row begins, each other entry after a separator. The last entry ends
    # where the row ends, each other entry before a separator.
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
        name_end = name_ends  # every entry has a separator, as producers write them
    else:
        name_end = np.append(name_ends, len(packed))[np.searchsorted(name_ends, at)]
    kept = (name_end > at) & (name_end + 1 < end)
    if kept.all():
        return Entries(packed, rows, row, at, name_end, end)
    return Entries(packed, rows, row[kept], at[kept], name_end[kept], end[kept])


def _values_of(entries: Entries, name: bytes) -> Texts:
    """Returns each row's value of the property `name`."""
    long_enough = np.flatnonzero(entries.name_end - entries.name_at == len(name))
    letters = windows(entries.packed, entries.name_at[long_enough], len(name))
    found = long_enough[(letters == np.frombuffer(name, np.uint8)).all(axis=1)]
    entry_of = np.full(entries.rows, -1, dtype=np.int64)
    entry_of[entries.row[found]] = found  # of equal row numbers the last one is kept: the last entry of a name wins
    has = entry_of >= 0
    used = entry_of[has]
    _, data = _packed(entries.packed, entries.name_end[used] + 1, entries.value_end[used])
    sizes = np.zeros(entries.rows + 1, dtype=np.int32)
    sizes[1:][has] = entries.value_end[used] - entries.name_end[used] - 1
    return np.packbits(has, bitorder="little").tobytes(), np.cumsum(sizes, dtype=np.int32).tobytes(), data


def _map_of(entries: Entries) -> MapParts:
    """Returns each row's entries, in order."""
    names = _packed(entries.packed, entries.name_at, entries.name_end)
    values = _packed(entries.packed, entries.name_end + 1, entries.value_end)
    bounds = np.searchsorted(entries.row, np.arange(entries.rows + 1)).astype(np.int32)
    return bounds.tobytes(), *names, *values, _is_repeated(entries, names, np.diff(bounds))


def _is_repeated(entries: Entries, names: tuple[bytes, bytes], per_row: Any) -> bool:
    if not len(entries.row):
        return False
    if per_row.max() > _ENTRIES_MAX:
        return True
    codes = _binary(len(entries.row), None, *names).dictionary_encode()
    named = entries.row * len(codes.dictionary) + np.asarray(codes.indices, dtype=np.int64)
    return len(np.unique(named)) < len(named)


def _packed(packed: Any, at: Any, end: Any) -> tuple[bytes, bytes]:
    """Returns the two buffers, offsets and data, of an Arrow column with the texts from `at` to `end` in `packed`."""
    bounds = np.zeros(len(at) + 1, dtype=np.int32)
    np.cumsum(end - at, out=bounds[1:])
    _, _, data = spans(pa.py_buffer(packed), at, end).buffers()
    return bounds.tobytes(), b"" if data is None else data.to_pybytes()[: bounds[-1]]


def text_column(texts: Texts) -> pa.BinaryArray:
    """Returns the texts as a column of bytes, null where the row has none."""
    present, ends, data = texts
    return _binary(len(ends) // _I32 - 1, present, ends, data)


def map_column(parts: MapParts) -> pa.MapArray | None:
    """Returns a column with the rows' properties. Returns None if a row has a name twice or too many entries, and for
    bytes that are not UTF-8; the caller then builds the rows one by one."""
    bounds, name_ends, names, value_ends, values, repeated = parts
    if repeated:
        return None
    count = len(name_ends) // _I32 - 1
    keys, items = as_text(_binary(count, None, name_ends, names)), as_text(_binary(count, None, value_ends, values))
    if keys is None or items is None:
        return None
    return pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(bounds) // _I32, [None, pa.py_buffer(bounds)]), keys, items
    )


def _binary(count: int, present: bytes | None, ends: bytes, data: bytes) -> pa.BinaryArray:
    buffers = [None if present is None else pa.py_buffer(present), pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


def as_text(values: pa.BinaryArray) -> pa.StringArray | None:
    """Returns these bytes as an array of text; None if they are not all UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def spans(data: pa.Buffer, at: Any, end: Any) -> pa.BinaryArray:
    """Returns a column with `data[at:end]` for each pair; the pairs ascend and do not overlap."""
    count = len(at)
    if not count:
        return pa.nulls(0, pa.binary())
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2], bounds[1::2] = at, end
    # One value for each pair and one for each gap between pairs, without a copy; the pairs are then taken out of it.
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), data])
    return both.take(column_of(np.arange(0, 2 * count - 1, 2)))
