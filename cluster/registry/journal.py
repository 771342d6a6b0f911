"""Keeps the journal of one registry process: the entries of its Raft log in one file. Entries are synced before a
message that depends on them is sent (docs/adr/0112-the-registry-is-pysyncobj-hardened.md). All integers are big-endian.
::

    head    0 magic u32 "RMQJ" | 4 crc u32 of bytes 8..39 | 8 format u16 | 10 reserved u16 | 12 node u32
            16 cluster 16 bytes | 32 made u64
    record  at a multiple of 8:
            0 magic u32 "RMQE" | 4 crc u32 of bytes 8..end | 8 size u32 of the command | 12 previous u32
            16 index u64 | 24 term u64 | 32 synced u64 | 40 committed u64 | 48 command

`previous` is the crc of the record before, so the remains of a failed append are never taken for the next record.
`synced` is the position up to which the file was on disk when the record was written. `made` is the position up to
which it was on disk when the file got its name. Below these positions, bytes that are no record are damage. Above them,
they are a torn append that no message has confirmed.

The file is not mapped: a full disk is an OSError. It is filled with zeroes ahead, which are synced before they are
used, and at least END_ZEROES of them follow the last record, so a file that was cut off can be distinguished from one
with a torn append.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError, IdentityError, StorageError, out_of_space
from raftlog.storage.files.fs import FileSystem, read_file, storage_error, zero_fill
from raftlog.storage.files.sealed_record import HEAD_SIZE, is_intact, refuse_unknown, seal
from raftmq_wire.checksums import crc32c

MAGIC = 0x524D514A
RECORD_MAGIC = 0x524D5145
FORMAT = 10
AHEAD = 1 << 20
"""Bytes that are kept free behind the last record: more than all operations in flight can take."""
STEP = 2 << 20
"""Bytes by which the file grows."""
JOURNAL_BYTES_MAX = 64 << 20
END_ZEROES = 512
ENTRIES_MAX = 1000
"""The most entries of a journal. The journal is compacted at half of them."""

_HEAD = struct.Struct(">HHI16sQ")
_FIRST = HEAD_SIZE + _HEAD.size
_RECORD = struct.Struct(">IIIIQQQQ")
_MAGIC_BYTES = RECORD_MAGIC.to_bytes(4, "big")

NO_OP = b"\x01"
"""The command of the entry that pysyncobj puts at the beginning of a log, and that each new leader appends."""


class Entry(NamedTuple):
    """An entry of the log. The order of its fields is that of pysyncobj's entries."""

    command: bytes
    index: int  # type: ignore[assignment]
    """The Raft index. The name hides the method `tuple.index`, which nobody needs here."""
    term: int


FIRST_ENTRY = Entry(NO_OP, 1, 0)


class _Found(NamedTuple):
    entries: list[Entry]
    committed: int
    end: int
    """The position in the file behind the last record."""
    crc: int
    """The crc of the last record."""


