"""Turns of the event loop that worked for long, by what ran (`cluster.runtime.turns.turn_watch`), and the delay of its
timers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from cluster.runtime.turns.turn_watch import LONG_NS, LongTurn


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


NAMES_MAX: Final = 100
"""Names of functions that are kept apart; what else ran counts as OTHER."""
OTHER: Final = "other"
_LONG_MS: Final = LONG_NS / 1e6


class TurnMetrics:
    """Event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        self._longest_ms = 0.0
        self._names: set[str] = set()
        labels = ("what",)
        self._longest = gauge(
            "raftmq_turn_longest_seconds", "CPU time of the longest turn of the event loop since the start", labels
        )
        self._long = counter("raftmq_turns_long", "Turns of the event loop of 20 ms of CPU and more", labels)
        self._unexplained = counter(
            "raftmq_turns_unexplained", "Those of which the meter explains less than a quarter", labels
        )

    def note(self, turn: LongTurn) -> None:
        """One turn. One that only waited does not count: the delay of timers shows it."""
        if turn.cpu_ms < _LONG_MS:
            return
        name = self._name_of(turn)
        if turn.cpu_ms > self._longest_ms:
            self._longest_ms = turn.cpu_ms
            self._longest.clear()
            self._longest.labels(name).set(turn.cpu_ms / 1000)
        self._long.labels(name).inc()
        if not turn.explained:
            self._unexplained.labels(name).inc()

    def _name_of(self, turn: LongTurn) -> str:
        if turn.what not in self._names and len(self._names) == NAMES_MAX:
            return OTHER
        self._names.add(turn.what)
        return turn.what
