"""A limit to the speed of one reader, so that it leaves room for producers on the same disks and wires."""

from __future__ import annotations

import time
from collections.abc import Callable

BURST_S = 0.5
"""A reader that paused may later read at once what it would have read in this time."""


class Pace:
    """Bytes per second, on average since the first read; None: no limit."""

    def __init__(
        self,
        bytes_per_s: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._due = clock()
        """The time when everything read so far would have been read at this pace."""

    def took(self, size: int) -> None:
        """Notes that so many bytes were read; returns when more may be."""
        if self._bytes_per_s is None:
            return
        now = self._clock()
        self._due = max(self._due, now - BURST_S) + size / self._bytes_per_s
        if self._due > now:
            self._sleep(self._due - now)
