"""A file system whose writes and syncs pass through failpoints; all else goes straight to the one below."""

from __future__ import annotations

from pathlib import Path

from cluster.runtime.failpoints import FailpointSet
from raftlog.storage.files.fs import Buffers, File, FileSystem


class FailpointFile:
    """A File whose `pwritev` and `fdatasync` are the points `write_point` (None: not a point) and `sync_point`."""

    __slots__ = ("_inner", "_points", "_sync_point", "_write_point", "path")

    def __init__(self, inner: File, points: FailpointSet, sync_point: str, write_point: str | None) -> None:
        self.path = inner.path
        self._inner = inner
        self._points = points
        self._sync_point = sync_point
        self._write_point = write_point

    def pread(self, size: int, offset: int) -> bytes:
        """See File."""
        return self._inner.pread(size, offset)

    def pread_into(self, room: memoryview, offset: int) -> int:
        """See File."""
        return self._inner.pread_into(room, offset)

    def pwritev(self, buffers: Buffers, offset: int) -> None:
        """See File."""
        if self._write_point is None:
            self._inner.pwritev(buffers, offset)
        else:
            self._points.run(self._write_point, lambda: self._inner.pwritev(buffers, offset))

    def fdatasync(self) -> None:
        """See File."""
        self._points.run(self._sync_point, self._inner.fdatasync)

    def drop_cached(self, size: int | None) -> None:
        """See File."""
        self._inner.drop_cached(size)

    def truncate(self, size: int) -> None:
        """See File."""
        self._inner.truncate(size)

    def size(self) -> int:
        """See File."""
        return self._inner.size()

    def close(self) -> None:
        """See File."""
        self._inner.close()


class FailpointFileSystem:
    """A FileSystem that opens FailpointFiles: one over the log's files, another over the hard state's."""

    __slots__ = ("_inner", "_points", "_sync_point", "_write_point")

    def __init__(
        self, inner: FileSystem, points: FailpointSet, *, sync_point: str, write_point: str | None = None
    ) -> None:
        """For example ("append.fdatasync", "append.write") or ("hardstate.fdatasync", None)."""
        self._inner = inner
        self._points = points
        self._sync_point = sync_point
        self._write_point = write_point

    def open(self, path: Path, *, create: bool = False) -> File:
        """See FileSystem."""
        return FailpointFile(self._inner.open(path, create=create), self._points, self._sync_point, self._write_point)

    def lock(self, path: Path, owner: str) -> File:
        """See FileSystem."""
        return self._inner.lock(path, owner)

    def exists(self, path: Path) -> bool:
        """See FileSystem."""
        return self._inner.exists(path)

    def listdir(self, path: Path) -> list[str]:
        """See FileSystem."""
        return self._inner.listdir(path)

    def mkdir(self, path: Path) -> None:
        """See FileSystem."""
        self._inner.mkdir(path)

    def rename(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        self._inner.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        self._inner.link(source, target)

    def remove_tree(self, path: Path) -> None:
        """See FileSystem."""
        self._inner.remove_tree(path)

    def unlink(self, path: Path) -> None:
        """See FileSystem."""
        self._inner.unlink(path)

    def fsync_dir(self, path: Path) -> None:
        """See FileSystem."""
        self._inner.fsync_dir(path)

    def free_bytes(self, path: Path) -> int:
        """See FileSystem."""
        return self._inner.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        """See FileSystem."""
        return self._inner.total_bytes(path)
