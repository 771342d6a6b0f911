"""The common part of limits for peers that use bandwidth beside clients: peers that catch up, and peers that fetch.

Clients that write must not wait for these peers. While no client writes, the peers get more.
"""

from __future__ import annotations

import math
from collections.abc import Callable

IDLE_MS = 1000
"""Without growth of the log for this long, there are no writing clients."""
BURST_S = 0.25
"""Capacity of the bucket, in seconds of the rate: an idle bucket must not allow a flood."""


class Lull:
    """How long a log has not grown, as far as it was checked."""

    def __init__(self, last_index: Callable[[], int], known_index: int = -1) -> None:
        """`known_index`: where it ended before the first look; another end counts as growth."""
        self._last_index = last_index
        self._known_index = known_index
        self._since = -math.inf

    def lasts(self, now: float) -> float:
        """In the unit of the clock that `now` is from."""
        index = self._last_index()
        if index != self._known_index:
            self._known_index, self._since = index, now
        return now - self._since
