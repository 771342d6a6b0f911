"""Copies an open RocksDB by hard links without stopping its writers.

RocksDB's own checkpoint holds Python's global lock while it syncs half a dozen files: 6 ms on an idle disk, 130 ms on a
busy one. During that time the node answers no request. So this module copies the files itself: it links the tables, and
reads the manifest, CURRENT and the WAL. The copy is the database of one moment because

* the manifest names the tables, and neither the manifest nor the tables changed between the first link and the end of
  reading the WAL: no table was added or removed, and no WAL was removed (otherwise the copy is made again);
* the WAL holds every write since those tables were written, and its copy ends with the write that was the last one when
  the caller read the store: no earlier write is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from raftlog.storage.files.fs import FileSystem, read_file
from statemachine.rows.kv import KV, KVError
from statemachine.rows.rocksdb_log_reader import bad_records, records

CURRENT = "CURRENT"
WAL_SUFFIX = ".log"
_TRIES = 20
PIECE_BYTES = 256 * 1024
_BATCH = struct.Struct("<QI")
"""Header of a write in the WAL: its first sequence number, and how many numbers it takes."""

T = TypeVar("T")


class CheckpointBusyError(KVError):
    """The store changed during every attempt to copy it, so no copy was of one moment. A later attempt may succeed."""


class _Moment(NamedTuple):
    """The files that must not change while they are linked and read."""

    current: bytes
    manifest_size: int
    tables: frozenset[str]


def copy_open_store(fs: FileSystem, kv: KV, source: Path, target: Path) -> None:
    """Makes a durable copy `target`, which must not exist, of the open store `kv` at `source`. Raises KVError,
    OSError."""
    kv.flush_tables()
    if kv.sequence() >= 0:
        copy_database(fs, kv, source, target, lambda: None)
    else:
        kv.checkpoint(str(target))


def copy_database(fs: FileSystem, kv: KV, source: Path, target: Path, look: Callable[[], T]) -> T:
    """Makes a durable copy `target` of the open store `kv` at `source`, whose memory was just flushed to tables.

    Calls `look`, perhaps several times, to read `kv`. Returns the last result of `look`, which describes the copy.
    Raises CheckpointBusyError, KVError, OSError.
    """
    for _ in range(_TRIES):
        if fs.exists(target):
            fs.remove_tree(target)
        fs.mkdir(target)
        try:
            before = _moment(fs, kv, source)
            _link(fs, before, source, target)
            seen, last = _settled(kv, look)
            _copy_wal(fs, source, target, last)
            if _moment(fs, kv, source) == before:
                fs.fsync_dir(target)
                return seen
        except FileNotFoundError:
            continue  # RocksDB removed a table or a WAL meanwhile
    raise CheckpointBusyError(f"the files of {source} changed during each of {_TRIES} attempts to copy them")


def _moment(fs: FileSystem, kv: KV, source: Path) -> _Moment:
    current = read_file(fs, source / CURRENT)
    manifest = fs.open(source / current.decode().strip())
    size = manifest.size()
    manifest.close()
    return _Moment(current, size, frozenset(kv.tables()))


def _link(fs: FileSystem, moment: _Moment, source: Path, target: Path) -> None:
    """Links the tables, and copies MANIFEST and CURRENT. Raises FileNotFoundError if a table was removed in the
    meantime, or the MANIFEST was being written."""
    for name in sorted(moment.tables):
        fs.link(source / name, target / name)
    name = moment.current.decode().strip()
    manifest = read_file(fs, source / name)[: moment.manifest_size]
    if bad_records(manifest):
        raise FileNotFoundError(f"{source / name} was being written")
    _write(fs, target / name, manifest)
    _write(fs, target / CURRENT, moment.current)


def _settled(kv: KV, look: Callable[[], T]) -> tuple[T, int]:
    """Returns the result of `look` and the store's last sequence number, as of one moment: repeats both reads until no
    write came between."""
    while True:
        before = kv.sequence()
        seen = look()
        if kv.sequence() == before:
            return seen, before


def _copy_wal(fs: FileSystem, source: Path, target: Path, last: int) -> None:
    """Copies the WAL up to the write that ends with sequence number `last`. That write is in the file already, because
    its rows can be read."""
    for name in fs.listdir(source):
        if not name.endswith(WAL_SUFFIX):
            continue
        data = read_file(fs, source / name)
        end = 0
        for record in records(data):
            if len(record.data) >= _BATCH.size and _BATCH.unpack_from(record.data)[0] > last:
                break
            end = record.end
        _write(fs, target / name, data, end)


def _write(fs: FileSystem, path: Path, data: bytes, size: int = -1) -> None:
    """Writes all of `data`, or its first `size` bytes. It writes in pieces, because cutting a long WAL in memory would
    hold the GIL."""
    end = len(data) if size < 0 else size
    file = fs.open(path, create=True)
    for at in range(0, end, PIECE_BYTES):
        file.pwritev([data[at : min(at + PIECE_BYTES, end)]], at)
    file.fdatasync()
    file.close()
