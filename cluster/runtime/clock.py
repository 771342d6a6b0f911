"""Defines clocks as objects that are passed in, so that the simulator can use its own time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A wall clock and a monotonic clock."""

    def wall_ms(self) -> int:
        """Returns the milliseconds since the Unix epoch; they may jump."""

    def monotonic_ms(self) -> int:
        """Returns milliseconds that never decrease; only differences have a meaning."""

    def monotonic_s(self) -> float:
        """Returns the clock of `monotonic_ms` in seconds, fine-grained, for durations in metrics."""


class SystemClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        """Returns the milliseconds since the Unix epoch; they may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Returns milliseconds that never decrease; only differences have a meaning."""
        return time.monotonic_ns() // 1_000_000

    monotonic_s = staticmethod(time.perf_counter)
    """Returns the clock of `monotonic_ms` in seconds. It is the C function itself, so that timing a request runs no
    Python code."""
