"""A key-value store in memory: the reference implementation of `KV`, and the simulator's database, which can lose
power."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from weakref import WeakSet

import msgpack

from raftlog.storage.files.fs import FileSystem, read_file, write_file
from raftlog.work import METER, ROW_UNITS, SEEK_UNITS
from raftmq_wire.checksums import crc32c
from statemachine.rows.kv import FAMILIES, TABLE_SUFFIX, Batch, KVCorruptError, KVError, ignore_corruption

ROWS_FILE = "000001" + TABLE_SUFFIX
"""The file with a checkpoint's rows on a file system: crc32c u32 of the rest | msgpack {family: {key: value}}."""
CURRENT_FILE = "CURRENT"
"""A file without which RocksDB cannot open a database; here it only has to exist."""


SCAN_AT_ONCE = 64
"""The most rows that a scan copies at once; a longer range is read row by row."""


class _Family:
    """The rows of one column family: a dict, and its sorted keys. `scans`: scans that still read the unchanged rows."""

    __slots__ = ("keys", "rows", "scans")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.scans: WeakSet[_Scan] = WeakSet()

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Returns an iterator over the rows with start <= key < end. It yields them as they are at the time of the
        call, whatever is written afterwards.
        """
        scan = _Scan(self, bisect_left(self.keys, start), bisect_left(self.keys, end))
        METER.units += SEEK_UNITS
        if scan.left <= SCAN_AT_ONCE:
            return _charged(scan.rest())
        self.scans.add(scan)
        return _charged(scan)

    def change(self) -> None:
        """Prepares a change of the rows: running scans keep the rows as they are. Must be called before each change."""
        if self.scans:
            for scan in self.scans:
                scan.detach()
            self.scans.clear()

    def put(self, key: bytes, value: bytes) -> None:
        self.change()
        if key not in self.rows:
            insort(self.keys, key)
        self.rows[key] = value

    def delete(self, key: bytes) -> None:
        self.change()
        if self.rows.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.change()
        a, b = bisect_left(self.keys, start), bisect_left(self.keys, end)
        for key in self.keys[a:b]:
            del self.rows[key]
        del self.keys[a:b]


def _charged(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows. Charges each one to the meter (`raftlog.work`) when it is consumed, as RocksDB's scan does."""
    for row in rows:
        METER.units += ROW_UNITS + (len(row[1]) >> 10)
        yield row


class _Scan:
    """Iterates over the rows from position `at` to before `stop` of a family. It reads each row on demand, because
    often only the first row of a long range is needed.
    """

    def __init__(self, family: _Family, at: int, stop: int) -> None:
        self._family, self._at, self._stop = family, at, stop
        self._read: Iterator[tuple[bytes, bytes]] | None = None

    @property
    def left(self) -> int:
        return self._stop - self._at

    def rest(self) -> list[tuple[bytes, bytes]]:
        rows = self._family.rows
        return [(key, rows[key]) for key in self._family.keys[self._at : self._stop]]

    def detach(self) -> None:
        self._read = iter(self.rest())

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        if self._read is not None:
            return next(self._read)
        if self._at >= self._stop:
            raise StopIteration
        key = self._family.keys[self._at]
        self._at += 1
        return key, self._family.rows[key]


