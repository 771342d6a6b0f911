"""Log time: the only clock that store times, retention, timers and expiry use.

A leader's log time starts at the median of the wall clocks of the voters that elected it, but never below the last
entry's timestamp. If three voters answer, one wrong clock cannot move it. It then follows the leader's monotonic clock,
so setting a wall clock during the term changes nothing.

A voter reads its clock during the campaign, before its vote is on its disk. If the leader took that reading for the
time at which the answer arrived, log time would be late by the duration of the sync and the network. The delay would
differ in each term, and a message scheduled under one leader would be due too early under the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.core.state.quorum import lower_median

VOTE_MS_MAX = 500
"""The longest time that a vote is assumed to have been under way, in milliseconds. A leader's wrong clock can move log
time by no more than this."""


def voter_offset_ms(clock_ms: int, asked_ms: int, answered_ms: int, own_ms: int) -> int:
    """Returns a voter's wall clock minus this node's monotonic clock, in milliseconds.

    The voter read `clock_ms` between `asked_ms` and `answered_ms` of the monotonic clock. Among the offsets that this
    allows, the result is the one nearest to this node's own, `own_ms`, so that clocks that may agree count as equal.
    """
    least = clock_ms - answered_ms
    return max(least, min(own_ms, clock_ms - asked_ms, least + VOTE_MS_MAX))


class LogTime:
    """The clock of a leader's log time, in milliseconds since the Unix epoch."""

    __slots__ = ("_offset_ms",)

    def __init__(self) -> None:
        self._offset_ms = 0

    def start(self, offsets_ms: Iterable[int], floor_ms: int, monotonic_ms: int) -> None:
        """Starts log time at the median of the voters' clocks, but not below `floor_ms`. `offsets_ms`: wall clock minus
        the leader's monotonic clock, one per granting voter."""
        self._offset_ms = max(lower_median(offsets_ms), floor_ms - monotonic_ms)

    def now(self, monotonic_ms: int) -> int:
        """Returns the log time at `monotonic_ms`."""
        return self._offset_ms + monotonic_ms
