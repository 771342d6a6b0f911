"""What those have in common who take bandwidth beside a node's clients: peers that catch up, and peers that fetch.

Whoever writes is not to wait for them; while nobody does, nobody is in the way, and they get more.
"""

from __future__ import annotations

import math
from collections.abc import Callable

IDLE_MS = 1000
"""Nobody writes once the log has not grown for so long."""
BURST_S = 0.25
"""What may be saved up, in seconds of the rate: a bucket that was left alone is no licence to flood."""


class Lull:
    """How long a log has not grown, as far as anybody looked."""

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
