"""Reads sealed segments of this node's log for an upload. A lane does it, so that neither the disk nor checksums block
the loop.

Complete frames are read and their checksums compared, so damaged bytes never leave this disk.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar, cast

from xxhash import xxh3_128

from cluster.runtime.context import NodeContext
from cluster.runtime.lanes import LaneRunner, NeverIdle
from cluster.tier.store.object_store import OBJECT_BYTES_MAX
from raftlog.errors import OutOfRangeError, RaftLogError
from raftlog.frame import headers_in
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import EntryType
from raftmq_wire.checksums import crc32c
from statemachine.tier import SegmentSpan

READ_BYTES = 512 << 10
"""Bytes of one read: few enough to be still in the processor's cache when they are compared and hashed."""


class Piece(NamedTuple):
    """Whole frames of a segment: the content of one object. The caller drops `data` as soon as possible, because the
    next piece then uses the same memory."""

    base: int
    end: int
    data: memoryview
    digest: bytes
    crc32c: int


class Sealed(NamedTuple):
    """A sealed segment."""

    base: int
    span: SegmentSpan


class Looked(NamedTuple):
    """The point up to which the log was searched for messages."""

    position: int
    """No entry below this position has messages."""
    first_ms: int | None
    """Log time of the entry that begins at `position`, if it has messages; None if no entry with messages was found."""


class SegmentReads:
    """Reads sealed segments on a lane. Calls are answered in order. If the caller waits for each answer, only one Piece
    is in memory at a time. Event loop only, except for the lane."""

    def __init__(self, context: NodeContext, log: SegmentedLog, read_bytes: int = READ_BYTES) -> None:
        """`read_bytes`: the most bytes that are read from the log at once."""
        self._log = log
        self._read_bytes = read_bytes
        self._lane = LaneCalls(context, "tier", RaftLogError)
        self._room = _room_of(0)
        """The memory of the last piece, which is used again. Getting 64 MiB anew costs the kernel as much as reading
        and checking them. The memory begins at a page boundary, so a directory store can write it to the disk without
        a copy."""

    def start(self) -> None:
        """Starts the lane; called before the first call."""
        self._lane.start()

    async def close(self) -> None:
        """Stops the lane; returns when it has finished its current work."""
        await self._lane.close()

    async def sealed(self, base: int) -> Sealed | None:
        """Returns the segment that begins at `base`; None if it is absent or not sealed. Raises RaftLogError."""
        return await self._lane.ask(lambda: self._find(base))

    async def piece(self, base: int, end: int, size_max: int = OBJECT_BYTES_MAX) -> Piece:
        """Returns frames from the one at `base` on: as many as fit into `size_max`, but at least one, and none at or
        above `end`. Raises RaftLogError if they were trimmed in the meantime, or are damaged on this node and not yet
        repaired."""
        return await self._lane.ask(lambda: self._read(base, end, size_max))

    async def first_message(self, position: int) -> Looked:
        """Searches for an entry with messages, from the entry at `position` on and through at most `read_bytes` of one
        segment. Returns how far it came. Raises RaftLogError as `piece` does."""
        return await self._lane.ask(lambda: self._look(position))

    def give_back(self) -> None:
        """Frees the memory of the last piece, because no next one is expected soon."""
        self._room = _room_of(0)

    def _find(self, base: int) -> Sealed | None:
        log = self._log
        if not log.first_position <= base < log.tail.end_position:
            return None
        found = log.segment_at(base)
        if not found.sealed or found.previous.end_position != base:
            return None
        try:
            last = log.segment_at(found.end_position).previous
        except OutOfRangeError:
            return None  # A conflict has cut the log after the segment.
        first_index = found.previous.index + 1
        first_ms = log.tail_at(first_index).timestamp_ms
        return Sealed(base, SegmentSpan(found.end_position, first_index, last.index, first_ms, last.timestamp_ms))

    def _look(self, position: int) -> Looked:
        for header in headers_in(memoryview(self._log.read_raw(position, self._read_bytes))):
            if header.type == EntryType.MESSAGES:
                return Looked(header.position, header.timestamp_ms)
            position = header.position + header.frame_length
        return Looked(position, None)

    def _read(self, base: int, end: int, size_max: int) -> Piece:
        room, at = self._take_room(min(end - base, size_max)), base
        digest, crc = xxh3_128(), 0
        while at < end:
            offset, left = at - base, size_max - (at - base)
            count = self._read_into(room, offset, at, min(self._read_bytes, left))
            if not count:  # the frame is larger than what is read at once
                size = self._log.entry_at(at).end - at
                if size > left and at > base:
                    break  # a single frame is returned even if it is larger
                if offset + size > len(room):
                    room.resize(_rounded(offset + size))
                count = self._read_into(room, offset, at, size)
            with memoryview(room) as whole, whole[offset : offset + count] as frames:
                digest.update(frames)
                crc = crc32c(frames, crc)
            at += count
        return Piece(base, at, memoryview(room)[: at - base], digest.digest(), crc)

    def _read_into(self, room: mmap.mmap, offset: int, position: int, size: int) -> int:
        with memoryview(room) as whole, whole[offset : offset + max(0, size)] as part:
            return self._log.read_raw_into(position, part)

    def _take_room(self, size: int) -> mmap.mmap:
        """Returns at least `size` bytes of memory that nobody reads: an upload that was given up may still read the
        previous piece."""
        if len(self._room) < size or not _is_free(self._room):
            self._room = _room_of(size)  # rounded up, because the next piece may be a little longer
        return self._room


