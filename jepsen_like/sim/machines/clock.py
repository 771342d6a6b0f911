"""Virtual time as the clock of a machine, whose wall clock may be wrong."""

from __future__ import annotations

from jepsen_like.sim.machines.loop import SimLoop

START_WALL_MS = 1_700_000_000_000
"""The right time when a run begins."""


class SimClock:
    """`cluster.runtime.clock.Clock` over virtual time; `offset_ms` is the wall clock's error."""

    def __init__(self, loop: SimLoop, offset_ms: int) -> None:
        self._loop = loop
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        """Returns the wall-clock time of the machine, wrong by `offset_ms`."""
        return START_WALL_MS + int(self._loop.now * 1000) + self.offset_ms

    def monotonic_ms(self) -> int:
        """Returns the virtual time in milliseconds."""
        return int(self._loop.now * 1000)

    def monotonic_s(self) -> float:
        """Returns the virtual time in seconds."""
        return self._loop.now
