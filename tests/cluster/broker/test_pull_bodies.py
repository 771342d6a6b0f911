"""`body_of`: bytes of the log and rows of a queue become the body of an answer; nothing unchecked is in it."""

from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from cluster.broker.reads.pull_bodies import body_of
from statemachine.payload import ITEM
from tests.support.rows import each_row

FIRST = 1 << 33
MESSAGES = [b"one", b"second", b"x" * 1200, b"4"]


def stored(messages: list[bytes], gaps: list[int]) -> tuple[bytes, bytearray]:
    """Packed items, and the log from FIRST on; before each message lie as many bytes of others as `gaps` says."""
    items, log = b"", bytearray()
    for message, gap in zip(messages, gaps, strict=True):
        log += b"-" * gap
        items += ITEM.pack(FIRST + len(log), len(message), google_crc32c.value(message), -7, 1_700_000_000_000)
        log += message
    return items, log


def expected(items: bytes, block: bytes) -> tuple[bytes, int]:
    """The same, message by message."""
    pieces: list[bytes] = []
    for position, size, checksum, _, _ in ITEM.iter_unpack(items):
        piece = block[position - FIRST : position - FIRST + size]
        if len(piece) != size or google_crc32c.value(piece) != checksum:
            break
        pieces.append(piece)
    return b"".join(pieces), len(pieces)


@each_row("gaps", [[0, 0, 0, 0], [5, 0, 0, 0], [0, 0, 9, 0], [1, 2, 3, 4]])
@each_row("behind", [b"", b"more"])
def test_messages_are_joined(gaps: list[int], behind: bytes) -> None:
    items, log = stored(MESSAGES, gaps)
    assert body_of(items, bytes(log) + behind, FIRST) == (b"".join(MESSAGES), 4)


def test_back_to_back_messages_are_not_copied() -> None:
    items, log = stored(MESSAGES, [0] * 4)
    block = bytes(log)
    assert body_of(items, block, FIRST)[0] is block


@each_row("gap", [0, 3])
@each_row("bad", range(4))
def test_a_flipped_bit_ends_the_body(bad: int, gap: int) -> None:
    items, log = stored(MESSAGES, [gap] * 4)
    at = next(position for number, (position, *_) in enumerate(ITEM.iter_unpack(items)) if number == bad) - FIRST
    log[at] ^= 1
    assert body_of(items, bytes(log), FIRST) == (b"".join(MESSAGES[:bad]), bad)


def test_a_row_that_names_another_size_ends_the_body() -> None:
    items, log = stored([b"", b"a"], [0, 0])
    wrong = items[:32] + ITEM.pack(FIRST, 2, google_crc32c.value(b"a"), 0, 0)
    assert body_of(wrong, bytes(log), FIRST) == (b"", 1), "one byte was read where two were named"


def test_a_message_that_is_not_wholly_there_ends_the_body() -> None:
    items, log = stored(MESSAGES, [0] * 4)
    assert body_of(items, bytes(log[:-1]), FIRST) == (b"".join(MESSAGES[:3]), 3)
    assert body_of(items, b"", FIRST) == (b"", 0)
    assert body_of(items, bytes(log), FIRST + 1) == (b"", 0), "the block begins behind the first"
    assert body_of(b"", b"", FIRST) == (b"", 0)


@given(
    messages=st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 3)), max_size=12),
    flips=st.lists(st.integers(0, 400), max_size=2),
    cut=st.integers(0, 400),
)
def test_it_does_what_a_loop_over_the_messages_does(
    messages: list[tuple[bytes, int]], flips: list[int], cut: int
) -> None:
    items, log = stored([message for message, _ in messages], [gap for _, gap in messages])
    for at in flips:
        if at < len(log):
            log[at] ^= 0x10
    block = bytes(log[: max(0, len(log) - cut)]) if cut < 100 else bytes(log)
    assert body_of(items, block, FIRST) == expected(items, block)


def test_rows_that_overlap_give_nothing_unchecked() -> None:
    """They span as many bytes as they name, with a hole that no CRC covers."""
    log = bytearray(b"0123456789")
    rows = [(0, 4), (2, 4), (8, 2)]
    items = b"".join(
        ITEM.pack(FIRST + at, size, google_crc32c.value(bytes(log[at : at + size])), 0, 0) for at, size in rows
    )
    log[6] ^= 1
    assert body_of(items, bytes(log), FIRST) == (b"0123", 1)
