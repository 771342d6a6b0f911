"""The only access to the disk: `FileSystem` and `File`, and their implementation over POSIX calls.

Everything in `raftlog.storage` reaches files through these two protocols, so that the simulators can put a disk in
memory (`jepsen_like.fakes.memory_fs`: lost and torn writes, failing calls) underneath unchanged code. Contract, checked
for both by tests/raftlog/storage/test_fs_contract.py:

* a call succeeds completely or raises OSError; writes are never short;
* bytes are durable once `File.fdatasync` returned, names once `FileSystem.fsync_dir` of their directory returned;
* a read past the end of the file is short, never an error;
* a `File` is closed when its last reference is gone: a cache may drop one that another thread is still reading from.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from raftlog.errors import DiskFullError, OutOfSpaceError, StorageError, out_of_space
from raftlog.work import CALL_UNITS, ITEM_UNITS, METER

T = TypeVar("T")

IOV_MAX = 1024
"""The most buffers of one pwritev (Linux UIO_MAXIOV)."""
ZERO_CHUNK = bytes(1024 * 1024)
"""The zeroes that are written at once when a file is zero-filled: few enough not to delay an append on the same disk.
"""

Buffers = Sequence[bytes]


class File(Protocol):
    """An open file. Offsets and sizes are in bytes. Safe to read from several threads while one writes."""

    path: Path

    def pread(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes at `offset`; fewer only at the end of the file."""

    def pread_into(self, room: memoryview, offset: int) -> int:
        """Fills `room` with the bytes from `offset` on. Returns their number, which is less than the size of `room`
        only at the end of the file."""

    def pwritev(self, buffers: Buffers, offset: int) -> None:
        """Writes all buffers back to back at `offset`, extending the file if need be."""

    def fdatasync(self) -> None:
        """Syncs the file: returns when all writes are on disk. A failure is final: the result of another call must not
        be trusted."""

    def drop_cached(self, size: int | None) -> None:
        """Drops the first `size` bytes of the file (None: all) from the page cache, except those that are not on disk
        yet. The next read fetches them from the disk."""

    def truncate(self, size: int) -> None:
        """Sets the length of the file; new bytes are zero."""

    def size(self) -> int:
        """Returns the length of the file in bytes."""

    def close(self) -> None:
        """Closes the file; idempotent."""


class FileSystem(Protocol):
    """The operations on files and directories, by path."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Opens a file for reading and writing; with `create`, makes an empty file if there is none."""

    def lock(self, path: Path, owner: str) -> File:
        """Opens a lock file, which is made if need be, and locks it for as long as the File is open; then stores
        `owner` in it.

        Raises BlockingIOError if another holder has the lock.
        """

    def exists(self, path: Path) -> bool:
        """Returns True if a file or directory has this name."""

    def listdir(self, path: Path) -> list[str]:
        """Returns the names in the directory, sorted."""

    def mkdir(self, path: Path) -> None:
        """Makes the directory and its parents durably; no error if it exists."""

    def rename(self, source: Path, target: Path) -> None:
        """Gives the file or directory `source` the name `target` atomically, replacing a file of that name."""

    def link(self, source: Path, target: Path) -> None:
        """Gives the file a second name (hard link); both stay when one is removed. Raises FileExistsError if the name
        is taken."""

    def remove_tree(self, path: Path) -> None:
        """Removes the directory with all that is in it; a crash may leave a part of it."""

    def unlink(self, path: Path) -> None:
        """Removes the name of a file."""

    def fsync_dir(self, path: Path) -> None:
        """Syncs the directory: returns when its names are on disk."""

    def free_bytes(self, path: Path) -> int:
        """Returns the bytes left for data on the file system that contains `path`."""

    def total_bytes(self, path: Path) -> int:
        """Returns the bytes that the file system that contains `path` would offer if it were empty, without the space
        that only root may use."""


