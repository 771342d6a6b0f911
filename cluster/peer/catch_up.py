"""Limits the bytes for peers that catch up: one token bucket for all of them, [ha] catch_up_bytes_per_second.

Only entries that are read from disk count (raftlog/core/replication.py): recent entries are in memory and are sent to
all peers at once. While nothing is proposed, catching up delays no client, and the limit is higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from raftlog.core.raw_node import RawNode

IDLE_FACTOR = 4
"""Factor of the limit when nothing has been proposed for IDLE_MS."""


class CatchUp:
    """Grants bytes to the core by the clock. Event loop only."""

    def __init__(self, raw: RawNode, bytes_per_second: int, wake: Callable[[], None]) -> None:
        """`bytes_per_second`: 0 for no limit."""
        self._raw = raw
        self._wake = wake
        self._bytes_per_second = bytes_per_second
        self._granted_ms: int | None = None
        self._lull = Lull(lambda: raw.last_index)

    def reload(self, bytes_per_second: int) -> None:
        """Changes the limit."""
        self._bytes_per_second = bytes_per_second

    def tick(self, now_ms: int) -> None:
        """Grants the bytes that have accumulated since the last call."""
        raw, rate = self._raw, self._rate(now_ms)
        waits = raw.catch_up_waits
        if not rate:
            raw.catch_up_budget = None
            self._granted_ms = None
        else:
            since_ms = now_ms if self._granted_ms is None else self._granted_ms
            left = raw.catch_up_budget if raw.catch_up_budget is not None else 0
            raw.catch_up_budget = min(left + rate * (now_ms - since_ms) // 1000, int(rate * BURST_S))
            self._granted_ms = now_ms
        if waits:
            self._wake()

    def _rate(self, now_ms: int) -> int:
        idle = self._lull.lasts(now_ms) >= IDLE_MS
        return self._bytes_per_second * IDLE_FACTOR if idle else self._bytes_per_second


# The common part of limits for peers that use bandwidth beside clients: peers that catch up, and peers that fetch.
#
# Clients that write must not wait for these peers. While no client writes, the peers get more.

IDLE_MS = 1000
"""Without growth of the log for this long, there are no writing clients."""
BURST_S = 0.25
"""Capacity of the bucket, in seconds of the rate: an idle bucket must not allow a flood."""


class Lull:
    """Time for which a log has not grown, as far as it was checked."""

    def __init__(self, last_index: Callable[[], int], known_index: int = -1) -> None:
        """`known_index`: where it ended before the first look; another end counts as growth."""
        self._last_index = last_index
        self._known_index = known_index
        self._since = -math.inf

    def lasts(self, now: float) -> float:
        """Returns the time without growth, in the unit of the clock that `now` is from."""
        index = self._last_index()
        if index != self._known_index:
            self._known_index, self._since = index, now
        return now - self._since
