"""Log time: the only clock that store times, retention, timers and expiry use.

It starts at the median of the wall clocks of the voters that elected the leader, but never below the last entry's
timestamp. If three voters answer, one wrong clock cannot move it. It then follows the leader's monotonic clock, so
setting a wall clock during the term changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.core.quorum import lower_median


class LogTime:
    """A leader's log time, milliseconds since the Unix epoch."""

    __slots__ = ("_offset_ms",)

    def __init__(self) -> None:
        self._offset_ms = 0

    def start(self, offsets_ms: Iterable[int], floor_ms: int, monotonic_ms: int) -> None:
        """`offsets_ms`: wall clock minus the leader's monotonic clock when it was read, one per granting voter."""
        self._offset_ms = max(lower_median(offsets_ms), floor_ms - monotonic_ms)

    def now(self, monotonic_ms: int) -> int:
        """Log time at `monotonic_ms`."""
        return self._offset_ms + monotonic_ms
