"""The time that each node's disk takes for a sync, as the node itself measures it and reports it to its peers in PING.

A leader sees from that why a follower lags, and does not hand leadership to the slower disk.
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
"""The mean is that of the syncs within so many times EVERY_MS."""
TOLD_MS: Final = 5_000
"""Milliseconds for which a peer's report is valid; three intervals of its PINGs if these are longer."""
SLOWER_FACTOR: Final = 3
SLOWER_MS: Final = 50.0
"""A disk is slower than another one if its syncs take SLOWER_FACTOR times as long and SLOWER_MS more: an idle disk
syncs now in 0.3 ms and now in 30 ms, and leadership does not depend on that."""
SYNC_US_MAX: Final = 3_600_000_000
_UNKNOWN: Final = -1


class _Count(NamedTuple):
    """The syncs since the start, at the end of a second."""

    syncs: int
    seconds: float


class _SyncReport(NamedTuple):
    at_ms: int
    sync_ms: float


class SyncTimes:
    """The mean sync time of this node and of its peers. Event loop only."""

    def __init__(self, own: NodeId, clock: Clock, counted: Callable[[], tuple[int, float]], interval_ms: int) -> None:
        """`counted` returns the syncs of this node, `own`, since its start: their number, and the seconds that they
        took. `interval_ms` is the interval of PINGs."""
        self._own = own
        self._clock = clock
        self._counted = counted
        self._counts: deque[_Count] = deque(maxlen=WINDOW + 1)
        self._due_ms = 0
        self._words: dict[NodeId, _SyncReport] = {}
        self.own_ms: float | None = None
        """The mean of this node's syncs within the window, milliseconds; None if there was none."""
        self.reload(interval_ms)

    def reload(self, interval_ms: int) -> None:
        """Applies another interval of PINGs."""
        self._told_ms = max(TOLD_MS, 3 * interval_ms)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="sync times", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Updates the mean. Called periodically."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + EVERY_MS
        self._counts.append(_Count(*self._counted()))
        oldest, newest = self._counts[0], self._counts[-1]
        syncs, seconds = newest.syncs - oldest.syncs, newest.seconds - oldest.seconds
        self.own_ms = 1000 * seconds / syncs if syncs else None

    def word(self) -> int:
        """Returns the report for PING: microseconds, -1 if unknown."""
        return _UNKNOWN if self.own_ms is None else min(SYNC_US_MAX, int(1000 * self.own_ms))

    def heard(self, peer: NodeId, word: object) -> None:
        """Records the report in a peer's PING; None if the peer's release reports nothing. Raises WireError."""
        if word is None or word == _UNKNOWN:
            self._words.pop(peer, None)
            return
        if type(word) is not int or not 0 <= word <= SYNC_US_MAX:
            raise WireError("malformed sync time")
        self._words[peer] = _SyncReport(self._clock.monotonic_ms(), word / 1000)

    def of(self, peer: NodeId) -> float | None:
        """Returns the mean of a node's syncs in milliseconds, as a peer reported it recently; None if it did not, or
        had none."""
        if peer == self._own:
            return self.own_ms
        word = self._words.get(peer)
        if word is None or self._clock.monotonic_ms() - word.at_ms > self._told_ms:
            return None
        return word.sync_ms

    def of_majority(self, voters: Collection[NodeId]) -> float:
        """Returns the time, in milliseconds, that the syncs of the fastest majority of the voters do not exceed on
        average, as far as it is known; 0.0 if it is not."""
        known = sorted(each for voter in voters if (each := self.of(voter)) is not None)
        return known[min(majority(len(voters)), len(known)) - 1] if known else 0.0

    def is_slower(self, peer: NodeId, others: Iterable[NodeId]) -> bool:
        """Returns True if the peer's disk is known to be slower than that of one of the others."""
        own = self.of(peer)
        if own is None:
            return False
        quickest = min((each for other in others if (each := self.of(other)) is not None), default=own)
        return own >= SLOWER_FACTOR * quickest and own >= quickest + SLOWER_MS
