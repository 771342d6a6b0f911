"""A file system whose writes and syncs pass through failpoints; all other calls go straight to the real one."""

from __future__ import annotations

from pathlib import Path

from cluster.runtime.failpoints.failpoints import FailpointSet
from raftlog.storage.files.fs import Buffers, File, FileSystem


class FailpointFile:
    """A File whose `pwritev` passes through the failpoint `write_point` (None for none), and whose `fdatasync` passes
    through `sync_point`."""

    __slots__ = ("_inner", "_points", "_sync_point", "_unsynced", "_write_point", "path")

    def __init__(self, inner: File, points: FailpointSet, sync_point: str, write_point: str | None) -> None:
        self.path = inner.path
        self._inner = inner
        self._points = points
        self._sync_point = sync_point
        self._unsynced = 0
        """Bytes written since the last sync began."""
        self._write_point = write_point

    def pread(self, size: int, offset: int) -> bytes:
        """Reads up to `size` bytes at `offset`, without a failpoint."""
        return self._inner.pread(size, offset)

    def pread_into(self, room: memoryview, offset: int) -> int:
        """Fills `room` from `offset` on, without a failpoint. Returns the number of bytes read."""
        return self._inner.pread_into(room, offset)

    def pwritev(self, buffers: Buffers, offset: int) -> None:
        """Writes all buffers at `offset` when the write point, if there is one, lets the call pass."""
        size = sum(map(len, buffers))
        if self._write_point is None:
            self._inner.pwritev(buffers, offset)
        else:
            self._points.run(self._write_point, lambda: self._inner.pwritev(buffers, offset), size)
        self._unsynced += size

    def fdatasync(self) -> None:
        """Returns when all writes are on disk; the sync point may hold or fail it."""
        size, self._unsynced = self._unsynced, 0
        self._points.run(self._sync_point, self._inner.fdatasync, size)

    def drop_cached(self, size: int | None) -> None:
        """Frees the memory that caches the first `size` bytes (None: all), where they are on disk."""
        self._inner.drop_cached(size)

    def truncate(self, size: int) -> None:
        """Sets the length of the file; new bytes are zero."""
        self._inner.truncate(size)

    def size(self) -> int:
        """Returns the length of the file in bytes."""
        return self._inner.size()

    def close(self) -> None:
        """Closes the file; idempotent."""
        self._inner.close()


class FailpointFileSystem:
    """A FileSystem that opens FailpointFiles. A node has one for the files of the log and another for the hard
    state."""

    __slots__ = ("_inner", "_points", "_sync_point", "_write_point")

    def __init__(
        self, inner: FileSystem, points: FailpointSet, *, sync_point: str, write_point: str | None = None
    ) -> None:
        """`sync_point` and `write_point` are names of failpoints, for example ("append.fdatasync", "append.write") or
        ("hardstate.fdatasync", None)."""
        self._inner = inner
        self._points = points
        self._sync_point = sync_point
        self._write_point = write_point

    def open(self, path: Path, *, create: bool = False) -> File:
        """Opens a FailpointFile; with `create`, makes an empty file if there is none."""
        return FailpointFile(self._inner.open(path, create=create), self._points, self._sync_point, self._write_point)

    def lock(self, path: Path, owner: str) -> File:
        """Opens and locks the file as the inner file system does; the File that it returns has no failpoints."""
        return self._inner.lock(path, owner)

    def exists(self, path: Path) -> bool:
        """Returns True if a file or directory has this name."""
        return self._inner.exists(path)

    def listdir(self, path: Path) -> list[str]:
        """Returns the names in the directory, sorted."""
        return self._inner.listdir(path)

    def mkdir(self, path: Path) -> None:
        """Makes the directory and its parents durably; no error if it exists."""
        self._inner.mkdir(path)

    def rename(self, source: Path, target: Path) -> None:
        """Atomically gives the file or directory `source` the name `target`, replacing a file of that name."""
        self._inner.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Gives the file a second name; each stays when the other is removed. Raises FileExistsError if the name
        exists."""
        self._inner.link(source, target)

    def remove_tree(self, path: Path) -> None:
        """Removes the directory with its contents; a crash may leave a part of it."""
        self._inner.remove_tree(path)

    def unlink(self, path: Path) -> None:
        """Removes the name of a file."""
        self._inner.unlink(path)

    def fsync_dir(self, path: Path) -> None:
        """Returns when the directory's names are on disk."""
        self._inner.fsync_dir(path)

    def free_bytes(self, path: Path) -> int:
        """Returns the space left for data on the file system of `path`."""
        return self._inner.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        """Returns the size of the file system of `path` without the part that is reserved for root."""
        return self._inner.total_bytes(path)
