"""An event loop for tests whose two ends share it: its clock stands still while the process does not get the processor.

A starved machine then takes nothing from a timeout of a few tenths of a second. What another process or thread does
meanwhile does not count either, so this is no loop for tests that wait for one.
"""

from __future__ import annotations

import asyncio
import selectors
import time

UNHURRIED_S = 0.02
"""Seconds of the loop's time that a turn of the loop, and waking up, may take."""


class _Selector(selectors.DefaultSelector):
    """Counts the time that was asked for: it never goes back, and never far in one turn."""

    def __init__(self) -> None:
        super().__init__()
        self._counted_s = time.monotonic()
        self._left_s = self._counted_s

    def now_s(self) -> float:
        return self._counted_s + min(time.monotonic() - self._left_s, UNHURRIED_S)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._counted_s = self.now_s()
        begun_s = time.monotonic()
        found = super().select(timeout)
        self._left_s = time.monotonic()
        slept_s = self._left_s - begun_s
        self._counted_s += slept_s if timeout is None else min(slept_s, max(0.0, timeout) + UNHURRIED_S)
        return found


class PatientLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while the process does not get the processor."""

    def __init__(self) -> None:
        self._own = _Selector()
        super().__init__(self._own)

    def time(self) -> float:
        """Seconds that this loop had, or had wished to sleep."""
        return self._own.now_s()
