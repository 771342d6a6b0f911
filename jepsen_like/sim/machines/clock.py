"""The clock of a simulated machine: virtual time, and a wall clock that may be wrong."""

from __future__ import annotations

from jepsen_like.sim.machines.loop import SimLoop

START_WALL_MS = 1_700_000_000_000
"""The correct wall-clock time when a run begins, in Unix milliseconds."""


class SimClock:
    """A `cluster.runtime.clock.Clock` over virtual time. `offset_ms` is the error of the wall clock in milliseconds."""

    def __init__(self, loop: SimLoop, offset_ms: int) -> None:
        self._loop = loop
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        """Returns the machine's wall-clock time in Unix milliseconds, wrong by `offset_ms`."""
        return START_WALL_MS + int(self._loop.now * 1000) + self.offset_ms

    def monotonic_ms(self) -> int:
        """Returns the virtual time in milliseconds."""
        return int(self._loop.now * 1000)

    def monotonic_s(self) -> float:
        """Returns the virtual time in seconds."""
        return self._loop.now
