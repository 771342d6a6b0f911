"""Reads the node's own checkpoints on a lane, so that the disk does not hold up the event loop."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from google_crc32c import extend

from cluster.runtime.context import NodeContext
from cluster.runtime.lanes import LaneRunner
from cluster.state.checkpoints import Checkpoint
from cluster.state.manifest import CheckpointFile
from cluster.state.node_storage import NodeStorage
from cluster.tier.file_set.set_writer import Chunk, FileSource, chunk_of
from raftlog.errors import RaftLogError
from raftlog.storage.fs import FileSystem
from raftlog.storage.genesis_copy import read_copy
from raftlog.types import LogTail
from statemachine.trim import load_mark

if TYPE_CHECKING:
    from statemachine.kv import KV


class DamagedCheckpointError(OSError):
    """A file of a checkpoint does not have the CRC of its manifest: it must not leave this disk."""


class _Job(NamedTuple):
    number: int
    do: Callable[[], object]


class _Done(NamedTuple):
    number: int
    value: object


class CheckpointReads:
    """Event loop only, but for its lane."""

    def __init__(self, context: NodeContext, storage: NodeStorage) -> None:
        self._context = context
        self._fs: FileSystem = context.environment.fs
        self._checkpointer = storage.checkpointer
        self._log = storage.directory.log
        self._data = storage.directory.path
        self._group_id = storage.directory.identity.group_id
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._number = 0
        self._runner: LaneRunner[_Job] | None = None

    def start(self) -> None:
        """Before the first call."""
        context = self._context
        self._runner = context.environment.runner("tier-state", _Lane(), context.loop, self._on_done, context.fail)

    async def close(self) -> None:
        """Returns when the lane is done with what it was doing."""
        if self._runner is not None:
            await self._context.loop.run_in_executor(None, self._runner.close)

    async def all(self) -> list[Checkpoint]:
        """Newest first. Raises OSError."""
        found = await self._ask(self._checkpointer.checkpoints.all)
        assert isinstance(found, list)
        return found

    async def log_begins(self, checkpoint: Checkpoint) -> LogTail:
        """The tail before the first segment that its rows refer to. Raises OSError."""
        found = await self._ask(lambda: self._log_begins(checkpoint))
        assert isinstance(found, LogTail)
        return found

    def _log_begins(self, checkpoint: Checkpoint) -> LogTail:
        try:
            with self._context.environment.open_rows(checkpoint.path) as rows:
                position = load_mark(cast("KV", rows)).position  # `get` is all that is asked of it
            return self._log.segment_at(position).previous
        except RaftLogError as error:
            raise OSError(errno.EIO, str(error)) from error

    async def genesis(self) -> bytes:
        """The frame at index 0. Raises OSError."""
        found = await self._ask(self._genesis)
        assert isinstance(found, bytes)
        return found

    def _genesis(self) -> bytes:
        try:
            entry = read_copy(self._fs, self._data, self._group_id)
        except RaftLogError as error:
            raise OSError(errno.EIO, str(error)) from error
        return entry.header + entry.payload

    def sources(self, checkpoint: Checkpoint) -> list[FileSource]:
        """Its files. Each is read from front to back; the last read raises DamagedCheckpointError if its CRC is not
        the manifest's."""
        return [self._source(checkpoint, file) for file in checkpoint.manifest.files]

    def _source(self, checkpoint: Checkpoint, file: CheckpointFile) -> FileSource:
        path, crc = checkpoint.path / file.name, 0

        def take(start: int, size: int) -> Chunk:
            """On the lane, which takes one job after the other."""
            nonlocal crc
            opened = self._fs.open(path)
            try:
                data = opened.pread(size, start)
            finally:
                opened.close()
            crc = extend(crc if start else 0, data)
            if len(data) != size or (start + size == file.size and crc != file.crc32c):
                raise DamagedCheckpointError(f"{path} is not what its manifest says")
            return chunk_of(data)

        async def read(start: int, size: int) -> Chunk:
            self._checkpointer.hold(checkpoint.path.name)
            found = await self._ask(lambda: take(start, size))
            assert isinstance(found, Chunk)
            return found

        return FileSource(file.name, file.size, read)

    async def _ask(self, do: Callable[[], object]) -> object:
        assert self._runner is not None
        self._number += 1
        waiter: asyncio.Future[object] = self._context.loop.create_future()
        self._waiting[self._number] = waiter
        self._runner.submit(_Job(self._number, do))
        return await waiter

    def _on_done(self, answers: list[_Done]) -> None:
        for answer in answers:
            waiter = self._waiting.pop(answer.number)
            if waiter.done():
                continue  # who asked was cancelled
            if isinstance(answer.value, OSError):
                waiter.set_exception(answer.value)
            else:
                waiter.set_result(answer.value)


class _Lane:
    idle_after_s: float | None = None

    def drain(self, batch: Sequence[_Job]) -> list[_Done]:
        return [_Done(job.number, self._do(job)) for job in batch]

    def idle(self) -> None:
        """Nothing to do."""

    def _do(self, job: _Job) -> object:
        try:
            return job.do()
        except OSError as error:
            return error
