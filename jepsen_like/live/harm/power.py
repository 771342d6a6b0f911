"""Power failures without special rights: a preloaded library (the shim) records how to undo unsynced writes, and after
the kill this module undoes them.

`data/power_shim.c` describes the journal. The journals of one node are read in the order of its processes: writes that
a killed process left in the page cache are as unsynced as those of the last process.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import struct
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

WRITE, ZEROS, SIZE, SYNC, CREATE, RENAME, UNLINK, DIRSYNC = range(1, 9)
_MAGIC = 0x55444E4F
_HEAD = struct.Struct("<IIQQQQII")
_SECTOR = 512
_CONTENT = frozenset({WRITE, ZEROS, SIZE})
_NAMES = frozenset({CREATE, RENAME, UNLINK})


class ShimError(Exception):
    """The shim cannot be used on this machine, or its journal is damaged."""


class JournalRecord(NamedTuple):
    """One record of the journal. `kind` is WRITE, ZEROS, SIZE, SYNC, CREATE, RENAME, UNLINK or DIRSYNC; the meaning of
    the other fields depends on it (`data/power_shim.c`).
    """

    kind: int
    inode: int
    a: int
    b: int
    c: int
    data: bytes
    more: bytes


class Dropped(NamedTuple):
    """Counts of the writes and names that one node lost in a power failure, and of those that survived although not
    synced."""

    writes: int
    bytes: int
    names: int
    kept: int


def build_shim(folder: Path) -> Path:
    """Compiles the library into `folder`. Raises ShimError with the reason if that is not possible here."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise ShimError("there is no C compiler (gcc) on this machine")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "power_shim.so"
    with as_file(files("jepsen_like.live").joinpath("data/power_shim.c")) as source:
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise ShimError(f"{compiler} failed: {done.stderr.strip().splitlines()[-1:]}")
    return library


class NodeDisk:
    """The shim's files for one node: `home` is the folder that the node may write to; `folder` is on the same file
    system."""

    def __init__(self, home: Path, folder: Path, library: Path) -> None:
        self.home = home
        self.folder = folder
        self._library = library
        self._processes = 0
        folder.mkdir(parents=True)
        (folder / "page").write_bytes(bytes(4096))
        with (folder / "page").open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4096)

    def environment(self) -> dict[str, str]:
        """Returns the environment of the node's next process."""
        self._processes += 1
        return {
            "LD_PRELOAD": str(self._library),
            "RAFTMQ_SHIM_ROOT": str(self.home),
            "RAFTMQ_SHIM_DIR": str(self.folder),
            "RAFTMQ_SHIM_PAGE": str(self.folder / "page"),
            "RAFTMQ_SHIM_JOURNAL": str(self.folder / f"{self._processes:06d}.undo"),
        }

    def set_clock(self, offset_ms: int) -> None:
        """Moves the wall clock of the node's running process and of later ones by `offset_ms`."""
        struct.pack_into("<q", self._page, 0, offset_ms * 1_000_000)

    def set_full(self, full: bool) -> None:
        """Makes every write of the node's processes fail for want of space, also of later ones. With `full` False,
        writes succeed again.
        """
        struct.pack_into("<Q", self._page, 32, int(full))

    @property
    def skewed_readings(self) -> int:
        """The number of times that a moved clock was read."""
        return int(struct.unpack_from("<Q", self._page, 8)[0])

    @property
    def writes(self) -> int:
        """The number of tracked writes so far."""
        return int(struct.unpack_from("<Q", self._page, 16)[0])

    @property
    def syncs(self) -> int:
        """The number of tracked syncs so far."""
        return int(struct.unpack_from("<Q", self._page, 24)[0])

    def lose_unsynced(self, rng: random.Random, survive: float) -> int:
        """Simulates a power failure (`fail`); returns the number of writes that were lost. Raises ShimError."""
        return self.fail(rng, survive).writes

    def fail(self, rng: random.Random, survive: float) -> Dropped:
        """Leaves on disk what a power failure would leave; the node's process must be dead.

        Each unsynced write survives with probability `survive`, some of them torn. Raises ShimError.
        """
        journals = sorted(self.folder.glob("*.undo"))
        records = [record for path in journals for record in _with_mark(read_journal(path))]
        dropped = _Rollback(records, self.folder, rng, survive).play()
        for path in (*journals, *self.folder.glob("ino.*")):
            path.unlink()
        return dropped


def disks_in(folder: Path) -> Callable[[int, Path], NodeDisk]:
    """Returns a function (number of a process, its home folder) -> the process's NodeDisk below `folder`. Raises
    ShimError if the shim cannot be built.
    """
    library = build_shim(folder)
    return lambda number, home: NodeDisk(home, folder / f"r{number}", library)


def read_journal(path: Path) -> Iterator[JournalRecord]:
    """Yields the records of one process. Leaves out a torn last record: its write never took place. Raises ShimError
    if the journal is damaged elsewhere.
    """
    data = memoryview(path.read_bytes())
    at = 0
    while at + _HEAD.size <= len(data):
        magic, kind, inode, a, b, c, first, second = _HEAD.unpack_from(data, at)
        if magic != _MAGIC:
            raise ShimError(f"{path}: no record at byte {at}")
        end = at + _HEAD.size + first + second
        if end > len(data):
            return
        middle = at + _HEAD.size + first
        yield JournalRecord(kind, inode, a, b, c, bytes(data[at + _HEAD.size : middle]), bytes(data[middle:end]))
        at = end


