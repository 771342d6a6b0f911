"""What peers that catch up may take from this node: a token bucket over all of them, [ha] catch_up_bytes_per_second.

Only entries that come back from the disk count (raftlog/core/replication.py): what was proposed lately is in memory and
goes to everybody at once. While nothing is proposed, nobody is in the way of whoever catches up, and it gets more.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.peer.bandwidth import BURST_S, IDLE_MS, Lull
from raftlog.core.raw_node import RawNode

IDLE_FACTOR = 4
"""So much more may be taken when nothing has been proposed for IDLE_MS."""


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
        """Another limit from now on."""
        self._bytes_per_second = bytes_per_second

    def tick(self, now_ms: int) -> None:
        """Grants what has come together since the last time."""
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