class MemoryKV:
    """A `KV` in memory, for one thread.

    With `model_crash` the batches since the last `flush_wal` are kept, so that `crash` can lose some of them as
    RocksDB's point-in-time recovery would: always a suffix, never a hole. With `fs` a checkpoint is a directory on it,
    which `load` opens; without, it is an object in `checkpoints`.
    """

    def __init__(self, *, model_crash: bool = False, fs: FileSystem | None = None) -> None:
        self.on_corruption: Callable[[KVCorruptError], None] = ignore_corruption
        self._fs = fs
        self._families = {name: _Family() for name in FAMILIES}
        self._durable = MemoryKV() if model_crash else None
        self._unsynced: list[Batch] = []
        self._checkpoints: dict[str, MemoryKV] = {}
        self._closed = False

    @property
    def unsynced(self) -> int:
        """The number of batches that a crash could lose (0 unless `model_crash`)."""
        return len(self._unsynced)

    @property
    def closed(self) -> bool:
        """True after `close` or `crash`: the store can no longer be used."""
        return self._closed

    def watch_corruption(self, told: Callable[[KVCorruptError], None]) -> None:
        """Sets the function that is called with each error about damaged data before the error is raised."""
        self.on_corruption = told

    def get(self, family: str, key: bytes) -> bytes | None:
        """Returns the row's value, None if there is no such row."""
        value = self._open(family).rows.get(key)
        METER.units += ROW_UNITS + (len(value) >> 10 if value else 0)
        return value

    def peek(self, family: str, key: bytes) -> bytes | None:
        """Returns the row's value without charging the meter, for observers."""
        return self._families[family].rows.get(key)

    def write(self, batch: Batch) -> None:
        """Applies the batch atomically."""
        size = 0
        for _, _, value, _ in batch.ops:
            if value is not None:
                size += len(value)
        METER.units += SEEK_UNITS + ROW_UNITS * len(batch.ops) + (size >> 10)
        self._write(batch)

    def _write(self, batch: Batch) -> None:
        self._open(FAMILIES[0])
        targets = [self._open(family) for family, *_ in batch.ops]
        for target, (_, key, value, end) in zip(targets, batch.ops, strict=True):
            if value is not None:
                target.put(key, value)
            elif end is not None:
                target.delete_range(key, end)
            else:
                target.delete(key)
        if self._durable is not None:
            self._unsynced.append(batch)

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Returns the rows with start <= key < end, ascending."""
        return self._open(family).scan(start, end)

    def first(self, family: str, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Returns the first row with start <= key < end, None if there is none."""
        METER.units += SEEK_UNITS
        source = self._open(family)
        at = bisect_left(source.keys, start)
        if at == len(source.keys) or source.keys[at] >= end:
            return None
        key = source.keys[at]
        return key, source.rows[key]

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        """Returns the last row with low <= key < high, None if there is none."""
        METER.units += SEEK_UNITS
        source = self._open(family)
        at = bisect_left(source.keys, high) - 1
        if at < 0 or source.keys[at] < low:
            return None
        key = source.keys[at]
        return key, source.rows[key]

    def flush_wal(self) -> None:
        """Makes everything written so far survive a power loss."""
        self._open(FAMILIES[0])
        if self._durable is not None:
            for batch in self._unsynced:
                self._durable._write(batch)
            self._unsynced = []

    def flush_tables(self) -> None:
        """Does nothing: the rows are in memory."""

    def checkpoint(self, path: str) -> None:
        """Makes a checkpoint at `path`, as `KV.checkpoint` does; without a file system, `checkpoints[path]` is the
        copy. Raises KVError if there is a checkpoint at `path`.
        """
        if path in self._checkpoints or (self._fs is not None and self._fs.exists(Path(path))):
            raise KVError(f"a checkpoint named {path} exists already")
        if self._fs is None:
            self._checkpoints[path] = self._copy(MemoryKV())
            return
        data = msgpack.packb({name: family.rows for name, family in self._families.items()})
        self._fs.mkdir(Path(path))
        write_file(self._fs, Path(path) / ROWS_FILE, crc32c(data).to_bytes(4) + data)
        write_file(self._fs, Path(path) / CURRENT_FILE, b"rows")

    def sequence(self) -> int:
        """Returns -1: this store has no files that could be copied while it is written."""
        return -1

    def tables(self) -> list[str]:
        """Returns []: the rows are in memory, not in table files."""
        return []

    @property
    def checkpoints(self) -> dict[str, MemoryKV]:
        """The copies made by `checkpoint`, by path."""
        return self._checkpoints

    def close(self) -> None:
        """Closes the store."""
        self._closed = True

    def crash(self, kept: int) -> MemoryKV:
        """Returns a new store as it is after a power loss, with all flushed batches and the first `kept` batches since.
        Closes this one. Raises KVError without `model_crash`.
        """
        if self._durable is None:
            raise KVError("only MemoryKV(model_crash=True) knows what a crash would lose")
        self._closed = True
        lost = MemoryKV(model_crash=True, fs=self._fs)
        self._durable._copy(lost)
        for batch in self._unsynced[:kept]:
            lost._write(batch)
        lost.flush_wal()
        return lost

    @classmethod
    def load(cls, fs: FileSystem, path: Path) -> MemoryKV:
        """Opens the store in a checkpoint on `fs`, with `model_crash`. Raises KVCorruptError if it is damaged."""
        data = read_file(fs, path / ROWS_FILE)
        if crc32c(data[4:]).to_bytes(4) != data[:4]:
            raise KVCorruptError(f"the rows in {path} fail their checksum")
        kv = cls(model_crash=True, fs=fs)
        for name, rows in msgpack.unpackb(data[4:]).items():
            kv._families[name].rows = rows
            kv._families[name].keys = sorted(rows)
        if kv._durable is not None:
            kv._copy(kv._durable)
        return kv

    def _copy(self, target: MemoryKV) -> MemoryKV:
        for name, source in self._families.items():
            target._families[name].rows = dict(source.rows)
            target._families[name].keys = list(source.keys)
        if target._durable is not None:
            self._copy(target._durable)
        return target

    def _open(self, family: str) -> _Family:
        if self._closed:
            raise KVError("the store is closed")
        try:
            return self._families[family]
        except KeyError:
            raise KVError(f"no column family {family!r}") from None