class Journal:
    """The open file of the journal, to which entries are appended. Used by one thread. After a StorageError other than
    OutOfSpaceError, every call that writes fails."""

    def __init__(self, fs: FileSystem, path: Path, cluster: bytes, node: int) -> None:
        """Reads and checks the file, and syncs it (blocking). Raises CorruptLogError if it is damaged or cut off,
        IdentityError if it belongs to another node or cluster, StorageError if it cannot be read or written."""
        self._fs = fs
        self._path = path
        self._failed = False
        self.is_full = self._is_refused = False
        """`is_full`: True if there is no room for more entries: nothing that can wait may be proposed. `_is_refused`:
        True if a write found no space although the file has room, as on a file system that copies what is
        overwritten."""
        self.syncs = 0
        """The number of fdatasyncs for appended entries."""
        try:
            data = read_file(fs, path)
            found = self._scan(data, cluster, node)
            self._file = fs.open(path)
            # Writes the same bytes again: after a killed process or a failed sync, the bytes that were read may be only
            # in the page cache.
            self._file.pwritev([data[: found.end]], 0)
            self._file.fdatasync()
        except OSError as error:
            raise storage_error(fs, "opening", path, error) from error
        self.entries = found.entries
        self.committed = found.committed
        """The newest commit index that was written with an entry, at most the index of the last entry."""
        self._end = self._synced = found.end
        self._crc = found.crc
        self._size = len(data)
        self.tend()

    @classmethod
    def create(cls, fs: FileSystem, path: Path, cluster: bytes, node: int, entries: Sequence[Entry]) -> Journal:
        """Replaces the file, atomically and durably, by one with these entries, and opens it. Raises OutOfSpaceError if
        the disk has no space for the new file; the old file is then unchanged. Raises StorageError for other
        failures."""
        temporary = path.with_name(path.name + ".tmp")
        data, _ = _packed(entries, 0, 0, 0)
        made = _FIRST + len(data)
        head = seal(MAGIC, _HEAD.pack(FORMAT, 0, node, cluster, made))
        try:
            file = fs.open(temporary, create=True)
            try:
                file.truncate(0)
                file.pwritev([head, data], 0)
                zero_fill(file, made, made + AHEAD + END_ZEROES)
                file.fdatasync()
            except OSError:
                file.truncate(0)
                raise
            finally:
                file.close()
            fs.fsync_dir(path.parent)
        except OSError as error:
            raise storage_error(fs, "writing", temporary, error, again=True) from error
        try:
            fs.rename(temporary, path)
            fs.fsync_dir(path.parent)
        except OSError as error:
            raise storage_error(fs, "replacing", path, error) from error
        return cls(fs, path, cluster, node)

    @property
    def last(self) -> Entry:
        """The newest entry."""
        return self.entries[-1]

    def at(self, index: int) -> Entry | None:
        """Returns the entry of that index; None if it is not in the journal."""
        place = index - self.entries[0].index
        return self.entries[place] if 0 <= place < len(self.entries) else None

    def append(self, entries: Sequence[Entry], committed: int) -> None:
        """Appends entries that follow the last one, together with the commit index `committed`. Raises OutOfSpaceError
        if there is no room; the journal is then unchanged. Raises StorageError for other failures."""
        data, crc = _packed(entries, self._crc, self._synced, committed)
        if len(self.entries) + len(entries) > ENTRIES_MAX or self._end + len(data) + END_ZEROES > self._size:
            self.is_full = True
            raise storage_error(self._fs, "appending to", self._path, _no_space(), again=True)
        self._check()
        try:
            self._file.pwritev([data], self._end)
        except OSError as error:
            self._failed = not out_of_space(error)
            self._is_refused = self.is_full = True
            raise storage_error(self._fs, "appending to", self._path, error, again=True) from error
        self.entries.extend(entries)
        self._end += len(data)
        self._crc = crc
        self.tend()

    def sync(self) -> None:
        """Syncs all appended entries to disk, as is required before a message refers to them. Raises StorageError; the
        journal cannot be used after that."""
        if self._end == self._synced:
            return
        self._check()
        self._fdatasync()
        self.syncs += 1
        self._synced = self._end

    def _fdatasync(self) -> None:
        try:
            self._file.fdatasync()
        except OSError as error:
            self._failed = True
            raise storage_error(self._fs, "syncing", self._path, error) from error

    def tend(self) -> None:
        """Extends the file if fewer than AHEAD bytes are free behind the last record. Sets `is_full` while the disk has
        no space or the journal is nearly full, and else clears it. Raises StorageError."""
        if self._is_refused:
            self._is_refused = not self._takes_writes()
        wanted = self._end + AHEAD + END_ZEROES
        if self._size < wanted and wanted <= JOURNAL_BYTES_MAX and not self._extend(wanted + STEP):
            self._extend(wanted)  # enough for now: the disk is not full while it has room for this much
        self.is_full = self._is_refused or self._size < wanted or len(self.entries) >= ENTRIES_MAX - ENTRIES_MAX // 10

    def _takes_writes(self) -> bool:
        """Tests whether the disk takes writes again: overwrites zeroes behind the last record with zeroes. Returns
        False if there is no space. Raises StorageError."""
        try:
            self._file.pwritev([bytes(END_ZEROES)], self._end)
        except OSError as error:
            if out_of_space(error):
                return False
            self._failed = True
            raise storage_error(self._fs, "writing", self._path, error) from error
        return True

    def _extend(self, size: int) -> bool:
        """Extends the file with zeroes to `size` bytes. Returns False if there is no space. The zeroes that were
        already written are then removed again, because saving a vote may need the space. Raises StorageError."""
        try:
            try:
                zero_fill(self._file, self._size, size)
            except OSError as error:
                if not out_of_space(error):
                    raise
                self._file.truncate(self._size)
                return False
        except OSError as error:
            self._failed = True
            raise storage_error(self._fs, "extending", self._path, error) from error
        self._fdatasync()
        self._size = size
        return True

    def close(self) -> None:
        """Closes the file."""
        self._failed = True
        self._file.close()

    def _check(self) -> None:
        if self._failed:
            raise StorageError(f"{self._path} is closed or failed before; the process ends")

    # --- reading -----------------------------------------------------------------------------------------------------

    def _scan(self, data: bytes, cluster: bytes, node: int) -> _Found:
        if not is_intact(MAGIC, data[:_FIRST]):
            raise _damaged(self._path, 0, "its head is none")
        fmt, _, found_node, found_cluster, made = _HEAD.unpack_from(data, HEAD_SIZE)
        refuse_unknown(self._path, fmt, FORMAT)
        if (found_node, found_cluster) != (node, cluster):
            raise IdentityError(
                f"{self._path} belongs to registry node {found_node} of cluster {found_cluster.hex()}, this is "
                f"registry node {node} of cluster {cluster.hex()}. Start it with its own directory."
            )
        entries: list[Entry] = []
        at, crc, committed = _FIRST, 0, 0
        while (record := _record(data, at)) is not None:
            entry, found_crc, previous, _, told = record
            if previous != crc or (entries and not _follows(entries[-1], entry)):
                break
            entries.append(entry)
            at, crc, committed = at + _padded(len(entry.command)), found_crc, max(committed, told)
        if at + END_ZEROES > len(data):
            raise _damaged(self._path, at, "it was cut")
        if at < made:
            raise _damaged(self._path, at, f"the file was made with records up to {made}")
        later = at
        while (later := data.find(_MAGIC_BYTES, later + 1)) >= 0:
            record = _record(data, later) if later % 8 == 0 else None
            if record is not None and record[3] > at:
                raise _damaged(self._path, at, f"the record at {later} was written when they were on disk")
        if not entries or committed > entries[-1].index:
            raise _damaged(self._path, at, f"entries up to {committed} were there")
        return _Found(entries, committed, at, crc)


