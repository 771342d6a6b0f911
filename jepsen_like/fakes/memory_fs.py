"""A FileSystem in memory that fails on demand: the disk of the simulator and of the crash tests.

Effects of a power cut (`crash`), drawn from a seed:

* bytes not covered by a returned fdatasync: each 512-byte sector of each write is kept or lost by itself, so writes are
  lost, torn and reordered; the file's length follows from the kept sectors;
* names not covered by a returned fsync_dir: a prefix of them, in order, is kept;
* files that were open before the cut cannot be used, and locks are released.

Effects of a failing call (`fail_call`): the OSError, after half of a write has happened. After a failed fdatasync the
bytes are readable but will never become durable by a later fdatasync, as on Linux. `cut_power_at` raises PowerCut in
the given call and in every later one until `crash`. A new directory is durable at once, and so is an earlier rename or
removal of a directory of the same name. Not thread-safe except for reads.

Rot, during a run or between runs: `rot` silently flips bits of bytes that were durable; `spoil` makes sectors
unreadable, so that a read of any of their bytes is EIO, until they are overwritten as a whole.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from raftlog.storage.files.fs import Buffers
from raftlog.work import CALL_UNITS, ITEM_UNITS, METER

SECTOR = 512


class PowerCut(Exception):
    """Raised by a call during which, or after which, the machine has no power. It is not an OSError, so that no code
    handles it as a failed call.
    """


class _UnsyncedWrite(NamedTuple):
    offset: int
    data: bytes


class _Truncate(NamedTuple):
    size: int


class _Inode:
    """A file's bytes as read now (`data`), as on disk (`durable`), and the changes between them in order."""

    __slots__ = ("bad", "data", "durable", "pending")

    def __init__(self) -> None:
        self.bad: set[int] = set()
        """Numbers of sectors that cannot be read."""
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[_UnsyncedWrite | _Truncate] = []

    def change(self, change: _UnsyncedWrite | _Truncate) -> None:
        _apply(self.data, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def crash(self, rng: Random) -> None:
        keep = rng.choice((0.0, 0.5, 0.9, 1.0))
        for change in self.pending:
            for piece in _sectors(change):
                if rng.random() < keep:
                    _apply(self.durable, piece)
        self.pending.clear()
        self.data = bytearray(self.durable)


class _Rename(NamedTuple):
    source: Path
    target: Path


class _HardLink(NamedTuple):
    path: Path
    inode: _Inode


class _Unlink(NamedTuple):
    path: Path


class _RenameTree(NamedTuple):
    source: Path
    target: Path


class _RemoveDirectory(NamedTuple):
    path: Path


_NameChange = _Rename | _HardLink | _Unlink | _RenameTree | _RemoveDirectory


class _Names:
    """All files and directories by name. A directory is durable as soon as it is made."""

    __slots__ = ("directories", "files")

    def __init__(self) -> None:
        self.files: dict[Path, _Inode] = {}
        self.directories = {Path("/")}

    def copy(self) -> _Names:
        names = _Names()
        names.files, names.directories = dict(self.files), set(self.directories)
        return names

    def change(self, change: _NameChange) -> None:
        files = self.files
        match change:
            case _HardLink(path, inode):
                files[path] = inode
            case _Unlink(path):
                files.pop(path, None)
            case _RemoveDirectory(path):
                self.directories.discard(path)
            case _RenameTree(source, target):
                for path in [path for path in files if source in path.parents]:
                    files[target / path.relative_to(source)] = files.pop(path)
                for path in [path for path in self.directories if path == source or source in path.parents]:
                    self.directories.remove(path)
                    self.directories.add(target / path.relative_to(source))
            case _Rename(source, target):
                if source in files:
                    files[target] = files.pop(source)


class MemoryFile:
    """An open file of a MemoryFileSystem; implements File (`raftlog.storage.files.fs`)."""

    __slots__ = ("_epoch", "_fs", "_inode", "_locked", "path")

    def __init__(self, fs: MemoryFileSystem, path: Path, inode: _Inode, *, locked: bool = False) -> None:
        self.path = path
        self._fs = fs
        self._inode = inode
        self._epoch = fs.epoch
        self._locked = locked

    def pread(self, size: int, offset: int) -> bytes:
        self._check()
        METER.units += CALL_UNITS + (size >> 10)
        if self._inode.bad and not self._inode.bad.isdisjoint(_sector_numbers(offset, offset + size)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        return bytes(memoryview(self._inode.data)[offset : offset + size])

    def pread_into(self, room: memoryview, offset: int) -> int:
        data = self.pread(len(room), offset)
        room[: len(data)] = data
        return len(data)

    def pwritev(self, buffers: Buffers, offset: int) -> None:
        self._check()
        data = b"".join(buffers)
        METER.units += CALL_UNITS + (len(data) >> 10)
        error = self._fs.step("pwritev", self.path, lambda: self._write(data[: len(data) // 2], offset))
        if error is None and self._fs.space_left < self._growth(len(data), offset):
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            data = data[: len(data) // 2]
        if error is not None:
            self._write(data[: len(data) // 2], offset)
            raise error
        self._write(data, offset)

    def _write(self, data: bytes, offset: int) -> None:
        self._fs.space_left -= self._growth(len(data), offset)
        if self._inode.bad:  # a write of the whole sector makes it readable: the disk remaps it
            whole = range(-(-offset // SECTOR), (offset + len(data)) // SECTOR)
            self._inode.bad.difference_update(whole)
        self._inode.change(_UnsyncedWrite(offset, data))

    def _growth(self, size: int, offset: int) -> int:
        return max(0, offset + size - len(self._inode.data))

    def fdatasync(self) -> None:
        self._check()
        if self._fs.syncs_lie:
            return
        error = self._fs.step("fdatasync", self.path)
        if error is not None:
            self._inode.pending.clear()
            raise error
        self._inode.sync()

    def drop_cached(self, size: int | None) -> None:
        self._check()

    def truncate(self, size: int) -> None:
        self._check()
        error = self._fs.step("truncate", self.path)
        if error is not None:
            raise error
        self._fs.space_left += len(self._inode.data) - size
        self._inode.change(_Truncate(size))

    def size(self) -> int:
        self._check()
        return len(self._inode.data)

    def close(self) -> None:
        if self._locked and self._epoch == self._fs.epoch:
            self._fs.locks.discard(self.path)
        self._epoch = -1

    def _check(self) -> None:
        if self._fs.off:
            raise PowerCut(str(self.path))
        if self._epoch != self._fs.epoch:
            raise OSError(errno.EBADF, "file was closed, or opened before the crash", str(self.path))


class MemoryFileSystem:
    """The file system that the module's docstring describes. `calls` counts the calls that change something; `trace`
    names the last ones."""

    def __init__(self, space_left: int = 1 << 40, file_kind: type[MemoryFile] | None = None) -> None:
        """`file_kind`: the class of open files. A subclass of MemoryFile can observe their calls, or change what they
        do.
        """
        self._file_kind = file_kind or MemoryFile
        self.space_left = space_left
        """Bytes that can be written before ENOSPC; only truncation frees bytes."""
        self.calls = 0
        self.trace: list[str] = []
        self.off = False
        self.epoch = 0
        self.locks: set[Path] = set()
        self._names = _Names()
        self._durable_names = _Names()
        self._pending_names: list[_NameChange] = []
        self._failures: dict[int, int] = {}
        self._power_cut_at = -1
        self.syncs_lie = False
        """True if fdatasync returns at once and makes nothing durable, like a disk that acknowledges too early."""

    # Faults

    def fail_call(self, number: int, code: int = errno.EIO) -> None:
        """Makes the call that raises `calls` to `number` fail with OSError(code)."""
        self._failures[number] = code

    def cut_power_at(self, number: int) -> None:
        """Cuts the power in the middle of the call that raises `calls` to `number`. Every later call raises PowerCut
        until `crash`.
        """
        self._power_cut_at = number

    def crash(self, seed: int) -> None:
        """Restores the state on disk after a power cut. Files that were open before it raise OSError, locks are
        released.
        """
        rng = Random(seed)
        kept = rng.randint(0, len(self._pending_names))
        for change in self._pending_names[:kept]:
            self._durable_names.change(change)
        self._pending_names.clear()
        self._names = self._durable_names.copy()
        for inode in self._inodes():
            inode.crash(rng)
        self.restart()

    def restart(self) -> None:
        """Simulates the restart of a killed process: everything written is still there, but files that were open raise
        OSError, and locks are released. Cancels the planned faults.
        """
        self.off = False
        self._power_cut_at = -1
        self._failures.clear()
        self.locks.clear()
        self.epoch += 1

    def damage(self, path: Path, offset: int, data: bytes) -> None:
        """Overwrites bytes on the disk without a call of the file system, as rot does."""
        inode = self._inode(path)
        _apply(inode.data, _UnsyncedWrite(offset, data))
        _apply(inode.durable, _UnsyncedWrite(offset, data))

    def durable(self, path: Path, size: int, offset: int) -> bytes:
        """Returns bytes of the file as they are on the disk, without writes that were not synced."""
        return bytes(self._inode(path).durable[offset : offset + size])

    def rot(self, path: Path, seed: int, flips: int = 1) -> list[tuple[int, int]]:
        """Flips a bit in each of `flips` bytes that are on disk, drawn from the seed; returns (offset, mask) of each.

        Syncs and crashes keep the flipped bytes. A later write over them replaces them.
        """
        rng, inode = Random(seed), self._inode(path)
        length = min(len(inode.durable), len(inode.data))
        flipped = [(rng.randrange(length), 1 << rng.randrange(8)) for _ in range(flips)] if length else []
        for offset, mask in flipped:
            self.damage(path, offset, bytes([inode.durable[offset] ^ mask]))
        return flipped

    def spoil(self, path: Path, offset: int, size: int) -> None:
        """Makes the sectors of [offset, offset + size) unreadable."""
        self._inode(path).bad.update(_sector_numbers(offset, offset + size))

    def _inodes(self) -> Iterator[_Inode]:
        seen: set[int] = set()
        for _, inode in sorted(self._names.files.items()):
            if id(inode) not in seen:
                seen.add(id(inode))
                yield inode

    def step(self, call: str, path: Path, half: object = None) -> OSError | None:
        """Counts a call; returns the error that it must fail with, or None. If the power is cut in this call, calls the
        function `half` first, then raises PowerCut.
        """
        if self.off:
            raise PowerCut(f"{call} {path}")
        self.calls += 1
        self.trace = [*self.trace[-15:], f"{call} {path.name}"]
        if self.calls == self._power_cut_at:
            if callable(half):
                half()
            self.off = True
            raise PowerCut(f"{call} {path}, call {self.calls}")
        code = self._failures.pop(self.calls, None)
        return None if code is None else OSError(code, os.strerror(code), str(path))

    def _fallible(self, call: str, path: Path) -> None:
        error = self.step(call, path)
        if error is not None:
            raise error

    # FileSystem

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        if self.off:
            raise PowerCut(f"open {path}")
        if create and path not in self._names.files:
            self._fallible("create", path)
            if path.parent not in self._names.directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
            self._change(_HardLink(path, _Inode()))
        return self._file_kind(self, path, self._inode(path))

    def lock(self, path: Path, owner: str) -> MemoryFile:
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", str(path))
        inode = self.open(path, create=True)._inode
        file = self._file_kind(self, path, inode, locked=True)
        file.truncate(0)
        file.pwritev([owner.encode()], 0)
        self.locks.add(path)
        return file

    def exists(self, path: Path) -> bool:
        return path in self._names.files or path in self._names.directories

    def listdir(self, path: Path) -> list[str]:
        self._directory(path)
        names = (*self._names.files, *self._names.directories)
        found = sorted(name.name for name in names if name.parent == path and name != path)
        METER.units += CALL_UNITS + ITEM_UNITS * len(found)
        return found

    def mkdir(self, path: Path) -> None:
        if path not in self._names.directories:
            self._fallible("mkdir", path)
            self._sync_names(lambda change: _takes_away(change, path))
            for names in (self._names, self._durable_names):
                names.directories.update((path, *path.parents))

    def rename(self, source: Path, target: Path) -> None:
        tree = source in self._names.directories
        if tree and target in self._names.directories and self.listdir(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(target))
        if not tree:
            self._inode(source)
        self._fallible("rename", target)
        self._change(_RenameTree(source, target) if tree else _Rename(source, target))

    def link(self, source: Path, target: Path) -> None:
        inode = self._inode(source)
        if self.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        self._fallible("link", target)
        self._directory(target.parent)
        self._change(_HardLink(target, inode))

    def remove_tree(self, path: Path) -> None:
        for name in self.listdir(path):
            if path / name in self._names.directories:
                self.remove_tree(path / name)
            else:
                self.unlink(path / name)
        self._fallible("rmdir", path)
        self._change(_RemoveDirectory(path))

    def unlink(self, path: Path) -> None:
        self._inode(path)
        self._fallible("unlink", path)
        self._change(_Unlink(path))

    def fsync_dir(self, path: Path) -> None:
        self._fallible("fsync_dir", path)
        self._sync_names(lambda change: path in _parents(change))

    def _sync_names(self, is_meant: Callable[[_NameChange], bool]) -> None:
        last = max((n for n, change in enumerate(self._pending_names, 1) if is_meant(change)), default=0)
        for change in self._pending_names[:last]:  # one journal: all earlier changes become durable, too
            self._durable_names.change(change)
        del self._pending_names[:last]

    def free_bytes(self, path: Path) -> int:
        return self.space_left

    def total_bytes(self, path: Path) -> int:
        return 1 << 40

    def _inode(self, path: Path) -> _Inode:
        inode = self._names.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _directory(self, path: Path) -> None:
        if path not in self._names.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))

    def _change(self, change: _NameChange) -> None:
        self._names.change(change)
        self._pending_names.append(change)


def _apply(data: bytearray, change: _UnsyncedWrite | _Truncate) -> None:
    if isinstance(change, _Truncate):
        if change.size <= len(data):
            del data[change.size :]
        else:
            data.extend(bytes(change.size - len(data)))
        return
    if change.offset > len(data):
        data.extend(bytes(change.offset - len(data)))
    data[change.offset : change.offset + len(change.data)] = change.data


def _sector_numbers(start: int, stop: int) -> range:
    return range(start // SECTOR, -(-stop // SECTOR))


def _sectors(change: _UnsyncedWrite | _Truncate) -> Iterator[_UnsyncedWrite | _Truncate]:
    if isinstance(change, _Truncate):
        yield change
        return
    at, end = change.offset, change.offset + len(change.data)
    while at < end:
        stop = min(end, (at // SECTOR + 1) * SECTOR)
        yield _UnsyncedWrite(at, change.data[at - change.offset : stop - change.offset])
        at = stop


def _takes_away(change: _NameChange, directory: Path) -> bool:
    return (isinstance(change, _RemoveDirectory) and change.path == directory) or (
        isinstance(change, _RenameTree) and change.source == directory
    )


def _parents(change: _NameChange) -> tuple[Path, ...]:
    if isinstance(change, _Rename | _RenameTree):
        return change.source.parent, change.target.parent
    return (change.path.parent,)
