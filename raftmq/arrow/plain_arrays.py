"""Converts arrays of numpy and lists to Arrow's columns, and back, without pandas. pyarrow's own conversions import
pandas if it is installed, which takes longer than a small read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def column_of(values: Any) -> pa.Array:
    """Returns a column with the numbers of an array, without a copy."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def binary_of(values: Sequence[bytes]) -> pa.BinaryArray:
    """Returns a column of bytes; the values have at most 2 GiB in all."""
    ends = np.fromiter(itertools.accumulate(map(len, values), initial=0), dtype=np.int32, count=len(values) + 1)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def repeated(text: str, count: int) -> pa.StringArray:
    """Returns a column that has the text `count` times; they have at most 2 GiB in all."""
    data = text.encode()
    ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(len(data)))
    return pa.Array.from_buffers(pa.string(), count, [None, ends, pa.py_buffer(data * count)])


def numbers_of(column: pa.Array, kind: type[np.generic]) -> Any:
    """Returns the numbers of a column as an array. The column has no nulls, and its type is that of `kind`."""
    size = np.dtype(kind).itemsize
    return np.frombuffer(column.buffers()[1], dtype=kind, count=len(column), offset=column.offset * size)
