"""Messages per second, over the last 10 s, minute and 10 minutes: what mqadmin's `clusterList` shows of a node."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

SAMPLE_MS = 1_000
WINDOWS_MS = (10_000, 60_000, 600_000)
"""RocketMQ's three."""
SAMPLES_MAX = WINDOWS_MS[-1] // SAMPLE_MS + 1


class Totals(NamedTuple):
    """Since the node's start."""

    taken: int
    """Messages acknowledged, on the leader."""
    given: int
    """Messages that pulls were answered with."""


class Rates:
    """Samples two totals once a second."""

    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals
        self._times_ms: list[int] = []
        self._samples: list[Totals] = []

    @property
    def samples(self) -> int:
        """Number of samples that are kept."""
        return len(self._samples)

    def tick(self, now_ms: int) -> None:
        """Called on a timer."""
        if self._times_ms and now_ms - self._times_ms[-1] < SAMPLE_MS:
            return
        self._times_ms.append(now_ms)
        self._samples.append(self._totals())
        if len(self._times_ms) > 2 * SAMPLES_MAX:
            del self._times_ms[:-SAMPLES_MAX], self._samples[:-SAMPLES_MAX]

    def taken(self) -> list[float]:
        """Messages taken per second, in each window; while the node is younger, in the part of the window that it has
        lived."""
        return [self._rate(window_ms, 0) for window_ms in WINDOWS_MS]

    def given(self) -> list[float]:
        """Messages given per second, in the same windows."""
        return [self._rate(window_ms, 1) for window_ms in WINDOWS_MS]

    def _rate(self, window_ms: int, place: int) -> float:
        if len(self._times_ms) < 2:
            return 0.0
        first = min(bisect_left(self._times_ms, self._times_ms[-1] - window_ms), len(self._times_ms) - 2)
        count = self._samples[-1][place] - self._samples[first][place]
        return 1000 * count / (self._times_ms[-1] - self._times_ms[first])
