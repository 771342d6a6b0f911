"""The lag of each follower as its leader measures it: in bytes, and in time.

The time is the age of the oldest entry that the follower lacks. Both are cheap: they come from the log's index and from
the ends of the log that the node notes once a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.replication.lag.log_times import LogTimes
from raftlog.core.raw_node import RawNode
from raftlog.core.status import PeerStatus

if TYPE_CHECKING:
    from raftlog.storage.log.segmented_log import SegmentedLog

EVERY_MS: Final = 1_000


class Lag(NamedTuple):
    """The part of the leader's log that a follower's disk lacks."""

    size_bytes: int
    age_ms: int
    """Age of the oldest entry that it lacks; 0 if it lacks none. At least that if the entry is older than the leader's
    run."""


def end_of(log: SegmentedLog, index: int) -> int:
    """Returns the position behind that entry. For an entry that the log no longer has, returns where the log begins."""
    if index >= log.tail.index:
        return log.tail.end_position
    return log.position_of(index + 1) if index + 1 >= max(log.first_index, 1) else log.first_position


class FollowerLag:
    """Measures the lag of the followers of one node. Event loop only."""

    def __init__(self, raw: RawNode, log: SegmentedLog) -> None:
        self._raw = raw
        self._log = log
        self._times = LogTimes()
        self._due_ms = 0

    def tick(self, now_ms: int) -> None:
        """Notes where the log ends. Called periodically, on every node."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + EVERY_MS
        self._times.note(now_ms, self._log.tail.index)

    def of(self, peer: PeerStatus, now_ms: int) -> Lag:
        """Returns the lag of a follower of this leader."""
        tail = self._log.tail
        size_bytes = max(0, tail.end_position - end_of(self._log, peer.match_index))
        return Lag(size_bytes, self._times.age_ms(peer.match_index + 1, tail.index, now_ms))
