"""Chores: the periodic tasks of a node. One timer calls them in a fixed order, so a seed gives one schedule.

Chores judge the silence of clients and peers. After the loop stood still they therefore wait until it has read its
sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.runtime.clock import Clock
from cluster.runtime.turns.stalled_loop import behind_sockets

TIMER_MS = 50

Chore = Callable[[int], object]
"""A function that is called with the present monotonic milliseconds."""


class Chores:
    """Calls its chores every TIMER_MS milliseconds."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, late: Callable[[float], object], *chores: Chore
    ) -> None:
        """`late` receives the milliseconds for which the loop stood still, if they were more than TIMER_MS."""
        self._loop = loop
        self._clock = clock
        self._late = late
        self._chores = chores
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Starts the timer."""
        self._due_s = self._loop.time() + TIMER_MS / 1000
        self._timer = self._loop.call_at(self._due_s, self._on_timer)

    def stop(self) -> None:
        """Stops the timer; no chore is called any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        late_ms = 1000 * (self._loop.time() - self._due_s)
        self.start()
        if late_ms > TIMER_MS:
            self._late(late_ms)
            behind_sockets(self._loop, self._run)
        else:
            self._run()

    def _run(self) -> None:
        if self._timer is None:  # stopped while it waited for the sockets
            return
        now = self._clock.monotonic_ms()
        for chore in self._chores:
            chore(now)


class Every:
    """A chore that is due again a fixed time after it last did something."""

    def __init__(self, interval_ms: int, do: Callable[[], bool], due_ms: int = 0) -> None:
        """`do` returns True if it did something; until then it is called at every tick."""
        self._interval_ms = interval_ms
        self._do = do
        self._due_ms = due_ms

    def tick(self, now_ms: int) -> None:
        """Calls `do` if it is due."""
        if now_ms >= self._due_ms and self._do():
            self._due_ms = now_ms + self._interval_ms
