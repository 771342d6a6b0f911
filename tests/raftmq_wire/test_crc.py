"""CRC-32 by zlib-ng against zlib's, and against the check values of the standard."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq_wire import crc
from raftmq_wire.crc import crc32
from tests.support.rows import each_row


def test_it_is_the_fast_one() -> None:
    zlib_ng = pytest.importorskip("zlib_ng.zlib_ng")
    assert crc.crc32 is zlib_ng.crc32


@each_row(
    ("data", "value"),
    [(b"", 0), (b"a", 0xE8B7BE43), (b"123456789", 0xCBF43926), (bytes(32), 0x190A55AD), (b"\xff" * 32, 0xFF6CAB0B)],
)
def test_check_values(data: bytes, value: int) -> None:
    assert crc32(data) == value


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1), st.integers(0, 400), st.integers(0, 63))
def test_values_are_those_of_zlib(data: bytes, start: int, repeats: int, cut: int) -> None:
    # The loops of the processor's instruction begin at 16, 64 and 512 bytes, and at addresses of any alignment.
    long = memoryview(data * repeats)[cut:]
    assert crc32(data, start) == zlib.crc32(data, start)
    assert crc32(long) == zlib.crc32(long)
    assert crc32(bytes(long), start) == zlib.crc32(long, start)


@pytest.mark.parametrize("size", [5 * 1024, 5 * 1024 + 1, 65_536, 4_194_304 + 3])
def test_values_of_large_bodies(size: int) -> None:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert crc32(body) == zlib.crc32(body)
    assert crc32(bytearray(body), 7) == zlib.crc32(body, 7)
