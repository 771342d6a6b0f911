"""split_properties(): both kernels make the same columns of the same properties, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kernels import Pair
from tests.support.rows import each_row

NAMES = (b"TAGS", b"KEYS")


def places(rows: list[bytes], gap: int) -> tuple[bytes, Any, Any]:
    """(data, at, end) of the rows' properties, with `gap` bytes in front of each."""
    data, at, end = b"", [], []
    for row in rows:
        data += b"\x01" * gap
        at.append(len(data))
        data += row
        end.append(len(data))
    return data, np.array(at, dtype=np.int64), np.array(end, dtype=np.int64)


def i32(*values: int) -> bytes:
    return np.array(values, dtype=np.int32).tobytes()


def test_known_rows(each_kernel: Callable[[str], Any]) -> None:
    rows = [b"TAGS\x01a\x02KEYS\x01k\x02", b"", b"TAGS\x01b\x02TAGS\x01cc", b"KEYS\x01\x02\x01x\x02odd\x02"]
    columns, found = each_kernel("split_properties")(*places(rows, 2), NAMES, True)
    assert columns == [(b"\x05", i32(0, 1, 1, 3, 3), b"acc"), (b"\x01", i32(0, 1, 1, 1, 1), b"k")]
    bounds, name_ends, names, value_ends, values, repeated = found
    assert (bounds, names, values) == (i32(0, 2, 2, 4, 4), b"TAGSKEYSTAGSTAGS", b"akbcc")
    assert (name_ends, value_ends, repeated) == (i32(0, 4, 8, 12, 16), i32(0, 1, 2, 3, 5), True)


@pytest.mark.parametrize(("count", "repeated"), [(64, False), (65, True)])
def test_a_row_of_many_entries_takes_the_long_way(
    each_kernel: Callable[[str], Any], count: int, repeated: bool
) -> None:
    row = b"".join(b"n%d\x01v\x02" % number for number in range(count))
    assert each_kernel("split_properties")(*places([b"a\x01b", row], 0), (), True)[1][-1] is repeated


@each_row(("at", "end"), [([-1], [1]), ([2], [1]), ([0], [9]), ([0, 1], [1])])
def test_places_outside_of_the_data_are_refused(
    each_kernel: Callable[[str], Any], at: list[int], end: list[int]
) -> None:
    begin, stop = np.array(at, dtype=np.int64), np.array(end, dtype=np.int64)
    with pytest.raises(ValueError, match="row"):
        each_kernel("split_properties")(b"12345678", begin, stop, (), False)


def test_more_names_than_it_has_room_for_are_refused(each_kernel: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="9 names"):
        each_kernel("split_properties")(*places([b"a\x01b"], 0), (b"a",) * 9, False)


ENTRY = st.builds(
    lambda name, between, value: name + between + value,
    st.sampled_from([b"TAGS", b"KEYS", b"T", b"", b"\xff"]),
    st.sampled_from([b"\x01", b"", b"\x01\x01"]),
    st.sampled_from([b"", b"v", b"\x01", b"longer"]),
)
ROW = st.lists(ENTRY, max_size=4).map(b"\x02".join) | st.binary(max_size=9)


@settings(deadline=None)
@given(st.lists(ROW, max_size=10), st.integers(0, 2), st.booleans(), st.sampled_from([NAMES, (), (b"T",)]))
def test_both_give_the_same(
    both_kernels: Callable[[str], Pair], rows: list[bytes], gap: int, as_map: bool, names: tuple[bytes, ...]
) -> None:
    native, python = both_kernels("split_properties")
    data, at, end = places(rows, gap)
    assert native(data, at, end, names, as_map) == python(data, at, end, names, as_map)
