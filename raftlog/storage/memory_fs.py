"""A FileSystem in memory that fails on demand: the disk under the simulator and the crash tests.

What a power cut does (`crash`), drawn from a seed:

* bytes not covered by a returned fdatasync: each 512-byte sector of each write stays or goes by itself, so writes are
  lost, torn and reordered; the file's length is that of what stayed;
* names not covered by a returned fsync_dir: a prefix of them, in order, stays;
* every open file and lock of before is dead.

What a failing call does (`fail_call`): the OSError, after half of a write has happened. After a failed fdatasync the
bytes are readable but will never become durable by a later fdatasync, as on Linux. `cut_power_at` raises PowerCut in
the given call and in every later one until `crash`. Directories are durable at once. Not thread-safe but for reads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from raftlog.storage.fs import Buffers

SECTOR = 512


class PowerCut(Exception):
    """The machine is off. Not an OSError: no code may handle it."""


class _Write(NamedTuple):
    offset: int
    data: bytes


class _Truncate(NamedTuple):
    size: int


class _Inode:
    """A file's bytes as read now (`data`), as on disk (`durable`), and the changes between them in order."""

    __slots__ = ("data", "durable", "pending")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[_Write | _Truncate] = []

    def change(self, change: _Write | _Truncate) -> None:
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


class _Link(NamedTuple):
    path: Path
    inode: _Inode


class _Unlink(NamedTuple):
    path: Path


_NameChange = _Rename | _Link | _Unlink


class MemoryFile:
    """A File of a MemoryFileSystem."""

    __slots__ = ("_epoch", "_fs", "_inode", "_locked", "path")

    def __init__(self, fs: MemoryFileSystem, path: Path, inode: _Inode, *, locked: bool = False) -> None:
        self.path = path
        self._fs = fs
        self._inode = inode
        self._epoch = fs.epoch
        self._locked = locked

    def pread(self, size: int, offset: int) -> bytes:
        self._check()
        return bytes(self._inode.data[offset : offset + size])

    def pwritev(self, buffers: Buffers, offset: int) -> None:
        self._check()
        data = b"".join(buffers)
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
        self._inode.change(_Write(offset, data))

    def _growth(self, size: int, offset: int) -> int:
        return max(0, offset + size - len(self._inode.data))

    def fdatasync(self) -> None:
        self._check()
        error = self._fs.step("fdatasync", self.path)
        if error is not None:
            self._inode.pending.clear()
            raise error
        self._inode.sync()

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
    """See the module. `calls` counts the calls that change something; `trace` names the last ones."""

    def __init__(self, space_left: int = 1 << 40) -> None:
        self.space_left = space_left
        """Bytes until ENOSPC; freed by truncation only."""
        self.calls = 0
        self.trace: list[str] = []
        self.off = False
        self.epoch = 0
        self.locks: set[Path] = set()
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._pending_names: list[_NameChange] = []
        self._directories = {Path("/")}
        self._failures: dict[int, int] = {}
        self._power_cut_at = -1

    # Faults

    def fail_call(self, number: int, code: int = errno.EIO) -> None:
        """Lets the call that makes `calls` equal `number` raise OSError(code)."""
        self._failures[number] = code

    def cut_power_at(self, number: int) -> None:
        """Lets the power go in the middle of that call: nothing after it happens until `crash`."""
        self._power_cut_at = number

    def crash(self, seed: int) -> None:
        """What is on the disk after the power came back; everything that was open is dead."""
        rng = Random(seed)
        kept = rng.randint(0, len(self._pending_names))
        for change in self._pending_names[:kept]:
            _rename(self._durable_names, change)
        self._pending_names.clear()
        self._names = dict(self._durable_names)
        for inode in self._inodes():
            inode.crash(rng)
        self.restart()

    def restart(self) -> None:
        """A killed process: everything written is still there, open files and locks are not."""
        self.off = False
        self._power_cut_at = -1
        self._failures.clear()
        self.locks.clear()
        self.epoch += 1

    def damage(self, path: Path, offset: int, data: bytes) -> None:
        """Rot: overwrites bytes on the disk behind everybody's back."""
        inode = self._inode(path)
        _apply(inode.data, _Write(offset, data))
        _apply(inode.durable, _Write(offset, data))

    def _inodes(self) -> Iterator[_Inode]:
        seen: set[int] = set()
        for _, inode in sorted(self._names.items()):
            if id(inode) not in seen:
                seen.add(id(inode))
                yield inode

    def step(self, call: str, path: Path, half: object = None) -> OSError | None:
        """Counts a call; the error it must fail with, if any. `half` is done before a power cut."""
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
        if create and path not in self._names:
            self._fallible("create", path)
            if path.parent not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
            self._change(_Link(path, _Inode()))
        return MemoryFile(self, path, self._inode(path))

    def lock(self, path: Path, owner: str) -> MemoryFile:
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", str(path))
        inode = self.open(path, create=True)._inode
        file = MemoryFile(self, path, inode, locked=True)
        file.truncate(0)
        file.pwritev([owner.encode()], 0)
        self.locks.add(path)
        return file

    def exists(self, path: Path) -> bool:
        return path in self._names or path in self._directories

    def listdir(self, path: Path) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return sorted(name.name for name in (*self._names, *self._directories) if name.parent == path and name != path)

    def mkdir(self, path: Path) -> None:
        if path not in self._directories:
            self._fallible("mkdir", path)
            self._directories.update((path, *path.parents))

    def rename(self, source: Path, target: Path) -> None:
        self._inode(source)
        self._fallible("rename", target)
        self._change(_Rename(source, target))

    def unlink(self, path: Path) -> None:
        self._inode(path)
        self._fallible("unlink", path)
        self._change(_Unlink(path))

    def fsync_dir(self, path: Path) -> None:
        self._fallible("fsync_dir", path)
        last = max((n for n, change in enumerate(self._pending_names, 1) if path in _parents(change)), default=0)
        for change in self._pending_names[:last]:  # one journal: what came before goes with it
            _rename(self._durable_names, change)
        del self._pending_names[:last]

    def free_bytes(self, path: Path) -> int:
        return self.space_left

    def _inode(self, path: Path) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _change(self, change: _NameChange) -> None:
        _rename(self._names, change)
        self._pending_names.append(change)


def _apply(data: bytearray, change: _Write | _Truncate) -> None:
    if isinstance(change, _Truncate):
        if change.size <= len(data):
            del data[change.size :]
        else:
            data.extend(bytes(change.size - len(data)))
        return
    if change.offset > len(data):
        data.extend(bytes(change.offset - len(data)))
    data[change.offset : change.offset + len(change.data)] = change.data


def _sectors(change: _Write | _Truncate) -> Iterator[_Write | _Truncate]:
    if isinstance(change, _Truncate):
        yield change
        return
    at, end = change.offset, change.offset + len(change.data)
    while at < end:
        stop = min(end, (at // SECTOR + 1) * SECTOR)
        yield _Write(at, change.data[at - change.offset : stop - change.offset])
        at = stop


def _rename(names: dict[Path, _Inode], change: _NameChange) -> None:
    if isinstance(change, _Link):
        names[change.path] = change.inode
    elif isinstance(change, _Unlink):
        names.pop(change.path, None)
    elif change.source in names:
        names[change.target] = names.pop(change.source)


def _parents(change: _NameChange) -> tuple[Path, ...]:
    if isinstance(change, _Rename):
        return change.source.parent, change.target.parent
    return (change.path.parent,)
