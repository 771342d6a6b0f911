"""CRC-32C of memory that is not copied is that of its bytes."""

from __future__ import annotations

import random

import google_crc32c
import pytest

from raftlog import checksums
from raftlog.checksums import BLOCK_BYTES, crc32c_of

SIZES = [0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES]


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_it_is_that_of_the_bytes(monkeypatch: pytest.MonkeyPatch, size: int, in_c: bool) -> None:
    monkeypatch.setattr(checksums, "_IN_C", in_c and google_crc32c.implementation == "c")
    data = random.Random(size).randbytes(size + 20)
    view = memoryview(bytearray(data))[7 : 7 + size]
    assert crc32c_of(view) == google_crc32c.value(data[7 : 7 + size])
    assert crc32c_of(view, 77) == google_crc32c.extend(77, data[7 : 7 + size])


def test_the_memory_is_free_afterwards() -> None:
    room = bytearray(BLOCK_BYTES)
    with memoryview(room) as view:
        crc32c_of(view)
    room.extend(b"longer")
