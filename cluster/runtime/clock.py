"""Clocks that are passed in as values, so that the simulator can control time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings, both in milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. This clock may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that never runs back; only differences mean anything."""

    def monotonic_s(self) -> float:
        """The same clock as `monotonic_ms`, fine-grained, for durations in metrics."""


class SystemClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. This clock may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that never runs back; only differences mean anything."""
        return time.monotonic_ns() // 1_000_000

    monotonic_s = staticmethod(time.perf_counter)
    """Seconds of the same clock as `monotonic_ms`. It is the C function itself, so that timing a request costs no call
    of Python code."""
