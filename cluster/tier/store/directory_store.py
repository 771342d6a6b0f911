"""A directory as an object store: a local disk, or a network mount that all nodes share."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from cluster.runtime.lanes import CallThreads
from cluster.tier.store.errors import (
    AlreadyExists,
    BadAnswer,
    Conflict,
    Denied,
    Full,
    NotFound,
    StoreError,
    Throttled,
    Unreachable,
    Unsupported,
)
from cluster.tier.store.object_store import Data, ObjectInfo, StoredObject, check_data, check_name, check_range
from cluster.tier.store.synced_file import checksum_from_disk, write_synced

THREADS = 4
PAGE = 1000
"""Names that one step of a listing reads."""


class DirectoryStore:
    """An object store in a directory (`ObjectStore`). Every call runs on a thread of the store's own, so a dead mount
    stops neither the event loop nor the end of the process."""

    def __init__(self, root: Path, page: int = PAGE) -> None:
        """The first write makes `root` if it is absent. `page`: the number of names that a listing reads at a time."""
        self._page = page
        self._files = DirectoryFiles(root)
        self._threads = CallThreads("tier-store", THREADS)

    @property
    def root(self) -> str:
        return self._files.root.absolute().as_uri()

    async def create(self, name: str, data: Data) -> None:
        await self._threads.call(self._files.create, check_name(name), check_data(data))

    async def replace(self, name: str, data: Data, tag: str) -> None:
        await self._threads.call(self._files.replace, check_name(name), check_data(data), tag)

    async def get(self, name: str, size_max: int) -> StoredObject:
        return await self._threads.call(self._files.get, check_name(name), size_max)

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        check_range(start, stop)
        return await self._threads.call(self._files.get_range, check_name(name), start, stop)

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for start, stop in ranges:
            check_range(start, stop)
        return await self._threads.call(self._files.get_ranges, check_name(name), list(ranges))

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        check_range(start, stop)
        return await self._threads.call(self._files.checksum, check_name(name), start, stop, crc)

    async def head(self, name: str) -> ObjectInfo:
        return await self._threads.call(self._files.head, check_name(name))

    async def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        if folder:
            check_name(folder)
        after = ""
        while page := await self._threads.call(self._files.list, folder, after, self._page):
            for info in page:
                yield info
            after = page[-1].name

    async def delete(self, name: str) -> None:
        await self._threads.call(self._files.delete, check_name(name))

    async def sweep(self, older_than_ms: int) -> int:
        return await self._threads.call(self._files.sweep, older_than_ms)

    async def close(self) -> None:
        """Ends the threads (`ObjectStore.close`) without waiting for them."""
        self._threads.close()


# Objects as files of a directory: the blocking half of the directory store.
#
# A write goes to a temporary file on the same file system, which is synced and then gets its name in one step. Then
# every directory whose entries changed is synced. A crash at any point leaves the old object or the new one, never a
# part, and at most a temporary file, which `sweep` removes.
#
#     ROOT/.raftmq/tmp/       temporary files
#     ROOT/.raftmq/lock       flock: one replacement or removal at a time, among all processes
#     ROOT/<name>             an object

OWN = ".raftmq"
LOCK_TRIES, LOCK_PAUSE_S = 500, 0.02
"""Tries for the lock, and seconds between them. Another process holds it for one rename; a process that was stopped
holds it until it continues."""
READ_BYTES = 4 << 20
"""Bytes of one read. Joining smaller pieces would take longer than reading them."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_SHAPE = (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)