class OsFile:
    """A File over a descriptor of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        METER.units += CALL_UNITS + (size >> 10)
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # a signal or a very long read may cut a pread short before the end of the file
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_into(self, room: memoryview, offset: int) -> int:
        METER.units += CALL_UNITS + (len(room) >> 10)
        got = 0
        while got < len(room) and (count := os.preadv(self._fd, [room[got:]], offset + got)):
            got += count
        return got

    def pwritev(self, buffers: Buffers, offset: int) -> None:
        for at in range(0, len(buffers), IOV_MAX):
            part = buffers if len(buffers) <= IOV_MAX else buffers[at : at + IOV_MAX]
            size = sum(map(len, part))
            METER.units += CALL_UNITS + (size >> 10)
            written = os.pwritev(self._fd, part, offset)
            if written != size:
                self._write_rest(b"".join(part), written, offset)
            offset += size

    def _write_rest(self, data: bytes, written: int, offset: int) -> None:
        # The system wrote less than asked, because of a signal or a nearly full disk. Such writes are rare, so the
        # caller's copy of the data is affordable. If the disk is full, the next call raises the error.
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(self._fd, view[written:], offset + written)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def drop_cached(self, size: int | None) -> None:
        if size != 0:  # for the system call, 0 bytes would mean the whole file
            os.posix_fadvise(self._fd, 0, size or 0, os.POSIX_FADV_DONTNEED)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OsFileSystem:
    """The file system of the operating system."""

    __slots__ = ()

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return OsFile(path, os.open(path, flags, 0o644))
        except OSError as error:
            if create or error.errno != errno.EROFS:
                raise
        # The file system is read-only, such as a volume with secrets in a container.
        return OsFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def lock(self, path: Path, owner: str) -> OsFile:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644)
        file = OsFile(path, fd)
        # raises BlockingIOError if another holder has the lock; `file` then closes itself
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.pwritev([owner.encode()], 0)
        return file

    def exists(self, path: Path) -> bool:
        return path.exists()

    def listdir(self, path: Path) -> list[str]:
        names = sorted(entry.name for entry in path.iterdir())
        METER.units += CALL_UNITS + ITEM_UNITS * len(names)
        return names

    def mkdir(self, path: Path) -> None:
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self.fsync_dir(directory.parent)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        target.hardlink_to(source)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return (stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize


def zero_fill(file: File, start: int, stop: int) -> None:
    """Writes zeroes to [start, stop) without a sync. Zeroes are written and not fallocated, because later fdatasyncs
    then cost half."""
    view = memoryview(ZERO_CHUNK)
    for at in range(start, stop, len(ZERO_CHUNK)):
        size = min(len(ZERO_CHUNK), stop - at)
        file.pwritev([ZERO_CHUNK if size == len(ZERO_CHUNK) else bytes(view[:size])], at)


def write_file(fs: FileSystem, path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces the file's content atomically, by a temporary file and a rename. If `durable`, syncs content and
    name."""
    temporary = path.with_name(path.name + ".tmp")
    file = fs.open(temporary, create=True)
    file.truncate(0)
    file.pwritev([data], 0)
    if durable:
        file.fdatasync()
    file.close()
    fs.rename(temporary, path)
    if durable:
        fs.fsync_dir(path.parent)


def read_file(fs: FileSystem, path: Path) -> bytes:
    """Returns the content of the file."""
    file = fs.open(path)
    data = file.pread(file.size(), 0)
    file.close()
    return data


def unreadable(error: OSError) -> bool:
    """Returns True if the call failed because bytes are lost (a bad sector, a missing file), not for lack of
    resources."""
    return error.errno in (errno.ENOENT, errno.EIO, errno.EBADMSG, errno.EUCLEAN)


def if_readable(read: Callable[[], T], *damage: type[Exception]) -> T | None:
    """Returns the result of `read`; None if the bytes are lost (`unreadable`) or `read` raises one of `damage`. Raises
    any other OSError of `read`."""
    try:
        return read()
    except damage:
        return None
    except OSError as error:
        if not unreadable(error):
            raise
        return None


def _remedy(path: Path, error: OSError) -> str:
    """Returns the remedy for a failed call, in words. If the file system's rights refused the call, nothing is wrong
    with the disk."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"run it as the user who owns {path} and its directory, or give both to the node's user"
    if error.errno == errno.EROFS:
        return "mount the file system for writing, and check the disk: some are made read-only when they fail"
    return "check the disk"


def storage_error(fs: FileSystem, doing: str, path: Path, error: OSError, *, again: bool = False) -> StorageError:
    """Returns the StorageError for a failed call, with the call and its path; DiskFullError for ENOSPC and EDQUOT.

    With `again`, the call may be repeated once there is space: OutOfSpaceError instead of DiskFullError.
    """
    if not out_of_space(error):
        why = error.strerror or str(error)
        return StorageError(f"{doing} {path} failed: {why}. The node stops taking part; {_remedy(path, error)}.")
    try:
        free = f"{fs.free_bytes(path.parent)} bytes free"
    except OSError:
        free = "free space unknown"
    failed = f"{doing} {path} failed: no space left ({free}). Everything acknowledged is intact"
    if again:
        return OutOfSpaceError(f"{failed}; free space, and the node continues by itself.")
    return DiskFullError(f"{failed}; free space and start again.")
