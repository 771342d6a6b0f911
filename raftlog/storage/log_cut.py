"""The part of the log that cuts a conflict: entries never committed give way to a leader's (Raft paper, 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raftlog.errors import DamagedLogError, FrameError
from raftlog.frame import HEADER_SIZE, FrameHeader, check_follows, tail_after
from raftlog.storage import layout
from raftlog.storage.fs import FileSystem, zero_fill
from raftlog.storage.log_trim import TrimmableLog
from raftlog.storage.sealed_index import load_index
from raftlog.storage.segment import MARK_OFFSETS, Segment, encode_mark, mark_of, newest_seq
from raftlog.storage.trash import Aside, set_aside
from raftlog.types import Entry, LogTail


class CuttableLog(TrimmableLog):
    """See the module. Everything here belongs to the appending thread."""

    __slots__ = ("_directory", "_group_bytes", "_mark_seq", "_marked_end")

    def __init__(
        self, fs: FileSystem, directory: Path, group_id: int, segments: list[Segment], tail: LogTail, mark_seq: int
    ) -> None:
        """`mark_seq`: of the newest mark in the active segment."""
        super().__init__(fs, directory / layout.LOG, group_id, segments, tail)
        self._directory = directory
        self._group_bytes = group_id.to_bytes(4)
        self._mark_seq = mark_seq
        self._marked_end = -1  # so that the first append writes a mark: it outdates CLEAN

    def _check_chain(self, tail: LogTail, entries: Sequence[Entry]) -> LogTail:
        """The tail after `entries`. Raises FrameError unless each follows the one before and is of this group."""
        group = self._group_bytes
        for entry in entries:
            check_follows(tail, entry)
            if entry.header[20:24] != group:
                raise FrameError(f"entry {entry.index} is of another group than {self._group_id}")
            tail = tail_after(tail, entry)
        return tail

    def _write_mark(self, tail: LogTail) -> None:
        """Writes, unsynced, the mark that everything up to `tail` is on disk."""
        file = self._segments[-1].file
        assert file is not None
        seq = self._mark_seq + 1
        file.pwritev([encode_mark(mark_of(tail, seq))], MARK_OFFSETS[seq % 2])
        self._mark_seq = seq  # not before: a write tried again must not go to the slot that is still whole
        self._marked_end = tail.end_position

    def _resolve_overlap(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Skips entries that are here already; at the first that differs, cuts the log before it."""
        low = entries[0].index
        if low < self.first_index:
            raise FrameError(f"entry {low} is below the first entry of the log, {self.first_index}")
        for number, entry in enumerate(entries):
            if entry.index > self._tail.index:
                return entries[number:]
            if not self._is_here(entry):
                if entry.index == 0:
                    raise FrameError("GENESIS differs: the entries are of another cluster")
                if entry.index == self.first_index:
                    raise FrameError(f"entry {entry.index} differs, and the log was trimmed up to it: it is committed")
                rest = entries[number:]
                tail = self._tail_before(entry)
                self._check_chain(tail, rest)  # before anything is removed
                self._cut_from(entry.index, tail)
                return rest
        return ()

    def _is_here(self, entry: Entry) -> bool:
        """Whether the log holds this entry. A damaged one is told by its term: one term has one entry at an index."""
        damaged = self.damage.at_index(entry.index)
        if damaged is None:
            try:
                position = self.position_of(entry.index)
                raw = self.read_at(position, HEADER_SIZE)
                if raw == entry.header and position == entry.position:
                    return True
                FrameHeader(raw, self._group_id)
                return False
            except FrameError:
                damaged = self.find_damage(entry.index, entry.index + 1)
            except DamagedLogError:
                damaged = self.damage.at_index(entry.index)
        term = self._term_of(entry.index)
        if damaged is not None and not damaged.located and damaged.last_index < self._tail.index:
            # Headers were lost, and with them where terms begin: such a hole is accepted only where all was committed.
            return term == entry.term or term != self._term_of(damaged.last_index + 1)
        return term == entry.term

    def _term_of(self, index: int) -> int:
        return self._places(self._segment_of(index)).term(index)

    def _tail_at(self, index: int) -> LogTail:
        """What the tail was after entry `index`. Raises DamagedLogError if its header is lost."""
        base = self._segment_of(index).base
        position = self.position_of(index)
        try:
            frame = FrameHeader(self.read_at(position, HEADER_SIZE), self._group_id)
        except FrameError:
            damaged = self.report_damage(position, HEADER_SIZE)
            if damaged is None:
                raise
            raise damaged.error() from None
        end = frame.position + frame.frame_length
        return LogTail(frame.term, frame.index, end, frame.header_crc, base, frame.timestamp_ms)

    def _tail_before(self, entry: Entry) -> LogTail:
        """The tail that `entry` follows, where that is damaged as the entry tells it."""
        before = entry.index - 1
        try:
            return self._tail_at(before)
        except DamagedLogError:
            base = self._segment_of(before).base
            return LogTail(self._term_of(before), before, entry.position, entry.parent, base, 0)

    def _cut_from(self, index: int, tail: LogTail | None = None) -> None:
        """Removes `index` and all above: marks lowered first, then whole files set aside, then the range zeroed.

        In this order a crash at any point leaves a log that recovery accepts: never bytes missing below a mark, never a
        removed frame that could follow a new one.
        """
        tail = tail or self._tail_at(index - 1)
        end = self._tail.end_position
        with self._cutting:
            while self._segments[-1].header.base_index >= index:
                self._drop_last_segment()
            active = self._segments[-1]
            file = active.file
            assert file is not None
            assert active.index is not None
            self._tail = tail
            self.damage.cut(tail.end_position, tail.index, tail.header_crc)
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
        loaded = load_index(self._fs, before, dropped.header.previous, self._group_id)
        for damaged in loaded.damaged:
            self.damage.add(damaged)
        before.index = loaded.places
        before.tell(before.index)
        before.file = self._fs.open(before.path)
        # Its last mark may lie below its end; it is complete, and the mark lowered next says so.
        self._mark_seq = newest_seq(before.file)
        self._tail = dropped.header.previous
        with self._publishing:
            self._segments = (*self._segments[:-2], before)
        why = "a conflict: a leader's log has other entries here"
        aside = Aside(why, position=dropped.base, index=self._tail.index + 1)
        set_aside(self._fs, dropped.path, self._directory / layout.TRASH, aside)
        sidecar = dropped.path.with_suffix(layout.INDEX_SUFFIX)
        if self._fs.exists(sidecar):
            set_aside(self._fs, sidecar, self._directory / layout.TRASH, aside)
