"""The key-value store on RocksDB (`KV` by rocksdict, raw bytes, one column family each), sized so that an idle node
stays small.

The Raft log provides durability: batches go to RocksDB's WAL without a sync, and after a power loss the default
`point_in_time` recovery drops a suffix of them. The applied index is in the same batches, so dropped batches show as a
lower applied index and are replayed. Never set `tolerate_corrupted_tail_records`: it can drop rows from the middle
(docs/adr/0013-apply-atomicity.md).
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from raftlog.kept_errors import bare
from raftlog.work import METER, ROW_UNITS, SEEK_UNITS
from statemachine.rows.kv import FAMILIES, Batch, KVCorruptError, KVError, KVFullError, ignore_corruption
from statemachine.rows.rocksdb_log_reader import check_manifest

MIB = 1024 * 1024
WRITE_BUFFER_BYTES = 8 * MIB
"""The bytes that each family buffers before they are flushed to a table file. Most session rows are written and deleted
within one buffer."""
BLOCK_CACHE_BYTES = 16 * MIB
"""The size in bytes of the block cache that all families share."""
WAL_BYTES_MAX = 64 * MIB
"""The size of the WAL in bytes above which RocksDB flushes the families with rows in the oldest WAL file. It bounds
disk use, and the replay when the store is opened."""
TABLE_FORMAT = 6
"""RocksDB's `format_version` of table files. It is fixed, because a newer rocksdict might otherwise write tables that
the rocksdict of an older release cannot read. RocksDB reads format 6 since 8.6."""

BIG_BYTES = 1024
"""The length in bytes above which a value is charged in addition to ROW_UNITS."""
MANIFEST_BYTES_MAX = 1 * MIB
"""The size in bytes above which RocksDB begins another MANIFEST. Each checkpoint reads and copies all of it; with
RocksDB's own limit of 1 GiB, checkpoints would become slower with each week that a node runs."""
STALLS_MAX = 100
"""The number of times that a write which RocksDB would delay is tried again, before RocksDB may delay it."""

SKIPPED_MAX = 256
"""The number of removed keys that a backward seek passes before it asks whether its range has any row."""
SKIPPED_UNITS = 30
"""The cost of passing SKIPPED_MAX removed keys, in units of `raftlog.work`."""
_INCOMPLETE = "Too many internal keys skipped"
OPEN_FILES_MAX, OPEN_FILES_MIN = 512, 48
"""The most and the least files that RocksDB may keep open."""