class Disk:
    """The system calls by which a directory store gives files their names, and makes names durable. They raise
    OSError."""

    def link(self, source: Path, target: Path) -> None:
        """Gives a file another name. Raises FileExistsError if that is taken."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Gives a file another name, whatever had it before."""
        source.rename(target)

    def mkdir(self, path: Path) -> None:
        """Makes a folder. Raises FileExistsError."""
        path.mkdir(mode=0o750)

    def sync(self, path: Path) -> None:
        """Makes a file or the names in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


DISK = Disk()


class DirectoryFiles:
    """The files of a store. Several threads and processes may use them at once. All calls block and raise
    StoreError."""

    def __init__(self, root: Path, lock_tries: int = LOCK_TRIES, disk: Disk = DISK) -> None:
        self.root, self._disk = root, disk
        self._lock_tries = lock_tries
        self._tmp = root / OWN / "tmp"
        self._lock = root / OWN / "lock"
        self._synced: set[Path] = set()
        """Folders whose names, up to the root, are known to be durable."""

    def create(self, name: str, data: Data) -> None:
        """Writes a new object (`ObjectStore.create`). link(2) fails if the name is taken; the check before it only
        saves writing the data."""
        path = self.root / name
        with self._told(name):
            if path.exists():
                raise self._exists(path, name)
            self._make_folders(path.parent)
            with self._written(data) as temporary:
                try:
                    self._name_it(temporary, path)
                except FileExistsError:
                    raise self._exists(path, name) from None
            self._disk.sync(path.parent)

    def _exists(self, path: Path, name: str) -> AlreadyExists:
        """Makes an existing object durable and returns AlreadyExists. Its writer may have died between naming and
        syncing it."""
        self._disk.sync(path)
        self._disk.sync(path.parent)
        return AlreadyExists(f"{name} exists in {self.root}")

    def _name_it(self, temporary: Path, path: Path) -> None:
        """Gives the temporary file its name. Raises FileExistsError."""
        try:
            self._disk.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with self._locked():  # the file system has no hard links
                if path.exists():
                    raise FileExistsError(errno.EEXIST, "exists", str(path)) from None
                self._disk.rename(temporary, path)

    def replace(self, name: str, data: Data, tag: str) -> None:
        """Replaces a version of an object (`ObjectStore.replace`). The lock makes comparison and rename one step for
        all writers."""
        path = self.root / name
        with self._told(name), self._written(data) as temporary, self._locked():
            if _tag(path.read_bytes()) != tag:
                raise Conflict(f"{name} was replaced meanwhile")
            self._disk.rename(temporary, path)
            self._disk.sync(path.parent)

    def get(self, name: str, size_max: int) -> StoredObject:
        with self._told(name), (self.root / name).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > size_max:
                raise BadAnswer(f"{name} has {size} bytes, at most {size_max} were expected")
            data = _read(file.fileno(), name, 0, size)
        return StoredObject(data, _tag(data))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        with self._told(name), (self.root / name).open("rb", buffering=0) as file:
            return _read(file.fileno(), name, start, stop)

    def get_ranges(self, name: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Returns several ranges of one object (`ObjectStore.get_ranges`). The file is opened once."""
        with self._told(name), (self.root / name).open("rb", buffering=0) as file:
            return [_read(file.fileno(), name, *each) for each in ranges]

    def checksum(self, name: str, start: int, stop: int, crc: int) -> int:
        with self._told(name):
            found, count = checksum_from_disk(self.root / name, start, stop, crc)
        if count < stop - start:
            raise _ends_at(name, start + count, start, stop)
        return found

    def head(self, name: str) -> ObjectInfo:
        with self._told(name):
            found = _info(self.root / name, name)
        if found is None:
            raise NotFound(f"there is no {name} in {self.root}")
        return found

    def list(self, folder: str, after: str, count: int) -> list[ObjectInfo]:
        """Returns the next `count` objects below the folder whose names are above `after`, by name."""
        found: list[ObjectInfo] = []
        with self._told(folder):
            for name in self._names(folder, after):
                info = _info(self.root / name, name)
                if info is not None:
                    found.append(info)
                if len(found) == count:
                    break
        return found

    def _names(self, folder: str, after: str) -> Iterator[str]:
        """Yields the names in their order as strings, in which a folder sorts as its name with the slash behind it."""
        try:
            with os.scandir(self.root / folder) as entries:
                here = sorted(
                    entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                    for entry in entries
                    if not entry.name.startswith(".")
                )
        except FileNotFoundError:
            return
        start = f"{folder}/" if folder else ""
        for each in here:
            name = start + each
            if not name.endswith("/"):
                if name > after:
                    yield name
            elif name > after or after.startswith(name):
                yield from self._names(name[:-1], after)

    def delete(self, name: str) -> None:
        """Removes an object (`ObjectStore.delete`), under the lock: a replacement in progress would otherwise bring it
        back."""
        path = self.root / name
        with self._told(name):
            if not path.exists():
                return
            with self._locked(), suppress(FileNotFoundError):
                path.unlink()
                self._disk.sync(path.parent)

    def sweep(self, older_than_ms: int) -> int:
        gone = 0
        before_s = time.time() - older_than_ms / 1000
        with self._told(OWN), suppress(FileNotFoundError), os.scandir(self._tmp) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime <= before_s:
                        Path(entry.path).unlink()
                        gone += 1
        return gone

    @contextmanager
    def _written(self, data: Data) -> Iterator[Path]:
        """Yields a synced temporary file, which is removed afterwards."""
        self._make_folders(self._tmp)
        path = self._tmp / uuid4().hex
        try:
            write_synced(path, data)
            yield path
        except FileNotFoundError as error:
            if path.exists():
                raise
            raise Unreachable(f"a temporary file vanished from {self._tmp} while it was written") from error
        finally:
            with suppress(OSError):
                path.unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock. Raises Throttled if another process does not release it; the kernel releases that of a dead
        one."""
        self._make_folders(self._lock.parent)
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            for _ in range(self._lock_tries):
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(LOCK_PAUSE_S)
            else:
                raise Throttled(
                    f"another process holds {self._lock} for {self._lock_tries * LOCK_PAUSE_S:.0f} s",
                    f"look for a stopped process: fuser {self._lock}",
                )
            yield
        finally:
            os.close(fd)

    def _make_folders(self, folder: Path) -> None:
        """Makes the folder and all absent ones above it. Each name on the way is synced in its directory once per
        process, because another process may have made a folder without having synced it yet."""
        if folder in self._synced and folder.is_dir():
            return
        way = [folder]
        while way[-1] != self.root or not way[-1].parent.is_dir():
            if way[-1].parent == way[-1]:
                break
            way.append(way[-1].parent)
        for each in reversed(way):
            with suppress(FileExistsError):
                self._disk.mkdir(each)
            self._disk.sync(each.parent)
        self._synced.add(folder)

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Turns errors of the system into those of a store."""
        try:
            yield
        except OSError as error:
            raise _store_error(error, name, self.root) from error


