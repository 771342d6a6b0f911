"""Measures how long this node's disk takes for a sync, and exchanges the times with peers in PING.

The times tell a leader why a follower lags. A leader does not hand leadership to a node with a slower disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from cluster.runtime.clock import Clock
from cluster.runtime.peer_frames import WireError
from cluster.runtime.service_lifecycle import Part
from raftlog.core.state.quorum import majority
from raftlog.types import NodeId

EVERY_MS: Final = 1_000
WINDOW: Final = 10
"""The length of the window for the mean, in units of EVERY_MS."""
TOLD_MS: Final = 5_000
"""Milliseconds for which a peer's report is valid; three intervals of its PINGs if these are longer."""
SLOWER_FACTOR: Final = 3
SLOWER_MS: Final = 50.0
"""A disk is slower than another one only if its syncs take SLOWER_FACTOR times as long and also SLOWER_MS milliseconds
longer. The second condition ignores small differences: one idle disk may sync in 0.3 ms or in 30 ms."""
SYNC_US_MAX: Final = 3_600_000_000
_UNKNOWN: Final = -1


class _Count(NamedTuple):
    """The number of syncs since the start and the seconds that they took, as counted at one `tick`."""

    syncs: int
    seconds: float


class _SyncReport(NamedTuple):
    at_ms: int
    sync_ms: float


class SyncTimes:
    """Keeps the mean sync time of this node and of each peer. Event loop only."""

    def __init__(self, own: NodeId, clock: Clock, counted: Callable[[], tuple[int, float]], interval_ms: int) -> None:
        """`counted` returns the syncs of this node, `own`, since its start: their number, and the seconds that they
        took. `interval_ms` is the interval of PINGs in milliseconds."""
        self._own = own
        self._clock = clock
        self._counted = counted
        self._counts: deque[_Count] = deque(maxlen=WINDOW + 1)
        self._due_ms = 0
        self._words: dict[NodeId, _SyncReport] = {}
        self.own_ms: float | None = None
        """The mean time of this node's syncs within the window, in milliseconds; None if there was no sync."""
        self.reload(interval_ms)

    def reload(self, interval_ms: int) -> None:
        """Applies another interval of PINGs, in milliseconds."""
        self._told_ms = max(TOLD_MS, 3 * interval_ms)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="sync times", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Updates the mean of this node every EVERY_MS. Called periodically."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + EVERY_MS
        self._counts.append(_Count(*self._counted()))
        oldest, newest = self._counts[0], self._counts[-1]
        syncs, seconds = newest.syncs - oldest.syncs, newest.seconds - oldest.seconds
        self.own_ms = 1000 * seconds / syncs if syncs else None

    def word(self) -> int:
        """Returns this node's report for PING: the mean sync time in microseconds, or -1 if it is unknown."""
        return _UNKNOWN if self.own_ms is None else min(SYNC_US_MAX, int(1000 * self.own_ms))

    def heard(self, peer: NodeId, word: object) -> None:
        """Records the report in a peer's PING; `word` is None if the peer's release reports nothing. Raises WireError
        if it is malformed."""
        if word is None or word == _UNKNOWN:
            self._words.pop(peer, None)
            return
        if type(word) is not int or not 0 <= word <= SYNC_US_MAX:
            raise WireError("malformed sync time")
        self._words[peer] = _SyncReport(self._clock.monotonic_ms(), word / 1000)

    def of(self, peer: NodeId) -> float | None:
        """Returns the mean sync time of a node in milliseconds: measured if it is this node, else as the peer reported
        it. None if it is unknown: there was no sync, or no recent report."""
        if peer == self._own:
            return self.own_ms
        word = self._words.get(peer)
        if word is None or self._clock.monotonic_ms() - word.at_ms > self._told_ms:
            return None
        return word.sync_ms

    def of_majority(self, voters: Collection[NodeId]) -> float:
        """Returns, in milliseconds, the largest mean sync time among the majority of the voters with the fastest disks.
        Only voters with a known mean count; returns 0.0 if no mean is known."""
        known = sorted(each for voter in voters if (each := self.of(voter)) is not None)
        return known[min(majority(len(voters)), len(known)) - 1] if known else 0.0

    def is_slower(self, peer: NodeId, others: Iterable[NodeId]) -> bool:
        """Returns True if the peer's disk is known to be slower than that of one of the others."""
        own = self.of(peer)
        if own is None:
            return False
        quickest = min((each for other in others if (each := self.of(other)) is not None), default=own)
        return own >= SLOWER_FACTOR * quickest and own >= quickest + SLOWER_MS
