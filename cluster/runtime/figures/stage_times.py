"""When the stages of entries ended on the node that leads: what tells which stage of a slow request was slow.

The driver notes the highest index of each write to the log and of each run of committed entries, with the clock reading
that its turn has anyway: two appends per entry at most, and no clock call.
"""

from __future__ import annotations

from collections import deque

KEPT = 4096
"""Notes per stage: more writes than a node does in the seconds that a slow request takes."""

_Notes = deque[tuple[int, float]]


class StageTimes:
    """Event loop only. Each note is (highest index, monotonic milliseconds); indexes ascend within a role."""

    __slots__ = ("committed", "synced")

    def __init__(self) -> None:
        self.synced: _Notes = deque(maxlen=KEPT)
        """The entries up to the index are on this node's disk."""
        self.committed: _Notes = deque(maxlen=KEPT)
        """A majority has them, this node included."""

    def clear(self) -> None:
        """The role changed: entries of the former term may be replaced."""
        self.synced.clear()
        self.committed.clear()

    def of(self, index: int) -> tuple[float | None, float | None]:
        """When the entry was on this node's disk, and when it was committed; None for what is not known (yet)."""
        return _first(self.synced, index), _first(self.committed, index)


def _first(notes: _Notes, index: int) -> float | None:
    return next((at_ms for highest, at_ms in notes if highest >= index), None)
