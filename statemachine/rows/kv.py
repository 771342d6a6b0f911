"""The key-value store below the state machine: sorted byte keys in column families, written by atomic batches.

Two implementations pass the same tests: `RocksKV` (rocksdb_store.py), and in the simulators
`jepsen_like.fakes.memory_kv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from raftlog.errors import StorageError

META = "meta"
TOPICS = "topics"
GROUPS = "groups"
OFFSETS = "offsets"
CQ = "cq"
DEDUP = "dedup"
INDEX = "index"
LOCKS = "locks"
TIMER = "timer"
TRANS = "trans"
RESETS = "resets"
TIER = "tier"
FAMILIES = (META, TOPICS, GROUPS, OFFSETS, CQ, DEDUP, INDEX, LOCKS, TIMER, TRANS, RESETS, TIER)
"""Every column family that this version knows."""


TABLE_SUFFIX = ".sst"
"""The suffix of the store's table files, which are written once, whole, and never change: a copy of the store may share
them."""


class KVError(StorageError):
    """The store cannot be opened, read or written; the message names the path and the remedy."""


class KVFullError(KVError):
    """A write found no space on the disk. Earlier writes are intact and can be read; the database must be opened
    again."""


class KVCorruptError(KVError):
    """Stored bytes fail their checksum, or a file of the store is missing. Such bytes are never served; the store must
    be restored."""


def ignore_corruption(error: KVCorruptError) -> None:
    """Does nothing. It is the default listener of a store until `watch_corruption` sets another one."""


Op = tuple[str, bytes, bytes | None, bytes | None]
"""One step of a batch: (family, key, value, end). If `value` is bytes, the step sets the row `key`. If `end` is bytes,
it deletes the rows from `key` up to `end`, exclusive. If both are None, it deletes the row `key`. The type is a plain
tuple, because applying an entry makes a dozen of them, and a named tuple costs one more call each."""


class Batch:
    """Changes of rows that take effect together, in order: a later step sees an earlier one and overrides it."""

    __slots__ = ("ops",)

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Sets the row."""
        self.ops.append((family, key, value, None))

    def delete(self, family: str, key: bytes) -> None:
        """Removes the row, if there is one."""
        self.ops.append((family, key, None, None))

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Removes every row with start <= key < end; none if start is not below end (RocksDB would refuse that)."""
        if start < end:
            self.ops.append((family, start, None, end))


class KV(Protocol):
    """A key-value store, as the state machine uses it.

    Threads: one writer; `get`, `scan`, `first` and `seek_last` may run on other threads at the same time. Each of them
    sees a batch completely or not at all, and a scan sees the rows of the moment it was called, whatever is written
    while it is consumed.

    Damage raises KVCorruptError, also from a scan that has begun: rows are never left out silently.
    """

    def watch_corruption(self, told: Callable[[KVCorruptError], None]) -> None:
        """Registers `told`, which is called whenever damage is found, on the thread that found it and before the error
        is raised, so that a caller that catches the error cannot hide the damage."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Returns the value of the row; None if there is no such row."""

    def write(self, batch: Batch) -> None:
        """Applies the batch, all of it or, after a crash, none of it. Does not wait for the disk."""

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows with start <= key < end, ascending."""

    def first(self, family: str, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Returns the first row with start <= key < end; None if there is none. A scan would walk over removed keys,
        even beyond `end`, up to the next existing row. This call stops at `end`."""

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        """Returns the last row with low <= key < high; None if there is none."""

    def flush_wal(self) -> None:
        """Syncs the store's write-ahead log: when the call returns, everything written so far survives a power loss."""

    def flush_tables(self) -> None:
        """Writes buffered rows to tables. The call is slow, but other threads continue. A checkpoint is quick
        afterwards."""

    def checkpoint(self, path: str) -> None:
        """Makes a durable copy of the store at `path` (which must not exist) that opens as the store of this moment.

        Blocks every thread while it writes tables, so call `flush_tables` first. Tables (`TABLE_SUFFIX`) are files that
        never change once written: the copy may share them by hard link.
        """

    def sequence(self) -> int:
        """Returns the sequence number of the last write whose rows can be read. It rises with every write: if it is the
        same before and after other reads, nothing was written between them. Returns -1 for a store in memory, which has
        no files to copy."""

    def tables(self) -> list[str]:
        """Returns the file names of the tables that are complete and in use."""

    def close(self) -> None:
        """Ends all use of the store; open scans end with it. Idempotent."""
