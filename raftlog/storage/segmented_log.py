"""The commit log on disk: segment files of dense frames, one writer, many readers.

Threads. `append`, `write_idle_mark` and `close` belong to one thread (the append lane); `prepare_next` to one
background thread; `repair` to one thread at a time; what log_reader.py has, to anybody.

Durability. Data of batch n and the sync mark of batch n-1 go out under one fdatasync. A file gets its final name only
when everything in the file before it is on disk, so only the last file can be torn. Any failed call is final, but for a
write that found no space: nothing of it counts, and the same append may be tried again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from raftlog.errors import CorruptLogError, FrameError, StorageError, out_of_space
from raftlog.storage import active_index, layout
from raftlog.storage import genesis as genesis_format
from raftlog.storage.fs import ZERO_CHUNK, File, FileSystem, storage_error, write_file, zero_fill
from raftlog.storage.genesis import Genesis
from raftlog.storage.genesis_copy import load_genesis
from raftlog.storage.log_cut import CuttableLog
from raftlog.storage.recovery import Recovered, Recovery, RecoveryReport
from raftlog.storage.segment import LOCAL_HEADER_SIZE, Segment, decode_header, encode_header, encode_mark, mark_of
from raftlog.storage.segment_index import SegmentIndex, encode_index
from raftlog.types import EMPTY_TAIL, FLAG_ROLL, Entry, EntryId, LogTail

_PREPARE_SYNC_CHUNKS = 8
"""Chunks of zeroes between syncs: the background file never owes the disk much when an append wants to sync."""


class SegmentedLog(CuttableLog):
    """See the module. Entries are those the caller built; their bytes are written as they are and never copied."""

    __slots__ = (
        "_closed",
        "_failure",
        "_kept_end",
        "_loose_sidecars",
        "_prepared",
        "_preparing",
        "genesis",
        "on_written",
        "report",
        "segment_size",
    )

    def __init__(self, fs: FileSystem, directory: Path, group_id: int, recovered: Recovered) -> None:
        """Use `create` or `open`."""
        super().__init__(fs, directory, group_id, recovered.segments, recovered.tail, recovered.mark_seq)
        self._prepared: File | None = None
        self._preparing = threading.Lock()
        """Held while the next file is zeroed; `close` waits for it, so that no later owner's file is zeroed too."""
        self._kept_end = recovered.report.scanned_from
        """What active.idx covers, or need not."""
        self._loose_sidecars: deque[Path] = deque()
        """Written at a roll, not synced yet."""
        self._failure: str | None = None
        self._closed = False
        self.on_written: Callable[[EntryId], None] | None = None
        """Called on the appending thread when everything up to an entry was handed to the operating system."""
        self.report: RecoveryReport = recovered.report
        for damaged in recovered.report.damaged:
            self.damage.add(damaged)
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
    def open(
        cls, fs: FileSystem, directory: Path, *, group_id: int, now_ms: int = 0, committed_index: int = -1
    ) -> SegmentedLog:
        """Recovers DATA/log (recovery_table.py has the table; `report` and `damage` say what was found and done).

        `now_ms`: wall clock, for the reports in trash/. `committed_index`: what the caller knows to be committed.
        Raises LogGoneError, CorruptLogError for what cannot be one log, and StorageError.
        """
        recovery = Recovery(fs, directory, group_id, now_ms=now_ms, committed_index=committed_index)
        try:
            return cls(fs, directory, group_id, recovery.run())
        except OSError as error:
            raise storage_error(fs, "opening", directory / layout.LOG, error) from error
        except FrameError as error:
            raise CorruptLogError(f"{directory / layout.LOG}: {error}") from error

    # Appending

    def append(self, entries: Sequence[Entry]) -> None:
        """Writes entries that follow the tail, or that replace a conflicting end of the log; returns when durable.

        Entries already here, byte for byte, are skipped: the log is cut only where it differs (Raft paper, 5.3).
        Raises FrameError if the entries do not follow (nothing is written), OutOfSpaceError if there is no room for
        them now (the tail may have moved to the end of a file), and any other StorageError if a call fails: then the
        log refuses everything, what was durable before stays.
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
        except OSError as error:  # a cut that broke off half-way is recovery's to finish
            raise self._fail("appending to", error) from error
        try:
            self._write(entries)
        except OSError as error:
            if not out_of_space(error):
                raise self._fail("appending to", error) from error
            self._forget_unwritten()
            raise storage_error(self._fs, "appending to", self._segments[-1].path, error, again=True) from error
        self._tail = tail

    def _write(self, entries: Sequence[Entry]) -> None:
        active = self._segments[-1]
        index = active.index
        assert index is not None
        buffers: list[bytes] = []
        at = entries[0].position
        if self._marked_end != self._tail.end_position and not entries[0].flags & FLAG_ROLL:
            self._write_mark(self._tail)
        for entry in entries:
            if entry.flags & FLAG_ROLL and active.base != entry.position:  # else its file was made in an earlier try
                active = self._roll(active, buffers, at, entry)
                index = active.index
                assert index is not None
                buffers = []
                at = entry.position
            buffers.append(entry.header)
            buffers.append(entry.payload)
            index.add(entry.position, entry.term, entry.type)
        file = active.file
        assert file is not None
        file.pwritev(buffers, LOCAL_HEADER_SIZE + at - active.header.base_position)
        if self.on_written is not None:
            self.on_written(entries[-1].id)
        self._sync(file)

    def _sync(self, file: File) -> None:
        """A failure is final, for whatever reason: raised as StorageError, past those who would try again."""
        try:
            file.fdatasync()
        except OSError as error:
            raise self._fail("syncing", error) from error

    def _forget_unwritten(self) -> None:
        """The index knows again what is on disk, and no more."""
        index = self._segments[-1].index
        assert index is not None
        with self._cutting:
            index.cut(self._tail.index + 1)

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
        except OSError as error:
            if out_of_space(error):
                return  # the next append writes it
            raise self._fail("marking", error) from error
        self._sync(file)

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
            self._sync(file)  # before the new name exists: only the last file may ever be torn
        end = self._tail_at_roll(old, first, buffers)
        self._write_sidecar(old, end, durable=False)
        new = self._open_next(end)
        with self._publishing:
            self._segments = (*self._segments, new)
        self._tail = end  # durable, and what a next try starts from should the rest find no space
        self._mark_seq = 1
        self._marked_end = end.end_position
        old.file = None
        old.index = None
        return new

    def _tail_at_roll(self, old: Segment, first: Entry, buffers: list[bytes]) -> LogTail:
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
        self._sync(file)
        self._fs.rename(temporary, path)
        self._prepared = None
        try:
            self._fs.fsync_dir(self._log)
        except OSError as error:
            raise self._fail("naming a file in", error) from error
        file.path = path
        segment = Segment(path, decode_header(page, path, self._group_id))
        segment.file = file
        segment.index = SegmentIndex(segment.base, segment.header.base_index)
        segment.tell(segment.index)
        return segment

    def _write_sidecar(self, segment: Segment, tail: LogTail, *, durable: bool) -> None:
        """Synced only on an orderly stop: a sidecar that a crash loses is rebuilt, and a roll is on the hot path."""
        assert segment.index is not None
        if not self._places_known(segment):
            return
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
        self._loose_sidecars.append(path)

    def _places_known(self, segment: Segment) -> bool:
        """Whether it is known where every entry of it begins: else no index of it may be believed later."""
        return all(damaged.located or damaged.end_position <= segment.base for damaged in self.damage.ranges)

    def needs_next(self) -> bool:
        """Whether `prepare_next` has something to do."""
        if self._failure is not None or self._closed:
            return False
        used = self._tail.end_position - self._segments[-1].base
        unprepared = self._prepared is None and used * 4 >= self.segment_size
        return unprepared or bool(self._loose_sidecars) or self._index_is_due()

    def _index_is_due(self) -> bool:
        index = self._segments[-1].index
        return index is not None and active_index.is_due(index, self._tail, self._kept_end)

    def prepare_next(self, *, zeroed: bool = True) -> None:
        """Makes the next segment's file at its full length, and brings on disk what the next start would scan for.
        Called by one background thread, in parallel with appends.

        `zeroed`: its blocks are written, so that later syncs need no allocation; else it is a hole, which costs
        nothing now. Raises StorageError or DiskFullError; the log goes on without (and makes its file at the roll).
        """
        with self._preparing:
            self._keep_indexes()
            if self._prepared is None:
                self._prepared = self._full_length_file(self._log / layout.NEXT_SEGMENT, zeroed=zeroed)

    def _keep_indexes(self) -> None:
        """Syncs sidecars of sealed segments and writes active.idx, if due."""
        path = self._log
        try:
            while self._loose_sidecars:
                path = self._loose_sidecars[0]
                if self._fs.exists(path):
                    file = self._fs.open(path)
                    file.fdatasync()
                    file.close()
                    self._fs.fsync_dir(self._log)
                self._loose_sidecars.popleft()
            if self._index_is_due() and (kept := self._index_now()) is not None:
                path = self._log / layout.ACTIVE_INDEX
                active_index.write(self._fs, self._log, kept.places, kept.tail, self._group_id)
                self._kept_end = kept.tail.end_position
        except OSError as error:
            raise storage_error(self._fs, "keeping", path, error) from error

    def _index_now(self) -> active_index.Point | None:
        """A copy of the active segment's index up to the tail; None if there is nothing in it, or not all is known."""
        with self._cutting:
            tail, active = self._tail, self._segments[-1]
            index = active.index
            count = 0 if index is None else tail.index + 1 - index.base_index
            if index is None or count <= 0 or not self._places_known(active):
                return None
            places = SegmentIndex(index.base, index.base_index)
            places.offsets = index.offsets[:count]
            places.terms = [run for run in tuple(index.terms) if run[0] <= tail.index]
            places.members = [number for number in tuple(index.members) if number <= tail.index]
            return active_index.Point(tail, places)

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
                if not self._places_known(active):
                    return  # the next start scans, and finds the damage again
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
