"""body_of(): both kernels make the same body of rows and bytes, and stop at the same message."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine.payload import ITEM
from tests.support.kernels import Pair

FIRST = (1 << 33) + 5
MESSAGES = [b"", b"1", b"1234567", b"12345678", b"123456789", b"x" * 1000]


def item(position: int, size: int, checksum: int) -> bytes:
    return ITEM.pack(position, size, checksum, -1, 1)


def test_every_length_is_checked_whole(each_kernel: Callable[[str], Any]) -> None:
    """The native one takes eight bytes at a time, and what is left one by one."""
    body_of = each_kernel("body_of")
    for message in MESSAGES:
        right = item(FIRST, len(message), google_crc32c.value(message))
        assert body_of(right, message, FIRST) == (message, 1)
        for at in range(len(message)):
            flipped = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
            assert body_of(right, flipped, FIRST) == (b"", 0), f"byte {at} of {len(message)}"


def test_half_an_item_is_refused(each_kernel: Callable[[str], Any]) -> None:
    with pytest.raises(struct.error, match="multiple of 32 bytes"):
        each_kernel("body_of")(bytes(40), b"", FIRST)


def test_a_message_in_front_of_the_block_is_not_taken_from_its_end(each_kernel: Callable[[str], Any]) -> None:
    items = item(FIRST - 1, 1, google_crc32c.value(b"z")) + item(FIRST, 1, google_crc32c.value(b"a"))
    assert each_kernel("body_of")(items, b"a--z", FIRST) == (b"", 0)


PLACE = st.tuples(st.integers(-2, 45), st.integers(0, 12), st.sampled_from(["right", "wrong", "of a shorter one"]))


@given(st.binary(max_size=40), st.lists(PLACE, max_size=6), st.booleans())
def test_both_give_the_same(
    both_kernels: Callable[[str], Pair], block: bytes, places: list[tuple[int, int, str]], in_order: bool
) -> None:
    """Rows that overlap, that have gaps, that ascend or do not, that lie outside: nothing that a node has, mostly."""
    items = b""
    at = 0
    for begin, size, checksum in places:
        begin, at = (at, at + size) if in_order else (begin, at)
        crc = google_crc32c.value(block[max(0, begin) : max(0, begin) + size - (checksum == "of a shorter one")])
        items += item(FIRST + begin, size, crc ^ (checksum == "wrong"))
    native, python = both_kernels("body_of")
    assert native(items, block, FIRST) == python(items, block, FIRST)
