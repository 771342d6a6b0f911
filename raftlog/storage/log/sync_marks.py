"""The sync marks in the active segment's local header (segment.py draws them), as the appending thread writes them."""

from __future__ import annotations

from raftlog.storage.log.log_state import LogState
from raftlog.storage.segments.segment import MARK_OFFSETS, encode_mark, mark_of
from raftlog.types import LogTail


class SyncMarks:
    """The newest mark, and the writing of the next. Shared by the writer and the cutter; one thread.

    Invariant: a mark is written only for what was synced before, and never over the newest one.
    """

    __slots__ = ("_state", "end_position", "seq")

    def __init__(self, state: LogState, seq: int) -> None:
        """`seq`: of the newest mark in the active segment. The first append writes one whatever that says: it outdates
        CLEAN."""
        self._state = state
        self.seq = seq
        self.end_position = -1
        """The position up to which the newest mark vouches; -1 if the next append or idle mark must write one in any
        case."""

    def begin_file(self, end_position: int) -> None:
        """The log rolled: the new file's header has a mark for all that is before it (segment.encode_header)."""
        self.seq = 1
        self.end_position = end_position

    def go_on_from(self, seq: int) -> None:
        """The file before is active again, and `seq` is its newest mark."""
        self.seq = seq

    def expire(self) -> None:
        """Has a mark written again for what the newest one names already."""
        self.end_position = -1

    def write(self, tail: LogTail) -> None:
        """Writes, unsynced, the mark that everything up to `tail` is on disk. Raises OSError."""
        file = self._state.segments[-1].file
        assert file is not None
        seq = self.seq + 1
        file.pwritev([encode_mark(mark_of(tail, seq))], MARK_OFFSETS[seq % 2])
        self.seq = seq  # not before: a write tried again must not go to the slot that is still whole
        self.end_position = tail.end_position