def open_files_max(descriptors: int) -> int:
    """Returns the number of files that the store may keep open if the process may have `descriptors` of them (below 0:
    any number)."""
    return OPEN_FILES_MAX if descriptors < 0 else max(OPEN_FILES_MIN, min(OPEN_FILES_MAX, descriptors // 4))


class RocksKV:
    """A key-value store (`KV`) on RocksDB. Opens or creates the database at `path`.

    Raises KVCorruptError if the database is damaged, KVError if it cannot be opened for another reason; in both cases
    nothing is changed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            check_manifest(Path(path))
        except KVCorruptError as error:
            raise KVCorruptError(_cannot_open(path, error)) from error
        _check_families(path)
        cache = Cache(BLOCK_CACHE_BYTES)
        families = {name: _family_options(cache) for name in FAMILIES}
        try:
            self._db = Rdict(path, _db_options(cache), column_families=families)
        except Exception as error:
            kind = KVCorruptError if is_damage(error) else KVFullError if _is_full(error) else KVError
            raise kind(_cannot_open(path, error)) from error
        # A write holds the GIL. While RocksDB flushes or compacts tables it may delay a write, for seconds on a slow
        # disk. With this option it refuses the write instead, and `write` waits in a call that does not hold the GIL.
        at_once = WriteOptions()
        at_once.no_slowdown = True
        self._db.set_write_options(at_once)
        self.on_corruption: Callable[[KVCorruptError], None] = ignore_corruption
        self._views: dict[str, Rdict] = {name: self._db.get_column_family(name) for name in FAMILIES}
        self._handles = {name: self._db.get_column_family_handle(name) for name in FAMILIES}
        self._impatient = ReadOptions()
        self._impatient.set_max_skippable_internal_keys(SKIPPED_MAX)
        self._scans: WeakSet[_Scan] = WeakSet()
        self._closed = False
        self._full = False
        """True after a write found no space on the disk. RocksDB then accepts no writes until it is opened again, even
        if there is space."""

    def get(self, family: str, key: bytes) -> bytes | None:
        METER.units += ROW_UNITS
        try:
            value: bytes | None = self._view(family).get(key)
        except DbClosedError:
            raise self._no_family(family) from None
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            self._failed("reading", error)
        if value is not None and len(value) > BIG_BYTES:
            METER.units += len(value) >> 10
        return value

    def write(self, batch: Batch) -> None:
        """Implements `KV.write`. If RocksDB refuses the write because it would stall, flushes tables and tries again,
        STALLS_MAX times at most."""
        rocks = self._encode(batch)
        METER.units += SEEK_UNITS + ROW_UNITS * len(batch.ops) + (rocks.size_in_bytes() >> 10)
        for _ in range(STALLS_MAX):
            try:
                self._db.write(rocks)
            except Exception as error:  # noqa: BLE001 - as above
                if not _is_stall(error):
                    self._failed("writing to", error)
            else:
                return
            self.flush_tables()
            rocks = self._encode(batch)  # a refused batch cannot be used again
        self._write_and_wait(rocks)

    def _write_and_wait(self, rocks: WriteBatch) -> None:
        try:
            self._db.write(rocks, WriteOptions())
        except Exception as error:  # noqa: BLE001 - as above
            self._failed("writing to", error)

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        METER.units += SEEK_UNITS
        scan = _Scan(self._view(family), start, end, self._failed)
        self._scans.add(scan)
        return scan

    def first(self, family: str, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Implements `KV.first`. The call holds the GIL."""
        METER.units += SEEK_UNITS
        bounded = ReadOptions()
        bounded.set_iterate_upper_bound(end)
        rows = self._view(family).iter(bounded)
        rows.seek(start)
        if rows.valid():
            return rows.key(), rows.value()
        error = _status_of(rows)
        # if the error's traceback referred to the cursor, the database would stay open after `close`
        del rows
        if error is not None:
            self._failed("reading", error)
        return None

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        """Implements `KV.seek_last`.

        A backward seek passes removed keys one by one, also below `low`, because rocksdict 0.3 cannot set a lower
        bound. After SKIPPED_MAX of them, a forward seek, which does have a bound, asks whether the range has any row.
        If it has, the backward seek continues and passes only keys that were removed from the range itself.
        """
        METER.units += SEEK_UNITS
        view = self._view(family)
        rows, error = _last_below(view.iter(self._impatient), high)
        if error is not None and _INCOMPLETE in str(error):
            METER.units += SKIPPED_UNITS
            if self.first(family, low, high) is None:
                return None
            rows, error = _last_below(view.iter(ReadOptions()), high)
        if not rows.valid():
            del rows  # see `first`: a traceback must not refer to the cursor
            if error is not None:
                self._failed("reading", error)
            return None
        key: bytes = rows.key()
        return None if key < low else (key, rows.value())

    def flush_wal(self) -> None:
        """Implements `KV.flush_wal`. It waits for a disk sync, so it runs on a timer and never per batch."""
        self._view(FAMILIES[0])
        try:
            self._db.flush_wal(sync=True)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed("syncing", error)

    def flush_tables(self) -> None:
        try:
            for name in FAMILIES:
                self._view(name).flush()
        except KVError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._failed("flushing", error)

    def checkpoint(self, path: str) -> None:
        """Implements `KV.checkpoint` by hard links. The call holds the GIL."""
        self._view(FAMILIES[0])
        try:
            Checkpoint(self._db).create_checkpoint(path)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(f"making a checkpoint at {path} of", error)

    def sequence(self) -> int:
        self._view(FAMILIES[0])
        return self._db.latest_sequence_number()

    def tables(self) -> list[str]:
        self._view(FAMILIES[0])
        return [file["name"].rpartition("/")[2] for file in self._db.live_files()]

    def close(self) -> None:
        """Implements `KV.close`. The lock file is free afterwards."""
        if self._closed:
            return
        self._closed = True
        for scan in list(self._scans):
            scan.close()
        self._handles = {}
        failed: Exception | None = None
        for view in (*self._views.values(), self._db):
            try:
                view.close()
            except Exception as error:  # noqa: BLE001 - as above; what is left must be closed all the same
                failed = failed or error
        self._views = {}
        # after a full disk, `close` only repeats the error that a write has raised
        if failed is not None and not self._full:
            raise failed

    def _encode(self, batch: Batch) -> WriteBatch:
        rocks = WriteBatch(raw_mode=True)
        handles = self._handles
        put = rocks.put
        try:
            for family, key, value, end in batch.ops:
                if value is not None:
                    put(key, value, handles[family])
                elif end is not None:
                    rocks.delete_range(key, end, handles[family])
                else:
                    rocks.delete(key, handles[family])
        except KeyError as error:
            raise self._no_family(error.args[0]) from None
        return rocks

    def watch_corruption(self, told: Callable[[KVCorruptError], None]) -> None:
        """Implements `KV.watch_corruption`. The last listener replaces the one before it."""
        self.on_corruption = told

    def _failed(self, doing: str, error: Exception) -> NoReturn:
        text = f"{doing} the state database at {self.path} failed: {error}"
        if not is_damage(error):
            self._full = self._full or _is_full(error)
            raise (KVFullError if self._full else KVError)(text) from error
        damage = KVCorruptError(text)
        self.on_corruption(damage)
        raise damage from error

    def _view(self, family: str) -> Rdict:
        try:
            return self._views[family]
        except KeyError:
            raise self._no_family(family) from None

    def _no_family(self, family: str) -> KVError:
        if self._closed:
            return KVError(f"the state database at {self.path} is closed")
        return KVError(f"no column family {family!r}")


class _Scan(Iterator[tuple[bytes, bytes]]):
    """A RocksDB iterator with an end; releases the database as soon as it is exhausted or closed.

    rocksdict's `items()` is four times as fast as its cursor, but ends at damage just as at the last row. If it ends
    before `end`, a cursor is therefore put on the last row to find out why no row follows.
    """

    __slots__ = ("__weakref__", "_at", "_end", "_failed", "_rows", "_view")

    def __init__(self, view: Rdict, start: bytes, end: bytes, failed: Callable[[str, Exception], NoReturn]) -> None:
        self._view: Rdict | None = view
        self._rows: Iterator[Any] = iter(view.items(from_key=start))
        self._at = start
        self._end = end
        self._failed = failed

    def __next__(self) -> tuple[bytes, bytes]:
        if self._view is None:
            raise StopIteration
        row: tuple[bytes, bytes] | None = next(self._rows, None)
        if row is None:
            self._check_end(self._view)
        if row is None or row[0] >= self._end:
            self.close()
            raise StopIteration
        self._at = row[0]
        METER.units += ROW_UNITS + (len(row[1]) >> 10)
        return row

    def _check_end(self, view: Rdict) -> None:
        rows = view.iter()
        rows.seek(self._at)
        if rows.valid() and rows.key() == self._at:
            rows.next()
        if not rows.valid():
            try:
                rows.status()
            except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
                del rows  # see `first`: a traceback must not refer to the cursor
                self.close()
                self._failed("reading", error)

    def close(self) -> None:
        """Ends the scan, and releases the database."""
        self._view = None
        self._rows = iter(())


def _last_below(rows: RdictIter, high: bytes) -> tuple[RdictIter, Exception | None]:
    """Moves the cursor to the last row below `high`. Returns the cursor, and the error if one stopped it."""
    rows.seek_for_prev(high)
    if rows.valid() and rows.key() == high:
        rows.prev()
    return rows, None if rows.valid() else _status_of(rows)


def _status_of(rows: RdictIter) -> Exception | None:
    """Returns the error that stopped the cursor; None if there are simply no more rows."""
    try:
        rows.status()
    except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
        return bare(error)
    return None


def is_damage(error: Exception) -> bool:
    """Returns True if RocksDB's error means that stored bytes are wrong or one of its files is missing, not that a call
    failed."""
    text = str(error)
    return "Corruption" in text or "No such file or directory" in text


def _is_stall(error: Exception) -> bool:
    """Returns True if the error means that RocksDB refused a write because it would have had to wait. Nothing of the
    write has taken effect then."""
    return "Write stall" in str(error)


def _is_full(error: Exception) -> bool:
    return any(text in str(error) for text in ("No space left on device", "Disk quota exceeded"))


def _db_options(cache: Cache) -> Options:
    options = _family_options(cache)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    options.set_max_manifest_file_size(MANIFEST_BYTES_MAX)
    options.set_db_write_buffer_size(32 * MIB)
    options.set_max_background_jobs(2)
    options.set_max_open_files(open_files_max(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _family_options(cache: Cache) -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_target_file_size_base(16 * MIB)
    # Rows are positions, CRCs and ids: they do not compress. All queues grow in parallel, so the keys of each flushed
    # table overlap those of all older tables. Levelled compaction would rewrite the whole family each time.
    options.set_compression_type(DBCompressionType.none())
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(8)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_format_version(TABLE_FORMAT)
    options.set_block_based_table_factory(table)
    return options


def _check_families(path: str) -> None:
    """Raises KVError if the database has families this version does not know: a newer RaftMQ wrote it."""
    found: list[str] = []
    with suppress(Exception):  # there is no database yet, or opening it raises a better error
        found = Rdict.list_cf(path, Options(raw_mode=True))
    unknown = sorted(set(found) - {"default", *FAMILIES})
    if unknown:
        raise KVError(
            f"cannot open the state database at {path}\n"
            f"It has column families this version does not know ({', '.join(unknown)}): a newer RaftMQ wrote it.\n"
            f"Start the node with that version."
        )


def _cannot_open(path: str, error: Exception) -> str:
    if "While lock file" in str(error) or "lock hold by" in str(error):
        what = "Another process (or another node in this one) has it open: stop that one, or use another directory."
    else:
        what = (
            "Check that the directory is writable and the disk not full. What is wrong in it, and what mends it, says: "
            f"raftmq fsck {Path(path).parent}"
        )
    return f"cannot open the state database at {path}\n{error}\n{what}"
