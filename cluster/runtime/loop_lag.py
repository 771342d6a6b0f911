"""The delay of the event loop's timers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol


class Figures(Protocol):
    """The metrics that are told (`cluster.node.metrics`)."""

    def loop_lag(self, seconds: float) -> None:
        """The largest delay in the last 10 s."""

    def runs_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has the loop's tasks counted at each scrape."""


class LoopLagSampler:
    """Schedules itself on the loop and reports its largest delay in the last 10 s."""

    INTERVAL_S: Final = 0.25

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Figures) -> None:
        self._loop = loop
        self._metrics = metrics
        self._recent: deque[float] = deque(maxlen=int(10 / self.INTERVAL_S))
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts sampling."""
        self._metrics.runs_on(self._loop)
        self._schedule()

    def stop(self) -> None:
        """Stops sampling."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._due = self._loop.time() + self.INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._sample)

    def _sample(self) -> None:
        self._recent.append(max(0.0, self._loop.time() - self._due))
        self._metrics.loop_lag(max(self._recent))
        self._schedule()
