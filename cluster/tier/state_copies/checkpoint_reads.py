"""Reads the node's own checkpoints on a lane, so that the disk does not hold up the event loop."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, cast

from cluster.runtime.context import NodeContext
from cluster.state.checkpoints import Checkpoint
from cluster.state.manifest import CheckpointFile
from cluster.state.node_storage import NodeStorage
from cluster.tier.segment_reads import LaneCalls
from cluster.tier.stored_files import Chunk, FileSource, chunk_of
from raftlog.errors import RaftLogError
from raftlog.storage.files.fs import FileSystem
from raftlog.storage.log.genesis_copy import read_copy
from raftlog.types import LogTail
from raftmq_wire.checksums import crc32c
from statemachine.trim import load_mark

if TYPE_CHECKING:
    from statemachine.rows.kv import KV


class DamagedCheckpointError(OSError):
    """A file of a checkpoint does not have the CRC of its manifest: it must not leave this disk."""


class CheckpointReads:
    """Event loop only, but for its lane."""

    def __init__(self, context: NodeContext, storage: NodeStorage) -> None:
        self._context = context
        self._fs: FileSystem = context.environment.fs
        self._checkpointer = storage.checkpointer
        self._log = storage.directory.log
        self._data = storage.directory.path
        self._group_id = storage.directory.identity.group_id
        self._lane = LaneCalls(context, "tier-state", OSError)

    def start(self) -> None:
        """Before the first call."""
        self._lane.start()

    async def close(self) -> None:
        """Returns when the lane is done with what it was doing."""
        await self._lane.close()

    async def all(self) -> list[Checkpoint]:
        """Newest first. Raises OSError."""
        return await self._lane.ask(self._checkpointer.checkpoints.all)

    async def log_begins(self, checkpoint: Checkpoint) -> LogTail:
        """The tail before the first segment that its rows refer to. Raises OSError."""
        return await self._lane.ask(lambda: self._log_begins(checkpoint))

    def _log_begins(self, checkpoint: Checkpoint) -> LogTail:
        try:
            with self._context.environment.open_rows(checkpoint.path) as rows:
                position = load_mark(cast("KV", rows)).position  # `get` is all that is asked of it
            return self._log.segment_at(position).previous
        except RaftLogError as error:
            raise OSError(errno.EIO, str(error)) from error

    async def genesis(self) -> bytes:
        """The frame at index 0. Raises OSError."""
        return await self._lane.ask(self._genesis)

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
            crc = crc32c(data, crc if start else 0)
            if len(data) != size or (start + size == file.size and crc != file.crc32c):
                raise DamagedCheckpointError(f"{path} is not what its manifest says")
            return chunk_of(data)

        async def read(start: int, size: int) -> Chunk:
            self._checkpointer.hold(checkpoint.path.name)
            return await self._lane.ask(lambda: take(start, size))

        return FileSource(file.name, file.size, read)
