"""Pieces of a segment for an upload: their bytes, and the memory that one takes over from the one before."""

from __future__ import annotations

import asyncio
import random

import google_crc32c
import pytest
from xxhash import xxh3_128

from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import Environment
from cluster.tier.segment_reads import READ_BYTES, Piece, SegmentReads
from raftlog.storage.log.log_reader import EntrySpan
from tests.support.contexts import context_of
from tests.support.lanes_in_line import InLine

FRAME = 300_000
LOG = random.Random(5).randbytes(20 * FRAME)


class _Log:
    """Frames of one size; positions begin at 0."""

    def read_raw_into(self, position: int, room: memoryview) -> int:
        assert position % FRAME == 0
        frames = LOG[position : position + len(room) // FRAME * FRAME]
        room[: len(frames)] = frames
        return len(frames)

    def entry_at(self, position: int) -> EntrySpan:
        return EntrySpan(position // FRAME, 1, position, position + FRAME)


def reads(read_bytes: int = READ_BYTES) -> SegmentReads:
    environment = Environment(runner=InLine)
    loop = asyncio.get_running_loop()
    context = context_of(None, Alarms(lambda: 0), environment=environment, loop=loop)
    made = SegmentReads(context, _Log(), read_bytes)  # type: ignore[arg-type]  # what is used of it
    made.start()
    return made


def check(piece: Piece) -> None:
    assert piece.data == LOG[piece.base : piece.end]
    assert (piece.digest, piece.crc32c) == (xxh3_128(piece.data).digest(), google_crc32c.value(bytes(piece.data)))


@pytest.mark.parametrize("read_bytes", [READ_BYTES, FRAME - 1, FRAME, 1 << 20, 1])
def test_a_piece_ends_with_a_frame_and_has_at_least_one(read_bytes: int) -> None:
    """Also where a frame is larger than what is read at once."""

    async def run() -> None:
        of = reads(read_bytes)
        for size_max, end in ((1 << 30, 20), (1 << 20, 3), (4 * FRAME, 4), (4 * FRAME + 1, 4), (FRAME - 1, 1)):
            piece = await of.piece(0, len(LOG), size_max)
            check(piece)
            assert piece.end == end * FRAME
            check(await of.piece(piece.end - FRAME, piece.end, size_max))

    asyncio.run(run())


def test_the_memory_of_a_piece_that_nobody_holds_is_used_for_the_next() -> None:
    async def run() -> None:
        of = reads()
        first = await of.piece(0, 10 * FRAME)
        memory = first.data.obj
        del first
        second = await of.piece(2 * FRAME, 8 * FRAME)
        check(second)
        assert second.data.obj is memory
        of.give_back()
        del second
        assert (await of.piece(0, FRAME)).data.obj is not memory

    asyncio.run(run())


def test_a_piece_that_is_still_being_written_stays_as_it_is() -> None:
    """A write that was given up may go on in a thread of the store."""

    async def run() -> None:
        of = reads()
        first = await of.piece(0, 6 * FRAME)
        written = first.data[FRAME:]  # the rest, as a store that writes it bit by bit holds it
        del first
        second = await of.piece(6 * FRAME, 12 * FRAME)
        check(second)
        assert written == LOG[FRAME : 6 * FRAME]

    asyncio.run(run())
