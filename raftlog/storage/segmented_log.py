"""The commit log on disk: segment files of dense frames, one writer, many readers.

Threads. `append`, `write_idle_mark` and `close` belong to one thread (the append lane); `prepare_next` to one
background thread; what log_reader.py has, to anybody.

Durability. Data of batch n and the sync mark of batch n-1 go out under one fdatasync. A file gets its final name only
when everything in the file before it is on disk, so only the last file can be torn. Any failed call is final.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from raftlog.errors import CorruptLogError, FrameError, StorageError, out_of_space
from raftlog.frame import HEADER_SIZE, check_follows, tail_after
from raftlog.storage import genesis as genesis_format
from raftlog.storage import layout
from raftlog.storage.fs import ZERO_CHUNK, File, FileSystem, storage_error, write_file, zero_fill
from raftlog.storage.genesis import Genesis
from raftlog.storage.genesis_copy import load_genesis
from raftlog.storage.recovery import Recovered, Recovery, RecoveryReport
from raftlog.storage.repairable_log import RepairableLog
from raftlog.storage.scan import load_index
from raftlog.storage.segment import (
    LOCAL_HEADER_SIZE,
    MARK_OFFSETS,
    Segment,
    decode_header,
    encode_header,
    encode_mark,
    mark_of,
    newest_seq,
)
from raftlog.storage.segment_index import SegmentIndex, encode_index
from raftlog.types import EMPTY_TAIL, FLAG_ROLL, Entry, LogTail

_PREPARE_SYNC_CHUNKS = 8
"""Chunks of zeroes between syncs: the background file never owes the disk much when an append wants to sync."""


class SegmentedLog(RepairableLog):
    """See the module. Entries are those the caller built; their bytes are written as they are and never copied."""

    __slots__ = (
        "_closed", "_directory", "_failure", "_group_bytes", "_mark_seq", "_marked_end", "_prepared",
        "_preparing", "genesis", "report", "segment_size",
    )  # fmt: skip

    def __init__(self, fs: FileSystem, directory: Path, group_id: int, recovered: Recovered) -> None:
        """Use `create` or `open`."""
        super().__init__(fs, directory / layout.LOG, group_id, recovered.segments, recovered.tail)
        self._directory = directory
        self._group_bytes = group_id.to_bytes(4)
        self._mark_seq = recovered.mark_seq
        self._marked_end = -1  # so that the first append writes a mark: it outdates CLEAN
        self._prepared: File | None = None
        self._preparing = threading.Lock()
        """Held while the next file is zeroed; `close` waits for it, so that no later owner's file is zeroed too."""
        self._failure: str | None = None
        self._closed = False
        self.report: RecoveryReport = recovered.report
        self.genesis: Genesis = load_genesis(fs, directory, self, group_id)
        self.segment_size: int = self.genesis.segment_size

    @classmethod
    def create(cls, fs: FileSystem, directory: Path, *, genesis: Entry, segment_size: int) -> SegmentedLog:
        """Makes DATA/log with its first segment and GENESIS in it, durably.

        Raises StorageError, and FrameError if `genesis` is not one for this segment size.
        """
        decoded = genesis_format.decode(genesis)
        if decoded.segment_size != segment_size:
            raise FrameError(f"GENESIS says segment_size {decoded.segment_size}, not {segment_size}")
        log = directory / layout.LOG
        path = log / layout.segment_name(0)
        try:
            fs.mkdir(log)
            if layout.segment_bases(fs.listdir(log)):
                raise StorageError(f"{log} already holds a log: open it, or choose an empty directory")
            file = fs.open(log / layout.ROLL_SEGMENT, create=True)
            file.truncate(0)
            zero_fill(file, 0, LOCAL_HEADER_SIZE + segment_size)
            file.pwritev([encode_header(EMPTY_TAIL, decoded.group_id), genesis.header, genesis.payload], 0)
            file.fdatasync()
            file.close()
            fs.rename(log / layout.ROLL_SEGMENT, path)
            fs.fsync_dir(log)
        except OSError as error:
            raise storage_error(fs, "creating", path, error) from error
        return cls.open(fs, directory, group_id=decoded.group_id)

    @classmethod
    def open(cls, fs: FileSystem, directory: Path, *, group_id: int) -> SegmentedLog:
        """Recovers DATA/log (recovery.py has the table; `report` says what was done).

        Raises CorruptLogError for damage below the sync mark, and StorageError.
        """
        try:
            return cls(fs, directory, group_id, Recovery(fs, directory, group_id).run())
        except OSError as error:
            raise storage_error(fs, "opening", directory / layout.LOG, error) from error
        except FrameError as error:
            raise CorruptLogError(f"{directory / layout.LOG}: {error}") from error

    # Appending

    def append(self, entries: Sequence[Entry]) -> None:
        """Writes entries that follow the tail, or that replace a conflicting end of the log; returns when durable.

        Entries already here, byte for byte, are skipped: the log is cut only where it differs (Raft paper, 5.3).
        Raises FrameError if the entries do not follow (nothing is written), StorageError or DiskFullError if a call
        fails: then the log refuses everything, what was durable before stays.
        """
        if self._failure is not None:
            raise StorageError(self._failure)
        if not entries:
            return
        try:
            if entries[0].index <= self._tail.index:
                entries = self._resolve_overlap(entries)
                if not entries:
                    return
            tail = self._check_chain(self._tail, entries)
            self._write(entries)
        except OSError as error:
            raise self._fail("appending to", error) from error
        self._tail = tail

    def _check_chain(self, tail: LogTail, entries: Sequence[Entry]) -> LogTail:
        """The tail after `entries`. Raises FrameError unless each follows the one before and is of this group."""
        group = self._group_bytes
        for entry in entries:
            check_follows(tail, entry)
            if entry.header[20:24] != group:
                raise FrameError(f"entry {entry.index} is of another group than {self._group_id}")
            tail = tail_after(tail, entry)
        return tail

    def _write(self, entries: Sequence[Entry]) -> None:
        active = self._segments[-1]
        index = active.index
        assert index is not None
        buffers: list[bytes] = []
        at = entries[0].position
        if self._marked_end != self._tail.end_position and not entries[0].flags & FLAG_ROLL:
            self._write_mark(self._tail)
        for entry in entries:
            if entry.flags & FLAG_ROLL:
                active = self._roll(active, buffers, at, entry)
                index = active.index
                assert index is not None
                buffers = []
                at = entry.position
            buffers.append(entry.header)
            buffers.append(entry.payload)
            index.add(entry.position, entry.term)
        file = active.file
        assert file is not None
        file.pwritev(buffers, LOCAL_HEADER_SIZE + at - active.header.base_position)
        file.fdatasync()

    def _write_mark(self, tail: LogTail) -> None:
        """Writes, unsynced, the mark that everything up to `tail` is on disk."""
        file = self._segments[-1].file
        assert file is not None
        self._mark_seq += 1
        file.pwritev([encode_mark(mark_of(tail, self._mark_seq))], MARK_OFFSETS[self._mark_seq % 2])
        self._marked_end = tail.end_position

    def write_idle_mark(self) -> None:
        """Writes and syncs the mark for the last batch alone, if it has none yet: the lane calls it when idle."""
        if self._failure is not None:
            raise StorageError(self._failure)
        if self._marked_end == self._tail.end_position:
            return
        file = self._segments[-1].file
        assert file is not None
        try:
            self._write_mark(self._tail)
            file.fdatasync()
        except OSError as error:
            raise self._fail("marking", error) from error

    def _fail(self, doing: str, error: OSError) -> StorageError:
        failure = storage_error(self._fs, doing, self._segments[-1].path, error)
        self._failure = str(failure)
        return failure

    # Rolling

    def _roll(self, old: Segment, buffers: list[bytes], at: int, first: Entry) -> Segment:
        """Seals `old` with `buffers` at its end and opens the file that begins with `first`."""
        file = old.file
        assert file is not None
        assert old.index is not None
        if buffers:
            file.pwritev(buffers, old.file_offset(at))
            file.fdatasync()  # before the new name exists: only the last file may ever be torn
        end = self._tail_before(old, first, buffers)
        self._write_sidecar(old, end, durable=False)
        new = self._open_next(end)
        with self._publishing:
            self._segments = (*self._segments, new)
        self._mark_seq = 1
        self._marked_end = end.end_position
        old.file = None
        old.index = None
        return new

    def _tail_before(self, old: Segment, first: Entry, buffers: list[bytes]) -> LogTail:
        if not buffers:
            return self._tail
        header = buffers[-2]
        term, index, _, timestamp_ms = (int.from_bytes(header[at : at + 8]) for at in (32, 40, 48, 56))
        return LogTail(term, index, first.position, first.parent, old.base, timestamp_ms)

    def _open_next(self, end: LogTail) -> Segment:
        # Not given up before the rename: until then `prepare_next` would open this very file by its name and zero it.
        prepared = self._prepared
        temporary = self._log / (layout.NEXT_SEGMENT if prepared else layout.ROLL_SEGMENT)
        path = self._log / layout.segment_name(end.end_position)
        file = prepared
        if file is None:
            file = self._fs.open(temporary, create=True)
            file.truncate(0)
        page = encode_header(end, self._group_id)
        file.pwritev([page], 0)
        file.fdatasync()
        self._fs.rename(temporary, path)
        self._prepared = None
        self._fs.fsync_dir(self._log)
        file.path = path
        segment = Segment(path, decode_header(page, path, self._group_id))
        segment.file = file
        segment.index = SegmentIndex(segment.base, segment.header.base_index)
        segment.terms = segment.index.terms
        return segment

    def _write_sidecar(self, segment: Segment, tail: LogTail, *, durable: bool) -> None:
        """Synced only on an orderly stop: a sidecar that a crash loses is rebuilt, and a roll is on the hot path."""
        assert segment.index is not None
        parts = encode_index(segment.index, tail, self._group_id)
        path = segment.path.with_suffix(layout.INDEX_SUFFIX)
        if durable:
            write_file(self._fs, path, b"".join(parts))
            return
        temporary = path.with_name(path.name + ".tmp")
        file = self._fs.open(temporary, create=True)
        file.truncate(0)
        file.pwritev(parts, 0)
        file.close()
        self._fs.rename(temporary, path)

    def needs_next(self) -> bool:
        """Whether `prepare_next` has something to do: a quarter of the active file is used and no next one is ready."""
        used = self._tail.end_position - self._segments[-1].base
        return self._prepared is None and self._failure is None and not self._closed and used * 4 >= self.segment_size

    def prepare_next(self, *, zeroed: bool = True) -> None:
        """Makes the next segment's file at its full length. Called by one background thread, in parallel with appends.

        `zeroed`: its blocks are written, so that later syncs need no allocation; else it is a hole, which costs
        nothing now. Raises StorageError or DiskFullError; the log goes on without (and makes its file at the roll).
        """
        with self._preparing:
            if self._prepared is None:
                self._prepared = self._full_length_file(self._log / layout.NEXT_SEGMENT, zeroed=zeroed)

    def _full_length_file(self, path: Path, *, zeroed: bool) -> File | None:
        """A file that reads as zeroes, synced; None if the log was closed meanwhile."""
        file: File | None = None
        try:
            file = self._fs.open(path, create=True)
            size = LOCAL_HEADER_SIZE + self.segment_size
            step = len(ZERO_CHUNK) * _PREPARE_SYNC_CHUNKS
            for at in range(0, size if zeroed else 0, step):
                if self._closed:
                    return None
                zero_fill(file, at, min(at + step, size))
                file.fdatasync()
            file.truncate(size)
            file.fdatasync()
        except OSError as error:
            if file is not None and out_of_space(error):
                with suppress(OSError):  # what little space is left belongs to the appends
                    file.truncate(0)
            raise storage_error(self._fs, "preparing", path, error) from error
        return file

    # Cutting a conflict

    def _resolve_overlap(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Skips entries that are here already; at the first that differs, cuts the log before it."""
        low = entries[0].index
        if low < self.first_index:
            raise FrameError(f"entry {low} is below the first entry of the log, {self.first_index}")
        for number, entry in enumerate(entries):
            if entry.index > self._tail.index:
                return entries[number:]
            position = self.position_of(entry.index)
            if position != entry.position or self.read_at(position, HEADER_SIZE) != entry.header:
                if entry.index == 0:
                    raise FrameError("GENESIS differs: the entries are of another cluster")
                rest = entries[number:]
                self._check_chain(self._tail_at(entry.index - 1), rest)  # before anything is removed
                self._cut_from(entry.index)
                return rest
        return ()

    def _tail_at(self, index: int) -> LogTail:
        """What the tail was after entry `index`."""
        base = self._segment_of(index).base
        entry = self.read_entries(index, index + 1, 1)[0]
        return tail_after(LogTail(0, index - 1, entry.position, entry.parent, base, 0), entry)

    def _cut_from(self, index: int) -> None:
        """Removes `index` and all above: marks lowered first, then whole files set aside, then the range zeroed.

        In this order a crash at any point leaves a log that recovery accepts: never bytes missing below a mark, never a
        removed frame that could follow a new one.
        """
        tail = self._tail_at(index - 1)
        end = self._tail.end_position
        with self._cutting:
            while self._segments[-1].header.base_index >= index:
                self._drop_last_segment()
            active = self._segments[-1]
            file = active.file
            assert file is not None
            assert active.index is not None
            self._tail = tail
            self.damage.cut(tail.end_position)
            active.index.cut(index)
            for _ in MARK_OFFSETS:  # both: the older one would otherwise promise the removed range again
                self._write_mark(tail)
                file.fdatasync()
            stop = min(active.file_offset(end), file.size())
            start = active.file_offset(tail.end_position)
            if stop > start:
                zero_fill(file, start, stop)
                file.fdatasync()

    def _drop_last_segment(self) -> None:
        dropped = self._segments[-1]
        sealed = self._segments[-2]
        before = Segment(sealed.path, sealed.header)  # a new key: what is cached for the sealed one is of its old end
        before.index = load_index(self._fs, before, dropped.header.previous, self._group_id)
        before.terms = before.index.terms
        before.file = self._fs.open(before.path)
        # Its last mark may lie below its end; it is complete, and the mark lowered next says so.
        self._mark_seq = newest_seq(before.file)
        self._tail = dropped.header.previous
        with self._publishing:
            self._segments = (*self._segments[:-2], before)
        layout.move_to_trash(self._fs, dropped.path, self._directory / layout.TRASH)
        sidecar = dropped.path.with_suffix(layout.INDEX_SUFFIX)
        if self._fs.exists(sidecar):
            layout.move_to_trash(self._fs, sidecar, self._directory / layout.TRASH)

    def close(self, clean: bool) -> None:
        """Lets go of all files. With `clean`, first makes the next opening free of scans.

        Raises StorageError if that fails: nothing is lost, the next opening scans.
        """
        if self._closed:
            return
        self._closed = True
        with self._preparing:  # ends within one step of zeroes
            pass
        active = self._segments[-1]
        try:
            if clean and self._failure is None:
                assert active.file is not None
                self._marked_end = -1
                self.write_idle_mark()
                self._write_sidecar(active, self._tail, durable=True)
                mark = encode_mark(mark_of(self._tail, self._mark_seq))
                write_file(self._fs, self._log / layout.CLEAN, mark)
        except OSError as error:
            raise self._fail("closing", error) from error
        finally:
            self._failure = self._failure or f"the log in {self._log} is closed"
            self._prepared = None
            active.file = None
            self._open.cache_clear()
