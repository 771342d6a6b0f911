"""Writes the sync marks in the active segment's local header (segment.py draws them), on the appending thread."""

from __future__ import annotations

from raftlog.storage.log.log_state import LogState
from raftlog.storage.segments.segment import MARK_OFFSETS, encode_mark, mark_of
from raftlog.types import LogTail


class SyncMarks:
    """Writes sync marks, and knows the newest one. The writer and the cutter share it, on one thread.

    Invariant: a mark is written only for bytes that were synced before, and never over the newest mark.
    """

    __slots__ = ("_state", "end_position", "seq")

    def __init__(self, state: LogState, seq: int) -> None:
        """`seq`: the number of the newest mark in the active segment. The first append always writes a new mark,
        because that makes CLEAN invalid."""
        self._state = state
        self.seq = seq
        self.end_position = -1
        """The position up to which the newest mark says that the log is on disk; -1 if the next append or idle mark
        must write one in any case."""

    def begin_file(self, end_position: int) -> None:
        """Begins with the marks of a new file, because the log rolled. The new file's header already has a mark for
        everything before it (segment.encode_header)."""
        self.seq = 1
        self.end_position = end_position

    def go_on_from(self, seq: int) -> None:
        """Continues with the marks of the file before, which is active again. `seq` is the number of its newest
        mark."""
        self.seq = seq

    def expire(self) -> None:
        """Makes the next append or idle mark write a mark, even if the newest mark already covers the log."""
        self.end_position = -1

    def write(self, tail: LogTail) -> None:
        """Writes the mark that everything up to `tail` is on disk, without a sync. Raises OSError."""
        file = self._state.segments[-1].file
        assert file is not None
        seq = self.seq + 1
        file.pwritev([encode_mark(mark_of(tail, seq))], MARK_OFFSETS[seq % 2])
        # counted up only after the write: a repeated one must use the same slot again and leave the intact one
        self.seq = seq
        self.end_position = tail.end_position
