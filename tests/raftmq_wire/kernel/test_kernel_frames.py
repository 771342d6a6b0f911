"""frames(): where the frames in a read are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import Pair

LIMIT = 300


@pytest.mark.parametrize(
    ("data", "found", "at", "length"),
    [
        (b"", [], 0, None),
        (b"\0\0\0", [], 0, None),
        (b"\0\0\0\0", [(4, 4)], 4, None),
        (b"\0\0\0\1a\0\0", [(4, 5)], 5, None),
        (b"\0\0\0\1a\0\0\0\2b", [(4, 5)], 5, 2),
        (b"\0\0\1\x2c" + bytes(300), [(4, 304)], 304, None),
        (b"\0\0\1\x2d" + bytes(301), [], 0, 301),
        (b"\xff\xff\xff\xff", [], 0, -1),
        (b"\x80\0\0\0", [], 0, -(1 << 31)),
        (b"\0\0\0\0\x7f\xff\xff\xff", [(4, 4)], 4, (1 << 31) - 1),
    ],
)
def test_frames(
    each_kernel: Callable[[str], Any], data: bytes, found: list[tuple[int, int]], at: int, length: int | None
) -> None:
    assert each_kernel("frames")(data, LIMIT) == (found, at, length)


PREFIX = st.integers(-2, LIMIT + 2) | st.integers(-(1 << 31), (1 << 31) - 1)
PIECE = st.binary(max_size=40).map(lambda body: len(body).to_bytes(4, "big") + body)
BROKEN = st.builds(lambda length, body: length.to_bytes(4, "big", signed=True) + body, PREFIX, st.binary(max_size=40))


@given(st.lists(PIECE | BROKEN, max_size=6).map(b"".join), st.integers(0, 6), st.sampled_from([0, 3, LIMIT, 1 << 40]))
def test_both_find_the_same(both_kernels: Callable[[str], Pair], data: bytes, missing: int, limit: int) -> None:
    data = data[: len(data) - missing]
    native, python = both_kernels("frames")
    assert native(data, limit) == python(data, limit)