_NEW_PROCESS = JournalRecord(0, 0, 0, 0, 0, b"", b"")


def _with_mark(records: Iterator[JournalRecord]) -> Iterator[JournalRecord]:
    """Yields the records after a mark of a new process, since the counts of SYNC start again with each process."""
    yield _NEW_PROCESS
    yield from records


class _Rollback:
    def __init__(self, records: list[JournalRecord], folder: Path, rng: random.Random, survive: float) -> None:
        self._records = records
        self._folder = folder
        self._rng = rng
        self._survive = survive
        self._writes = self._bytes = self._names = self._kept = 0

    def play(self) -> Dropped:
        content, names = self._unsynced()
        by_inode: dict[int, list[JournalRecord]] = defaultdict(list)
        for number in content:
            by_inode[self._records[number].inode].append(self._records[number])
        for inode, suffix in by_inode.items():
            self._undo_content(self._folder / f"ino.{inode}", suffix)
        # Names change in the order of the file system's own journal, so what survives of them is a prefix.
        survivors = self._rng.randrange(len(names) + 1) if names and self._rng.random() < self._survive else 0
        for number in reversed(names[survivors:]):
            self._undo_name(self._records[number])
        self._kept += survivors
        return Dropped(self._writes, self._bytes, self._names, self._kept)

    def _unsynced(self) -> tuple[list[int], list[int]]:
        """Returns the numbers of the records of contents, and of those of names, that nothing made durable, in
        order."""
        content: dict[int, list[int]] = defaultdict(list)
        older: dict[int, int] = {}
        done: dict[int, int] = {}
        names: list[int] = []
        for number, record in enumerate(self._records):
            if record is _NEW_PROCESS:
                older = {inode: len(waiting) for inode, waiting in content.items()}
                done = {}
            elif record.kind in _CONTENT:
                content[record.inode].append(number)
            elif record.kind == SYNC:
                # all records of older processes, and the first `a` of this one
                count = older.pop(record.inode, 0) + record.a - done.get(record.inode, 0)
                if count > 0:
                    del content[record.inode][:count]
                done[record.inode] = max(record.a, done.get(record.inode, 0))
            elif record.kind in _NAMES:
                names.append(number)
            elif record.kind == DIRSYNC:
                names = [each for each in names if _directory(self._records[each]) != record.data]
        return sorted(number for waiting in content.values() for number in waiting), names

    def _undo_content(self, path: Path, suffix: list[JournalRecord]) -> None:
        """Undoes the changes of a file in `suffix`, which has all since the file's last sync, in order. A change of
        length is always undone.
        """
        resized = any(record.kind == SIZE for record in suffix)
        end = suffix[0].b
        with path.open("r+b") as file:
            fd = file.fileno()
            for record in reversed(suffix):
                if record.kind == SIZE:
                    os.ftruncate(fd, record.b)
                    os.pwrite(fd, record.data, record.a)
                    self._writes += 1
                    continue
                kept = 0 if resized else self._survivor(record)
                _restore(fd, record, kept)
                if resized:
                    os.ftruncate(fd, record.b)
                if kept:
                    end = max(end, record.a + kept)
                    self._kept += 1
                self._writes += kept < record.c
                self._bytes += record.c - kept
            if not resized:
                os.ftruncate(fd, end)

    def _survivor(self, record: JournalRecord) -> int:
        """Draws how many bytes of an unsynced write reached the disk nevertheless: none, all, or some sectors."""
        if self._rng.random() >= self._survive:
            return 0
        sectors = record.c // _SECTOR
        if sectors < 2 or self._rng.random() < 0.7:
            return record.c
        return self._rng.randrange(1, sectors) * _SECTOR

    def _undo_name(self, record: JournalRecord) -> None:
        """Undoes a change of names. If it can no longer be undone, it stays, since a change of names may always
        survive."""
        self._names += 1
        if record.kind == RENAME:
            self._undo_rename(record)
            return
        path, second = Path(os.fsdecode(record.more)), self._folder / f"ino.{record.inode}"
        if record.kind == CREATE and _inode(path) == record.inode:
            path.unlink()
        elif record.kind == UNLINK and not path.exists() and path.parent.is_dir():
            os.link(second, path)

    def _undo_rename(self, record: JournalRecord) -> None:
        old, new = Path(os.fsdecode(record.data)), Path(os.fsdecode(record.more))
        if _inode(new) != record.inode or old.exists() or not old.parent.is_dir():
            return
        new.rename(old)
        if record.a:
            os.link(self._folder / f"ino.{record.a}", new)


def _restore(fd: int, record: JournalRecord, kept: int) -> None:
    """Restores the bytes that were there before a write, except for its first `kept` bytes; writes zeros where the file
    had ended."""
    old = record.data if record.kind == WRITE else bytes(max(0, min(record.c, record.b - record.a)))
    tail = old[kept:] + bytes(record.c - max(kept, len(old)))
    if tail:
        os.pwrite(fd, tail, record.a + kept)


def _directory(record: JournalRecord) -> bytes:
    return os.path.dirname(record.more) if record.kind == RENAME else record.data  # noqa: PTH120 - bytes


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None
