"""Appends to the log, rolls to the next segment file, and closes it. Everything here is for the appending thread only.

Durability. The data of batch n and the sync mark of batch n-1 are written under one fdatasync. A file gets its final
name only when everything in the file before it is on disk, so only the last file can be torn. Every failed call is
final, with one exception: if a write finds no space, none of it counts, and the same append may be tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from raftlog.errors import StorageError, out_of_space
from raftlog.storage.files import layout
from raftlog.storage.files.fs import File, storage_error, write_file
from raftlog.storage.log.log_cutter import LogCutter, check_chain
from raftlog.storage.log.log_preparer import LogPreparer
from raftlog.storage.log.log_state import LogState
from raftlog.storage.log.sync_marks import SyncMarks
from raftlog.storage.segments.segment import (
    LOCAL_HEADER_SIZE,
    Segment,
    decode_header,
    encode_header,
    encode_mark,
    mark_of,
)
from raftlog.storage.segments.segment_index import SegmentIndex, encode_index
from raftlog.types import FLAG_ROLL, Entry, EntryId, LogTail


class LogWriter:
    """Appends entries to the log, exactly as the caller built them; their bytes are never copied."""

    __slots__ = ("_clock_s", "_cutter", "_marks", "_on_written", "_preparer", "_state", "synced_s")

    def __init__(self, state: LogState, marks: SyncMarks, cutter: LogCutter, preparer: LogPreparer) -> None:
        self._state = state
        self._marks = marks
        self._cutter = cutter
        self._preparer = preparer
        self._on_written: Callable[[EntryId], None] | None = None
        self._clock_s: Callable[[], float] | None = None
        self.synced_s = 0.0
        """The seconds that syncs have taken since `time_syncs` was called."""

    def time_syncs(self, clock_s: Callable[[], float]) -> None:
        """Measures later syncs with this clock, in seconds; the log itself has no clock. Called before the first
        append."""
        self._clock_s = clock_s

    def tell_written(self, call: Callable[[EntryId], None] | None) -> None:
        """Calls `call` in each later append, after its last write and before the sync, on the appending thread:
        everything up to the given entry has then been passed to the operating system. Replaces the previous listener;
        None removes it. Any thread may call this."""
        self._on_written = call

    def append(self, entries: Sequence[Entry]) -> None:
        """Appends entries that follow the log's tail, or that replace a conflicting end of the log; returns when they
        are durable.

        Entries that the log already has, byte for byte, are skipped: the log is cut only where it differs (Raft paper,
        5.3). Raises FrameError if the entries do not follow (nothing is written), OutOfSpaceError if there is no space
        for them now (the tail may have moved to the end of a file), and any other StorageError if a call fails: then
        the log refuses everything, what was durable before stays.
        """
        state = self._state
        if state.failure is not None:
            raise StorageError(state.failure)
        if not entries:
            return
        try:
            if entries[0].index <= state.tail.index:
                entries = self._cutter.resolve_overlap(entries)
                if not entries:
                    return
            tail = check_chain(state.tail, entries, state.group_id)
        except OSError as error:  # a cut failed half-way, and not for lack of space: only recovery may finish it
            raise self._fail("appending to", error) from error
        try:
            self._write(entries)
        except OSError as error:
            if not out_of_space(error):
                raise self._fail("appending to", error) from error
            self._forget_unwritten()
            raise storage_error(state.fs, "appending to", state.segments[-1].path, error, again=True) from error
        state.tail = tail

    def _write(self, entries: Sequence[Entry]) -> None:
        state = self._state
        active = state.segments[-1]
        index = active.index
        assert index is not None
        buffers: list[bytes] = []
        at = entries[0].position
        if self._marks.end_position != state.tail.end_position and not entries[0].flags & FLAG_ROLL:
            self._marks.write(state.tail)
        for entry in entries:
            # if the bases are equal, an earlier try of this append already made the file
            if entry.flags & FLAG_ROLL and active.base != entry.position:
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
        if (on_written := self._on_written) is not None:
            on_written(entries[-1].id)
        self._sync(file)

    def _sync(self, file: File) -> None:
        """Syncs the file. Every failure is final: it is raised as a StorageError that no caller retries."""
        clock_s = self._clock_s
        began_s = clock_s() if clock_s is not None else 0.0
        try:
            file.fdatasync()
        except OSError as error:
            raise self._fail("syncing", error) from error
        if clock_s is not None:
            self.synced_s += clock_s() - began_s

    def _forget_unwritten(self) -> None:
        """Removes entries that are not on disk from the active segment's index."""
        state = self._state
        index = state.segments[-1].index
        assert index is not None
        with state.cutting:
            index.cut(state.tail.index + 1)

    def write_idle_mark(self) -> None:
        """Writes and syncs the sync mark of the last batch on its own, if the batch has none yet. The append lane calls
        this when it is idle. Raises StorageError if a call fails or the log refuses to be written; does nothing if
        there is no space for the mark."""
        state = self._state
        if state.failure is not None:
            raise StorageError(state.failure)
        if self._marks.end_position == state.tail.end_position:
            return
        file = state.segments[-1].file
        assert file is not None
        try:
            self._marks.write(state.tail)
        except OSError as error:
            if out_of_space(error):
                return  # the next append writes the mark
            raise self._fail("marking", error) from error
        self._sync(file)

    def _fail(self, doing: str, error: OSError) -> StorageError:
        state = self._state
        failure = storage_error(state.fs, doing, state.segments[-1].path, error)
        state.failure = str(failure)
        return failure

    # Rolling

    def _roll(self, old: Segment, buffers: list[bytes], at: int, first: Entry) -> Segment:
        """Rolls to the next segment file: seals `old` with `buffers` at its end and opens the file that begins with
        `first`."""
        state = self._state
        file = old.file
        assert file is not None
        assert old.index is not None
        if buffers:
            file.pwritev(buffers, old.file_offset(at))
            # synced before the new file gets its name, because only the last file of the log may be torn
            self._sync(file)
        end = self._tail_at_roll(old, first, buffers)
        self._write_loose_sidecar(old, end)
        new = self._open_next(end)
        with state.publishing:
            state.segments = (*state.segments, new)
        state.tail = end  # all of this is durable; if the rest finds no space, the next try continues from here
        self._marks.begin_file(end.end_position)
        self._give_back(file, old.file_offset(end.end_position))
        old.file = None
        old.index = None
        return new

    def _give_back(self, file: File, end: int) -> None:
        """Truncates a sealed file after its last frame if more than half of the file is unused: a file that was closed
        early was prepared at its full length. This only saves space, so a failure or a crash here costs nothing else.
        """
        with suppress(OSError):
            if file.size() > 2 * end:
                file.truncate(end)

    def _tail_at_roll(self, old: Segment, first: Entry, buffers: list[bytes]) -> LogTail:
        if not buffers:
            return self._state.tail
        header = buffers[-2]
        term, index, _, timestamp_ms = (int.from_bytes(header[at : at + 8]) for at in (32, 40, 48, 56))
        return LogTail(term, index, first.position, first.parent, old.base, timestamp_ms)

    def _open_next(self, end: LogTail) -> Segment:
        # The preparer gives the file up only after the rename: before it, `prepare_next` would open this file by its
        # temporary name and zero it.
        state = self._state
        prepared = self._preparer.prepared
        temporary = state.log / (layout.NEXT_SEGMENT if prepared else layout.ROLL_SEGMENT)
        path = state.log / layout.segment_name(end.end_position)
        file = prepared
        if file is None:
            file = state.fs.open(temporary, create=True)
            file.truncate(0)
        page = encode_header(end, state.group_id)
        file.pwritev([page], 0)
        self._sync(file)
        state.fs.rename(temporary, path)
        self._preparer.give_up()
        try:
            state.fs.fsync_dir(state.log)
        except OSError as error:
            raise self._fail("naming a file in", error) from error
        file.path = path
        segment = Segment(path, decode_header(page, path, state.group_id))
        segment.file = file
        segment.index = SegmentIndex(segment.base, segment.header.base_index)
        segment.tell(segment.index)
        return segment

    def _write_loose_sidecar(self, segment: Segment, end: LogTail) -> None:
        """Writes the sidecar of a sealed segment without a sync, because a roll is on the hot path. The preparer syncs
        it; a sidecar that a crash loses is rebuilt."""
        state = self._state
        assert segment.index is not None
        if not state.segment_index_known(segment):
            return
        path = segment.path.with_suffix(layout.INDEX_SUFFIX)
        write_file(state.fs, path, b"".join(encode_index(segment.index, end, state.group_id)), durable=False)
        self._preparer.loose_sidecars.append(path)

    def close(self, clean: bool) -> None:
        """Closes all files of the log. With `clean`, first writes the files that spare the next opening a scan.

        Raises StorageError if that fails: nothing is lost, and the next opening scans.
        """
        if self._preparer.closed:
            return
        self._preparer.close()
        state = self._state
        active = state.segments[-1]
        try:
            if clean and state.failure is None:
                assert active.file is not None
                self._marks.expire()
                self.write_idle_mark()
                self._write_clean(active)
        except OSError as error:
            raise self._fail("closing", error) from error
        finally:
            state.failure = state.failure or f"the log in {state.log} is closed"
            self._preparer.give_up()
            active.file = None
            state.open_sealed.cache_clear()

    def _write_clean(self, active: Segment) -> None:
        """Writes the active segment's sidecar and CLEAN, durably. The next opening trusts them and scans nothing."""
        state = self._state
        assert active.index is not None
        if not state.segment_index_known(active):
            return  # without CLEAN the next start scans the segment, and finds the damage again
        sidecar = active.path.with_suffix(layout.INDEX_SUFFIX)
        write_file(state.fs, sidecar, b"".join(encode_index(active.index, state.tail, state.group_id)))
        write_file(state.fs, state.log / layout.CLEAN, encode_mark(mark_of(state.tail, self._marks.seq)))
