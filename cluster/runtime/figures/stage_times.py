"""Keeps the times at which the stages of entries ended on the leader. They show which stage of a request was slow.

The driver records the highest index of each write to the log and of each run of committed entries, with the clock
reading that its turn has anyway: two appends per entry at most, and no clock call.
"""

from __future__ import annotations

from collections import deque

KEPT = 4096
"""The most records per stage. A node makes fewer in the seconds that a slow request takes."""

_Notes = deque[tuple[int, float]]


class StageTimes:
    """The times of two stages. Each record is (highest index, monotonic milliseconds); indexes ascend within a role.
    Event loop only."""

    __slots__ = ("committed", "synced")

    def __init__(self) -> None:
        self.synced: _Notes = deque(maxlen=KEPT)
        """Times at which entries up to the index were on this node's disk."""
        self.committed: _Notes = deque(maxlen=KEPT)
        """Times at which entries up to the index were committed."""

    def clear(self) -> None:
        """Forgets all times, because the role changed and entries of the former term may be replaced."""
        self.synced.clear()
        self.committed.clear()

    def of(self, index: int) -> tuple[float | None, float | None]:
        """Returns the times at which the entry was on this node's disk and was committed; None for a time that is not
        known (yet)."""
        return _first(self.synced, index), _first(self.committed, index)


def _first(notes: _Notes, index: int) -> float | None:
    return next((at_ms for highest, at_ms in notes if highest >= index), None)