def _room_of(size: int) -> mmap.mmap:
    room = mmap.mmap(-1, _rounded(size), flags=mmap.MAP_PRIVATE)  # a shared mapping cannot grow
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the kernel may not offer such pages; then it takes a little longer
            room.madvise(mmap.MADV_HUGEPAGE)
    return room


def _rounded(size: int) -> int:
    return max(1, -(-size // READ_BYTES)) * READ_BYTES


def _is_free(room: mmap.mmap) -> bool:
    """Returns True if no memoryview of the memory is left. Tests it by setting the length, which fails while there is
    one."""
    try:
        room.resize(len(room))
    except BufferError:
        return False
    return True


T = TypeVar("T")


class _Job(NamedTuple):
    number: int
    do: Callable[[], object]


class _Done(NamedTuple):
    number: int
    value: object
    error: Exception | None


class LaneCalls:
    """Calls on a lane that are awaited one by one. They run and are answered in order. Event loop only."""

    def __init__(self, context: NodeContext, name: str, raises: type[Exception]) -> None:
        """`name` is the name of the lane. A call may raise `raises`, and its caller gets the error; any other error
        stops the node."""
        self._context = context
        self._name = name
        self._raises = raises
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._number = 0
        self._runner: LaneRunner[_Job] | None = None

    def start(self) -> None:
        """Starts the lane; called before the first call."""
        context, lane = self._context, _SegmentLane(self._raises)
        self._runner = context.environment.runner(self._name, lane, context.loop, self._on_done, context.fail)

    async def close(self) -> None:
        """Stops the lane; returns when it has finished its current work."""
        if self._runner is not None:
            await self._context.loop.run_in_executor(None, self._runner.close)

    async def ask(self, do: Callable[[], T]) -> T:
        """Runs `do` on the lane; returns what it returns, or raises what it raises."""
        assert self._runner is not None
        self._number += 1
        waiter: asyncio.Future[object] = self._context.loop.create_future()
        self._waiting[self._number] = waiter
        self._runner.submit(_Job(self._number, do))
        return cast(T, await waiter)

    def _on_done(self, answers: list[_Done]) -> None:
        for answer in answers:
            waiter = self._waiting.pop(answer.number)
            if waiter.done():
                continue  # the caller was cancelled
            if answer.error is not None:
                waiter.set_exception(answer.error)
            else:
                waiter.set_result(answer.value)


class _SegmentLane(NeverIdle):
    def __init__(self, raises: type[Exception]) -> None:
        self._raises = raises

    def drain(self, batch: Sequence[_Job]) -> list[_Done]:
        return [self._done(job) for job in batch]

    def _done(self, job: _Job) -> _Done:
        try:
            return _Done(job.number, job.do(), None)
        except self._raises as error:
            return _Done(job.number, None, error)
