"""A token bucket: how long a write must wait so that writes stay below a rate on average."""

from __future__ import annotations

from collections.abc import Callable


class Bandwidth:
    """`rate` bytes per second; 0: no limit. A write larger than the bucket is let through and paid for afterwards, so
    no size is refused."""

    def __init__(self, rate: int, monotonic_s: Callable[[], float]) -> None:
        self._rate = rate
        self._monotonic_s = monotonic_s
        self._free_at_s = monotonic_s()

    def reload(self, rate: int) -> None:
        """Another rate from now on; what is booked stays booked."""
        self._rate = rate

    def wait_s(self, size: int) -> float:
        """Books `size` bytes; the caller waits so many seconds, then writes."""
        if not self._rate:
            return 0.0
        now_s = self._monotonic_s()
        begin_s = max(now_s, self._free_at_s)
        self._free_at_s = begin_s + size / self._rate
        return begin_s - now_s
