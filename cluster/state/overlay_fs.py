"""A file system that shows the real one below it and never changes it: what is written stays in memory.

With it the code that starts a node can rehearse a start on a directory that must not be changed. Used by one thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from raftlog.storage.files.fs import OsFileSystem


class OverlayFile:
    """A file whose changed pages lie over the pages of the real file, if there is one."""

    PAGE = 4096

    def __init__(self, path: Path, below: Path | None) -> None:
        self.path = path
        self._fd = os.open(below, os.O_RDONLY | os.O_CLOEXEC) if below else -1
        self._size = os.fstat(self._fd).st_size if below else 0
        self._below = self._size
        """Bytes of the real file that still show."""
        self._pages: dict[int, bytearray] = {}

    def pread(self, size: int, offset: int) -> bytes:
        """Returns the bytes at `offset` (`File.pread`), from changed pages and from the real file."""
        end = min(offset + size, self._size)
        first, last = offset // self.PAGE, (end - 1) // self.PAGE
        if end <= offset:
            return b""
        if not self._pages or all(page not in self._pages for page in range(first, last + 1)):
            data = os.pread(self._fd, max(0, min(end, self._below) - offset), offset) if self._fd >= 0 else b""
            return data.ljust(end - offset, b"\0")
        data = b"".join(self._page(page) for page in range(first, last + 1))
        return data[offset - first * self.PAGE : end - first * self.PAGE]

    def pread_into(self, room: memoryview, offset: int) -> int:
        """Reads into `room` (`File.pread_into`)."""
        data = self.pread(len(room), offset)
        room[: len(data)] = data
        return len(data)

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        """Writes to pages in memory (`File.pwritev`)."""
        data = b"".join(buffers)
        self._size = max(self._size, offset + len(data))
        at = 0
        while at < len(data):
            number, start = divmod(offset + at, self.PAGE)
            part = data[at : at + self.PAGE - start]
            page = self._pages.setdefault(number, bytearray(self._page(number)))
            page[start : start + len(part)] = part
            at += len(part)

    def _page(self, number: int) -> bytes:
        if number in self._pages:
            return bytes(self._pages[number])
        start = number * self.PAGE
        size = max(0, min(self.PAGE, self._below - start))
        return (os.pread(self._fd, size, start) if size else b"").ljust(self.PAGE, b"\0")

    def fdatasync(self) -> None:
        """Does nothing: no change is written (`File.fdatasync`)."""

    def drop_cached(self, size: int | None) -> None:
        """Does nothing: the cache is the real file's (`File.drop_cached`)."""

    def truncate(self, size: int) -> None:
        """Changes the size in memory alone (`File.truncate`)."""
        if size < self._size:
            self._below = min(self._below, size)
            number, start = divmod(size, self.PAGE)
            for page in [page for page in self._pages if page > number]:
                del self._pages[page]
            if number in self._pages:
                self._pages[number][start:] = bytes(self.PAGE - start)
        self._size = size

    def size(self) -> int:
        """Returns the size with all changes (`File.size`)."""
        return self._size

    def close(self) -> None:
        """Does nothing: the changed pages stay, because the file may be opened again (`File.close`)."""

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class _Lock(OverlayFile):
    """A shared lock on the real file. A node that runs holds it exclusively."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, path)
        fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        """Releases the lock (`File.close`)."""
        self.__del__()
        self._fd = -1


class OverlayFileSystem:
    """The file system of this module. `changes` lists, in order, the files and directories that would have been made,
    moved, linked or removed on disk; it does not list what would have been written into files."""

    def __init__(self) -> None:
        self._files: dict[Path, OverlayFile | None] = {}
        """Files that were opened, made or moved here; None if they were removed."""
        self._directories: dict[Path, bool] = {}
        """Directories that were made (True) or removed (False) here."""
        self._moved: dict[Path, Path] = {}
        """Directory -> the real directory that holds its contents."""
        self._real = OsFileSystem()
        self.changes: list[str] = []

    def open(self, path: Path, *, create: bool = False) -> OverlayFile:
        """Opens the file with all changes so far (`FileSystem.open`)."""
        if path in self._files:
            known = self._files[path]
            if known is not None:
                return known
        below = self._below(path)
        if path in self._files or below is None or not below.is_file():
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.changes.append(f"make {path}")
            below = None
        file = self._files[path] = OverlayFile(path, below)
        return file

    def lock(self, path: Path, owner: str) -> OverlayFile:
        """Takes a shared lock, so that several processes may read a directory on which no node runs
        (`FileSystem.lock`)."""
        return _Lock(path) if path.exists() else self.open(path, create=True)

    def exists(self, path: Path) -> bool:
        """Returns True if the path is there after the changes (`FileSystem.exists`)."""
        if path in self._files:
            return self._files[path] is not None
        if path in self._directories:
            return self._directories[path]
        below = self._below(path)
        return below is not None and below.exists()

    def listdir(self, path: Path) -> list[str]:
        """Returns the names in a directory after the changes (`FileSystem.listdir`)."""
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        below = self._below(path)
        names = {one.name for one in below.iterdir()} if below is not None and below.is_dir() else set()
        here: dict[Path, bool] = {one: file is not None for one, file in self._files.items()} | self._directories
        for one, there in here.items():
            if one.parent == path:
                names.add(one.name) if there else names.discard(one.name)
        return sorted(names)

    def mkdir(self, path: Path) -> None:
        """Makes the directory in memory alone (`FileSystem.mkdir`)."""
        if not self.exists(path):
            self.changes.append(f"make {path}")
            self._directories[path] = True

    def rename(self, source: Path, target: Path) -> None:
        """Moves a file or directory in memory alone (`FileSystem.rename`)."""
        self.changes.append(f"move {source} to {target}")
        below = self._below(source)
        if source in self._directories or (below is not None and below.is_dir()):
            self._move_tree(source, target, below)
            return
        self._files[target] = self.open(source)
        self._files[source] = None

    def _move_tree(self, source: Path, target: Path, below: Path | None) -> None:
        for path in [path for path in self._files if source in path.parents]:
            self._files[target / path.relative_to(source)] = self._files.pop(path)
        self._directories[source], self._directories[target] = False, True
        if below is not None:
            self._moved[target] = below

    def link(self, source: Path, target: Path) -> None:
        """Gives the file another name in memory alone (`FileSystem.link`)."""
        self.changes.append(f"link {target}")
        self._files[target] = self.open(source)

    def remove_tree(self, path: Path) -> None:
        """Removes the directory in memory alone (`FileSystem.remove_tree`)."""
        self.changes.append(f"remove {path}")
        for one in [one for one in self._files if path in one.parents]:
            self._files[one] = None
        self._directories[path] = False

    def unlink(self, path: Path) -> None:
        """Removes the file in memory alone (`FileSystem.unlink`)."""
        self.open(path)
        self.changes.append(f"remove {path}")
        self._files[path] = None

    def fsync_dir(self, path: Path) -> None:
        """Does nothing: no change is written (`FileSystem.fsync_dir`)."""

    def free_bytes(self, path: Path) -> int:
        """Returns the space on the real file system (`FileSystem.free_bytes`)."""
        return self._real.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        """Returns the size of the real file system (`FileSystem.total_bytes`)."""
        return self._real.total_bytes(path)

    def _below(self, path: Path) -> Path | None:
        """Returns the path of the real file for a name; None if the name was removed or was made here."""
        for parent in (path, *path.parents):
            if parent in self._moved:
                return self._moved[parent] / path.relative_to(parent)
            if parent in self._directories:
                return None
        return path
