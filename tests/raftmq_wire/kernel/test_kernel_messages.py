"""message_starts(): both kernels find the same messages, or none of them right."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import raftmq.arrow.frames  # noqa: F401 - the twin
from raftmq_wire.message_format import Message, encode_message
from tests.support.kernels import Pair
from tests.support.rows import each_row

V4, V6 = ("127.0.0.1", 9876), ("fe80::1", 1)
U32 = struct.Struct(">I")
TOTAL_AT, CRC_AT, SYS_FLAG_AT, LENGTH_AT = 0, 8, 36, 84


def message(body: bytes, born: tuple[str, int] = V4, store: tuple[str, int] = V4) -> bytes:
    return encode_message(
        Message(topic="orders", body=body, properties=b"", born_host=born, store_host=store, born_ms=1, store_ms=2)
    )


def starts_of(*sizes: int) -> bytes:
    at = [sum(sizes[:number]) for number in range(len(sizes))]
    return struct.pack(f"={len(sizes)}q", *at)


def test_each_begins_where_the_one_before_ends(each_kernel: Callable[[str], Any]) -> None:
    sent = [message(body, born, store) for body in (b"", b"x" * 9000) for born in (V4, V6) for store in (V4, V6)]
    assert each_kernel("message_starts")(b"".join(sent)) == starts_of(*map(len, sent))
    assert each_kernel("message_starts")(b"") == b""


@each_row(
    ("at", "value"),
    [
        (TOTAL_AT, 0),
        (TOTAL_AT, 87),
        (TOTAL_AT, 1 << 31),
        (TOTAL_AT, (1 << 32) - 1),
        (CRC_AT, 0),
        (SYS_FLAG_AT, 0x30),
        (LENGTH_AT, 1 << 31),
        (LENGTH_AT, (1 << 32) - 1),
        (LENGTH_AT, 0),
    ],
)
def test_what_cannot_be_is_none(each_kernel: Callable[[str], Any], at: int, value: int) -> None:
    whole = message(b"paid")
    spoiled = whole[:at] + U32.pack(value) + whole[at + 4 :]
    for data in (spoiled, whole + spoiled, spoiled + whole):
        assert each_kernel("message_starts")(data) is None


def test_a_cut_message_is_none(each_kernel: Callable[[str], Any]) -> None:
    whole = message(b"paid")
    for size in range(1, len(whole)):
        assert each_kernel("message_starts")(whole + whole[:size]) is None


MESSAGES = st.builds(message, st.binary(max_size=20), st.sampled_from([V4, V6]), st.sampled_from([V4, V6]))
BROKEN = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=2)


@given(st.lists(MESSAGES, max_size=3), BROKEN, st.integers(0, 3))
def test_both_give_the_same(
    both_kernels: Callable[[str], Pair], sent: list[bytes], broken: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(b"".join(sent))
    for at, value in broken:
        if at < len(data):
            data[at] = value
    whole = bytes(data[: len(data) - cut])
    native, python = both_kernels("message_starts")
    assert native(whole) == python(whole)