def _record(data: bytes, at: int) -> tuple[Entry, int, int, int, int] | None:
    """Returns (entry, crc of its record, crc of the record before, `synced`, `committed`) of the record at the position
    `at`. None if there is no valid record."""
    if at + _RECORD.size > len(data):
        return None
    magic, crc, size, previous, index, term, synced, committed = _RECORD.unpack_from(data, at)
    end = at + _RECORD.size + size
    if magic != RECORD_MAGIC or end > len(data) or crc32c(memoryview(data)[at + 8 : end]) != crc:
        return None
    return Entry(data[at + _RECORD.size : end], index, term), crc, previous, synced, committed


def _follows(before: Entry, entry: Entry) -> bool:
    return entry.index == before.index + 1 and entry.term >= before.term


def _padded(command_size: int) -> int:
    return -(-(_RECORD.size + command_size) // 8) * 8


def _packed(entries: Sequence[Entry], crc: int, synced: int, committed: int) -> tuple[bytes, int]:
    """Returns the bytes of the entries' records and the crc of the last one. `crc` is the crc of the record before
    them. The file is on disk up to the position `synced`."""
    parts = []
    for entry in entries:
        size = len(entry.command)
        fields = (size, crc, entry.index, entry.term, synced, committed)
        rest = _RECORD.pack(RECORD_MAGIC, 0, *fields)[8:] + entry.command
        crc = crc32c(rest)
        parts.append(seal(RECORD_MAGIC, rest).ljust(_padded(size), b"\0"))
    return b"".join(parts), crc


def _damaged(path: Path, at: int, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"{path} is damaged at byte {at}: {why}. This process may have confirmed what is no longer there, so it does "
        "not start. Move its directory away and start it empty: the other processes and the groups fill it again."
    )


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
