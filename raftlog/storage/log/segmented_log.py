"""The commit log on disk: segment files of frames without gaps between them, one writer, many readers.

Threads. `append`, `write_idle_mark` and `close` are for one thread (the append lane), `prepare_next` for one background
thread, `repair` for one thread at a time. Any thread may read, and call `trim` and `tell_written`. log_state.py
describes the shared state and its locks, log_writer.py describes durability.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from raftlog.errors import CorruptLogError, FrameError, StorageError
from raftlog.storage.files import genesis as genesis_format
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, storage_error, zero_fill
from raftlog.storage.log.genesis_copy import load_genesis
from raftlog.storage.log.log_cutter import LogCutter
from raftlog.storage.log.log_preparer import LogPreparer
from raftlog.storage.log.log_reader import LogReader
from raftlog.storage.log.log_repairer import LogRepairer
from raftlog.storage.log.log_state import LogState
from raftlog.storage.log.log_trimmer import LogTrimmer
from raftlog.storage.log.log_writer import LogWriter
from raftlog.storage.log.sync_marks import SyncMarks
from raftlog.storage.recovery.recovery_steps import Recovered, Recovery
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, encode_header
from raftlog.types import EMPTY_TAIL, Entry, LogTail


class SegmentedLog:
    """One open log, put together from its parts: LogReader, LogWriter, LogPreparer, LogTrimmer and LogRepairer. Most of
    its attributes are methods of a part, under the same name; the part describes them."""

    __slots__ = (
        "_preparer",
        "_reader",
        "_repairer",
        "_trimmer",
        "_writer",
        "append",
        "damage",
        "entry_at",
        "find_damage",
        "genesis",
        "limit_page_cache",
        "membership_indexes",
        "needs_next",
        "position_of",
        "prepare_next",
        "prepend",
        "read_at",
        "read_entries",
        "read_raw",
        "read_raw_into",
        "remove_files",
        "repair",
        "repairing",
        "report",
        "report_damage",
        "segment_at",
        "segment_size",
        "state",
        "synced_s",
        "tail_at",
        "tell_written",
        "term_ranges",
        "time_syncs",
        "trim",
        "write_idle_mark",
    )

    def __init__(self, fs: FileSystem, directory: Path, group_id: int, recovered: Recovered) -> None:
        """Puts the log together from what recovery found. Callers use `create` or `open`."""
        self.state = state = LogState(fs, directory, group_id, recovered.segments, recovered.tail)
        """The state that the parts share; tests and fault injection use it too."""
        self.damage = state.damage
        self.report = recovered.report
        for damaged in recovered.report.damaged:
            state.damage.add(damaged)
        self._reader = LogReader(state)
        self.genesis = load_genesis(fs, directory, self._reader, group_id)
        self.segment_size = self.genesis.segment_size
        self._trimmer = LogTrimmer(state)
        self._repairer = LogRepairer(state)
        self._preparer = LogPreparer(state, self.segment_size, recovered.report.scanned_from)
        marks = SyncMarks(state, recovered.mark_seq)
        self._writer = LogWriter(state, marks, LogCutter(state, self._reader, marks), self._preparer)
        # These attributes are the parts' own methods, and not methods here that call them. Some are called for every
        # batch or every pull, where one more call would be measurable.
        self.append = self._writer.append
        self.needs_next = self._preparer.needs_next
        self.read_entries = self._reader.read_entries
        self.read_at = self._reader.read_at
        self.limit_page_cache = self._preparer.page_cache.begin
        self.time_syncs = self._writer.time_syncs
        self.synced_s: Callable[[], float] = partial(getattr, self._writer, "synced_s")
        self.term_ranges = self._reader.term_ranges
        self.membership_indexes = self._reader.membership_indexes
        self.read_raw = self._reader.read_raw
        self.read_raw_into = self._reader.read_raw_into
        self.segment_at = self._reader.segment_at
        self.entry_at = self._reader.entry_at
        self.position_of = self._reader.position_of
        self.tail_at = self._reader.tail_at
        self.report_damage = self._reader.report_damage
        self.find_damage = self._reader.find_damage
        self.tell_written = self._writer.tell_written
        self.write_idle_mark = self._writer.write_idle_mark
        self.prepare_next = self._preparer.prepare_next
        self.trim = self._trimmer.trim
        self.remove_files = self._trimmer.remove_files
        self.prepend = self._trimmer.prepend
        self.repair = self._repairer.repair
        self.repairing = self._repairer.repairing

    @classmethod
    def create(cls, fs: FileSystem, directory: Path, *, genesis: Entry, segment_size: int) -> SegmentedLog:
        """Makes DATA/log with its first segment and GENESIS in it, durably.

        Raises StorageError, and FrameError if `genesis` is not for this segment size.
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
        """Opens and recovers DATA/log (recovery_table.py has the table; `report` and `damage` say what was found and
        done).

        `now_ms`: wall clock, for the reports in trash/. `committed_index`: the highest index that the caller knows to
        be committed. Raises LogGoneError, CorruptLogError for files that cannot be one log, and StorageError.
        """
        recovery = Recovery(fs, directory, group_id, now_ms=now_ms, committed_index=committed_index)
        try:
            return cls(fs, directory, group_id, recovery.run())
        except OSError as error:
            raise storage_error(fs, "opening", directory / layout.LOG, error) from error
        except FrameError as error:
            raise CorruptLogError(f"{directory / layout.LOG}: {error}") from error

    # The extent of the log

    @property
    def first_index(self) -> int:
        """Index of the oldest entry in this log."""
        return self.state.first_index

    @property
    def first_position(self) -> int:
        """Position of the oldest entry in this log."""
        return self.state.first_position

    @property
    def previous(self) -> LogTail:
        """The tail just before the oldest entry in this log; `EMPTY_TAIL` before GENESIS."""
        return self.state.previous

    @property
    def tail(self) -> LogTail:
        """The last entry that is written and synced."""
        return self.state.tail

    def close(self, clean: bool) -> None:
        """Calls `LogWriter.close`."""
        self._writer.close(clean)
