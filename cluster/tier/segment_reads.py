"""Sealed segments of this node's log, read for an upload: on a lane, so that neither disk nor checksums hold the loop.

Frames are read whole and their checksums compared: bytes that rotted on this disk never leave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

from google_crc32c import extend

from cluster.runtime.context import NodeContext
from cluster.runtime.lanes import LaneRunner
from cluster.tier.store.object_store import OBJECT_BYTES_MAX
from raftlog.errors import OutOfRangeError, RaftLogError
from raftlog.storage.segmented_log import SegmentedLog
from statemachine.tier import SegmentSpan

READ_BYTES = 1 << 20


class Piece(NamedTuple):
    """Whole frames of a segment: what one object holds."""

    base: int
    end: int
    data: memoryview
    sha256: bytes
    crc32c: int


class Sealed(NamedTuple):
    """A sealed segment."""

    base: int
    span: SegmentSpan


class _FindJob(NamedTuple):
    number: int
    base: int


class _ReadJob(NamedTuple):
    number: int
    base: int
    end: int
    size_max: int


class _Answer(NamedTuple):
    number: int
    value: Sealed | Piece | RaftLogError | None


class SegmentReads:
    """Event loop only, but for its lane. Calls are answered in order. One Piece is in memory at a time if the caller
    waits for each."""

    def __init__(self, context: NodeContext, log: SegmentedLog) -> None:
        self._context = context
        self._log = log
        self._waiting: dict[int, asyncio.Future[Sealed | Piece | None]] = {}
        self._number = 0
        self._runner: LaneRunner[_FindJob | _ReadJob] | None = None

    def start(self) -> None:
        """Before the first call."""
        context = self._context
        self._runner = context.environment.runner("tier", _Lane(self._log), context.loop, self._on_done, context.fail)

    async def close(self) -> None:
        """Returns when the lane is done with what it was doing."""
        if self._runner is not None:
            await self._context.loop.run_in_executor(None, self._runner.close)

    async def sealed(self, base: int) -> Sealed | None:
        """The segment that begins at `base`, None if it is not sealed or not there. Raises RaftLogError."""
        found = await self._ask(lambda number: _FindJob(number, base))
        assert not isinstance(found, Piece)
        return found

    async def piece(self, base: int, end: int, size_max: int = OBJECT_BYTES_MAX) -> Piece:
        """Frames from the one at `base` on, as many as fit `size_max`, none at or above `end`. Raises RaftLogError:
        trimmed meanwhile, or damaged on this node and not yet repaired."""
        found = await self._ask(lambda number: _ReadJob(number, base, end, size_max))
        assert isinstance(found, Piece)
        return found

    async def _ask(self, job: Callable[[int], _FindJob | _ReadJob]) -> Sealed | Piece | None:
        assert self._runner is not None
        self._number += 1
        waiter: asyncio.Future[Sealed | Piece | None] = self._context.loop.create_future()
        self._waiting[self._number] = waiter
        self._runner.submit(job(self._number))
        return await waiter

    def _on_done(self, answers: list[_Answer]) -> None:
        for answer in answers:
            waiter = self._waiting.pop(answer.number)
            if waiter.done():
                continue  # who asked was cancelled
            if isinstance(answer.value, RaftLogError):
                waiter.set_exception(answer.value)
            else:
                waiter.set_result(answer.value)


class _Lane:
    idle_after_s: float | None = None

    def __init__(self, log: SegmentedLog) -> None:
        self._log = log

    def drain(self, batch: Sequence[_FindJob | _ReadJob]) -> list[_Answer]:
        return [_Answer(job.number, self._do(job)) for job in batch]

    def idle(self) -> None:
        """Nothing to do."""

    def _do(self, job: _FindJob | _ReadJob) -> Sealed | Piece | RaftLogError | None:
        try:
            return self._find(job.base) if isinstance(job, _FindJob) else self._read(job)
        except RaftLogError as error:
            return error

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
            return None  # a conflict has cut the log behind it
        first_index = found.previous.index + 1
        first_ms = log.tail_at(first_index).timestamp_ms
        return Sealed(base, SegmentSpan(found.end_position, first_index, last.index, first_ms, last.timestamp_ms))

    def _read(self, job: _ReadJob) -> Piece:
        data, at = bytearray(), job.base
        digest, crc = sha256(), 0
        while at < job.end:
            left = min(READ_BYTES, job.size_max - len(data))
            if left <= 0:
                break
            frames = self._log.read_raw(at, left)
            if len(data) + len(frames) > job.size_max and data:
                break  # one frame is given even if it is larger
            digest.update(frames)
            crc = extend(crc, frames)
            data += frames
            at += len(frames)
        return Piece(job.base, at, memoryview(data), digest.digest(), crc)
