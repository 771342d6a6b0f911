"""A limit to the speed of one reader, which leaves room for producers on the same disks and network."""

from __future__ import annotations

import time
from collections.abc import Callable

BURST_S = 0.5
"""Seconds of reading that a reader may make up for at once after a pause."""


class ReadRate:
    """Limits a reader to a number of bytes per second; None: no limit. Time in which the reader took less than the
    limit counts for at most BURST_S."""

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
        """The time by `clock` at which everything read so far is due at this rate."""

    def took(self, size: int) -> None:
        """Counts `size` bytes that were read; sleeps until the reader may read more."""
        if self._bytes_per_s is None:
            return
        now = self._clock()
        self._due = max(self._due, now - BURST_S) + size / self._bytes_per_s
        if self._due > now:
            self._sleep(self._due - now)
