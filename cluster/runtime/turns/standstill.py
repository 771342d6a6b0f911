"""A loop that stood still hears before it judges.

While one turn of the loop takes long, or the process gets no CPU, nobody is heard: what peers and clients said
meanwhile lies in the sockets. Timers that are due by then must not take that for silence. After a turn of its I/O
uvloop runs due timers before it polls the sockets again, so who judges silence goes behind one poll (`behind_sockets`).

Durations of silence are counted in time in which this node ran (`AwakeClock`, the core's ticks). What is promised to
others counts the real time, by `Clock`: log time, and with it leases of queues; how old a follower's rows are.
Linearizable reads count no time at all: a majority confirms each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from cluster.runtime.clock import Clock

AWAKE_MS = 250
"""Milliseconds of a longer time between two looks at the clock that count as time in which the node ran: some looks'
worth."""


class CallsSoon(Protocol):
    """The part of an event loop that `behind_sockets` needs."""

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        """Schedules the callback for the next turn of the loop."""


def behind_sockets(loop: CallsSoon, judge: Callable[[], object]) -> None:
    """Calls `judge` once the loop has polled its sockets and handed out what they held.

    What is called soon runs before the next poll, and what is called soon from there runs behind it.
    """
    loop.call_soon(loop.call_soon, judge)


class SilenceTimer:
    """Calls `judge` after a delay, unless cancelled: what has arrived until then is read first, and may cancel it."""

    __slots__ = ("_handle", "_judge", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float, judge: Callable[[], object]) -> None:
        self._loop, self._judge = loop, judge
        self._handle: asyncio.Handle = loop.call_later(delay_s, self._due)

    def cancel(self) -> None:
        """It was heard of whom this waits for."""
        self._handle.cancel()

    def _due(self) -> None:
        self._handle = self._loop.call_soon(self._polls_next)

    def _polls_next(self) -> None:
        self._handle = self._loop.call_soon(self._judge)


class AwakeClock:
    """Milliseconds in which this node ran; only differences mean anything."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_ms = clock.monotonic_ms()
        self._ran_ms = 0

    def tick(self, now_ms: int) -> None:
        """A chore: looks at the clock."""
        self._ran_ms += min(now_ms - self._looked_ms, AWAKE_MS)
        self._looked_ms = now_ms

    def now_ms(self) -> int:
        """Now; right also before the first look after a standstill."""
        return self._ran_ms + min(self._clock.monotonic_ms() - self._looked_ms, AWAKE_MS)
