"""Clocks as a value that is passed in, so that the simulator can own time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings, both in milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""

    def monotonic_ms(self) -> int:
        """Never runs back; only differences mean anything."""

    def monotonic_s(self) -> float:
        """The same clock as `monotonic_ms`, fine-grained, for durations in metrics."""


class SystemClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Never runs back; only differences mean anything."""
        return time.monotonic_ns() // 1_000_000

    monotonic_s = staticmethod(time.perf_counter)
    """Seconds of the same clock as `monotonic_ms`. The function itself: a request is timed without a call of
    Python's."""