def _store_error(error: OSError, name: str, root: Path) -> StoreError:
    why = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        return NotFound(f"there is no {name} in {root}")
    if error.errno in _FULL:
        return Full(f"no room for {name} in {root}: {why}", f"free space: df {root}")
    if error.errno in _DENIED:
        return Denied(f"{name} in {root}: {why}", f"make it writable for the node's user: ls -ld {root}")
    if error.errno in _SHAPE:
        return Unsupported(f"{name} in {root}: {why}", f"remove the file that is in the way: ls -l {root}")
    return Unreachable(f"{name} in {root}: {why}", f"look at the disk or mount: df {root}; dmesg | tail")


def _info(path: Path, name: str) -> ObjectInfo | None:
    try:
        stat = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return ObjectInfo(name, stat.st_size, stat.st_mtime_ns // 1_000_000)


def _read(fd: int, name: str, start: int, stop: int) -> bytes:
    """Reads exactly [start, stop). A short read is continued. If the file ends before `stop`, that is an error; nothing
    is padded."""
    pieces: list[bytes] = []
    at = start
    while at < stop:
        piece = os.pread(fd, min(READ_BYTES, stop - at), at)
        if not piece:
            raise _ends_at(name, at, start, stop)
        pieces.append(piece)
        at += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _ends_at(name: str, at: int, start: int, stop: int) -> BadAnswer:
    return BadAnswer(f"{name} ends at {at}, bytes {start} to {stop} were asked for")


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
