"""Cuts conflicts: entries at the end of the log that were never committed and that a leader's entries replace (Raft
paper, 5.3)."""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.errors import DamagedLogError, FrameError, out_of_space
from raftlog.frame import HEADER_SIZE, FrameHeader, follow
from raftlog.storage.files import layout
from raftlog.storage.files.fs import storage_error, zero_fill
from raftlog.storage.files.trash import TrashReport, set_aside
from raftlog.storage.log.log_reader import LogReader
from raftlog.storage.log.log_state import LogState
from raftlog.storage.log.sync_marks import SyncMarks
from raftlog.storage.segments.sealed_index import load_index
from raftlog.storage.segments.segment import MARK_OFFSETS, Segment, newest_seq
from raftlog.types import Entry, LogTail


class LogCutter:
    """Cuts conflicts from the log. All methods are for the appending thread only."""

    __slots__ = ("_marks", "_reader", "_state")

    def __init__(self, state: LogState, reader: LogReader, marks: SyncMarks) -> None:
        self._state = state
        self._reader = reader
        self._marks = marks

    def resolve_overlap(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Skips entries that the log already contains. At the first one that differs, cuts the log before it. Returns
        the entries to append.

        Raises FrameError, before anything is cut, if the entries cannot replace those of this log. Raises
        OutOfSpaceError if a file cannot be set aside for lack of space: the same call may be made again.
        """
        state = self._state
        low = entries[0].index
        if low < state.first_index:
            raise FrameError(f"entry {low} is below the first entry of the log, {state.first_index}")
        for number, entry in enumerate(entries):
            if entry.index > state.tail.index:
                return entries[number:]
            if not self._is_here(entry):
                if entry.index == 0:
                    raise FrameError("GENESIS differs: the entries are of another cluster")
                if entry.index == state.first_index:
                    raise FrameError(f"entry {entry.index} differs, and the log was trimmed up to it: it is committed")
                rest = entries[number:]
                tail = self._tail_before(entry)
                check_chain(tail, rest, state.group_id)  # checked before any byte is removed
                self._cut_from(entry.index, tail)
                return rest
        return ()

    def _is_here(self, entry: Entry) -> bool:
        """Returns True if the log contains this entry. For a damaged entry the term decides: one term has one entry at
        an index."""
        state = self._state
        damaged = state.damage.at_index(entry.index)
        if damaged is None:
            try:
                position = self._reader.position_of(entry.index)
                raw = self._reader.read_at(position, HEADER_SIZE)
                if raw == entry.header and position == entry.position:
                    return True
                FrameHeader(raw, state.group_id)
                return False
            except FrameError:
                damaged = self._reader.find_damage(entry.index, entry.index + 1)
            except DamagedLogError:
                damaged = state.damage.at_index(entry.index)
        term = self._term_of(entry.index)
        if damaged is not None and not damaged.located and damaged.last_index < state.tail.index:
            # Headers were lost, and with them the indexes at which terms begin. Recovery accepts such a hole only if
            # all of its entries are committed. If the term changes within the hole, every entry there counts as equal.
            return term == entry.term or term != self._term_of(damaged.last_index + 1)
        return term == entry.term

    def _term_of(self, index: int) -> int:
        state = self._state
        return state.segment_index(state.segment_of(index)).term(index)

    def _tail_before(self, entry: Entry) -> LogTail:
        """Returns the log's tail before `entry`. If the entry before it is damaged, takes that entry's end and checksum
        from the header of `entry`."""
        before = entry.index - 1
        try:
            return self._reader.tail_at(before)
        except DamagedLogError:
            base = self._state.segment_of(before).base
            return LogTail(self._term_of(before), before, entry.position, entry.parent, base, 0)

    def _cut_from(self, index: int, tail: LogTail) -> None:
        """Removes the entries at `index` and above. `tail` is the tail of what remains.

        Complete segment files are set aside first. Then the sync marks are lowered, then the rest of the range is
        zeroed. In this order a crash at any point leaves a log that recovery accepts: bytes are never missing below a
        mark, and a removed frame can never follow a new one.
        """
        state = self._state
        end = state.tail.end_position
        with state.cutting:
            while state.segments[-1].header.base_index >= index:
                self._drop_last_segment()
            active = state.segments[-1]
            file = active.file
            assert file is not None
            assert active.index is not None
            state.tail = tail
            state.damage.cut(tail.end_position, tail.index, tail.header_crc)
            active.index.cut(index)
            # both marks are lowered: the older one would otherwise still say that the removed range is on disk
            for _ in MARK_OFFSETS:
                self._marks.write(tail)
                file.fdatasync()
            stop = min(active.file_offset(end), file.size())
            start = active.file_offset(tail.end_position)
            if stop > start:
                zero_fill(file, start, stop)
                file.fdatasync()

    def _drop_last_segment(self) -> None:
        """Sets the last file aside, and makes the one before it active again. Raises OutOfSpaceError if there is no
        space for the report in trash/: the log is then unchanged."""
        state = self._state
        dropped = state.segments[-1]
        sealed = state.segments[-2]
        # A new object is a new key in the caches of LogState. What they hold for `sealed` refers to its end at the
        # roll.
        before = Segment(sealed.path, sealed.header)
        loaded = load_index(state.fs, before, dropped.header.previous, state.group_id)
        before.index = loaded.segment_index
        before.tell(before.index)
        before.file = state.fs.open(before.path)
        seq = newest_seq(before.file)
        self._set_aside(dropped)
        for damaged in loaded.damaged:
            state.damage.add(damaged)
        # The newest mark of `before` may lie below the file's end, although the file is complete on disk. The next mark
        # covers all of it.
        self._marks.go_on_from(seq)
        state.tail = dropped.header.previous
        with state.publishing:
            state.segments = (*state.segments[:-2], before)

    def _set_aside(self, dropped: Segment) -> None:
        """Moves the last file to trash/. Its sidecar goes first, because a segment file without a sidecar is valid."""
        state = self._state
        fs, trash = state.fs, state.directory / layout.TRASH
        why = "a conflict: a leader's log has other entries here"
        report = TrashReport(why, position=dropped.base, index=dropped.header.base_index)
        sidecar = dropped.path.with_suffix(layout.INDEX_SUFFIX)
        try:
            if fs.exists(sidecar):
                set_aside(fs, sidecar, trash, report)
            set_aside(fs, dropped.path, trash, report)
        except OSError as error:
            if out_of_space(error) and fs.exists(dropped.path):
                raise storage_error(fs, "setting aside", dropped.path, error, again=True) from error
            raise


def check_chain(tail: LogTail, entries: Sequence[Entry], group_id: int) -> LogTail:
    """Returns the tail after `entries`. Raises FrameError unless each follows the one before it and is of this
    group."""
    group = group_id.to_bytes(4)
    for entry in entries:
        tail = follow(tail, entry)
        if entry.header[20:24] != group:
            raise FrameError(f"entry {entry.index} is of another group than {group_id}")
    return tail
