"""sorted_rows(): both kernels make the same rows of an index file."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster.tier.index_file.index_worker  # noqa: F401  # where the twin is marked
from statemachine.message_index import RECORD
from tests.support.kernels import Pair

U32 = st.integers(0, 2**32 - 1)


def test_rows_ascend_and_count_from_the_segment(each_kernel: Callable[[str], Any]) -> None:
    base = (7 << 32) - 2  # the low halves begin anew within the segment
    records = b"".join(RECORD.pack(*each) for each in [(9, 3), (0xFFFFFFFF, 0xFFFFFFFE), (9, 0xFFFFFFFF), (9, 3)])
    rows = list(RECORD.iter_unpack(each_kernel("sorted_rows")(records, base)))
    assert rows == [(9, 1), (9, 5), (9, 5), (0xFFFFFFFF, 0)]
    assert each_kernel("sorted_rows")(b"", base) == b""


def test_half_a_record_is_refused(each_kernel: Callable[[str], Any]) -> None:
    with pytest.raises(struct.error, match="requires a buffer of 8 bytes"):
        each_kernel("sorted_rows")(bytes(12), 0)


@given(st.lists(st.tuples(U32, U32), max_size=300), st.integers(0, 2**63))
def test_both_give_the_same(both_kernels: Callable[[str], Pair], records: list[tuple[int, int]], base: int) -> None:
    data = b"".join(RECORD.pack(*each) for each in records)
    native, python = both_kernels("sorted_rows")
    assert native(data, base) == python(data, base)


HASHES = st.sampled_from([5, 5 << 24, 6 << 24, 0xFFFFFFFF])


@given(records=st.lists(st.tuples(HASHES, U32), max_size=40), ascending=st.booleans())
def test_equal_keys_ascend_by_position(
    both_kernels: Callable[[str], Pair], records: list[tuple[int, int]], *, ascending: bool
) -> None:
    if ascending:  # as in a bucket: no byte of the positions is looked at
        records.sort(key=lambda record: record[1])
    native, python = both_kernels("sorted_rows")
    found = native(b"".join(RECORD.pack(*each) for each in records), 0)
    assert found == python(b"".join(RECORD.pack(*each) for each in records), 0)
    assert list(RECORD.iter_unpack(found)) == sorted(records)
