"""CRC-32C is the one of RFC 3720, of any memory, and leaves the interpreter to other threads."""

from __future__ import annotations

import itertools
import mmap
import random
import sys
import threading

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from raftmq_wire.checksums import crc32c
from tests.support.rows import each_row

SIZES = [0, 1, 7, 8, 63, 64, 255, 4096, 65_537, 1_000_003]


@each_row(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_vectors(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@each_row("size", SIZES)
def test_every_length_and_place_as_another_library_has_it(size: int) -> None:
    data = random.Random(size).randbytes(size + 70)
    for start in (0, 1, 7, 33, 64):
        part = data[start : start + size]
        wanted = google_crc32c.value(part)
        view = memoryview(data)[start : start + size]
        assert crc32c(part) == crc32c(bytearray(part)) == crc32c(view) == wanted
        assert crc32c(memoryview(bytearray(data))[start : start + size]) == wanted
        assert crc32c(view, 77) == google_crc32c.extend(77, part)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_pieces_count_as_the_whole(data: bytes, cuts: list[int]) -> None:
    crc = 0
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(places):
        crc = crc32c(data[start:stop], crc)
    assert crc == google_crc32c.value(data)


def test_the_memory_is_free_afterwards() -> None:
    room = bytearray(1 << 20)
    with memoryview(room) as view:
        crc32c(view)
    room.extend(b"longer")


def test_other_threads_run_meanwhile() -> None:
    """A checksum of 64 MiB must not hold an event loop. No thread has to give way here by itself, so this one runs only
    once the other gives up the interpreter: within the checksum, or when it is done. On a busy machine this thread may
    sleep through a checksum; it need not see each."""
    room = mmap.mmap(-1, 64 << 20)
    wanted, interval = crc32c(room), sys.getswitchinterval()
    found: list[int] = []

    def look(begun: threading.Event) -> None:
        begun.set()
        found.append(crc32c(room))

    ran = False
    sys.setswitchinterval(1000)
    try:
        while not ran and len(found) < 100:
            begun, before = threading.Event(), len(found)
            thread = threading.Thread(target=look, args=[begun])
            thread.start()
            begun.wait()
            ran = len(found) == before
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert ran
    assert set(found) == {wanted}
