"""Makes a loop that stood still read its sockets before it judges silence.

While one turn of the loop takes long, or the process gets no CPU, messages of peers and clients wait unread in the
sockets. Timers that are due by then must not take that for silence. After a turn of its I/O uvloop runs due timers
before it polls the sockets again, so a judgement of silence is postponed until after one poll (`behind_sockets`).

Durations of silence are measured in time in which this node ran (`AwakeClock`, the core's ticks). Promises to others
use the real time, by `Clock`: log time, and with it leases of queues; the age of a follower's rows. Linearizable reads
use no time at all: a majority confirms each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from cluster.runtime.clock import Clock

AWAKE_MS = 250
"""The most milliseconds between two calls of `AwakeClock.tick` that count as time in which the node ran. A few calls
come in this time."""


class CallsSoon(Protocol):
    """The part of an event loop that `behind_sockets` needs."""

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        """Schedules the callback for the next turn of the loop."""


def behind_sockets(loop: CallsSoon, judge: Callable[[], object]) -> None:
    """Calls `judge` once the loop has polled its sockets and delivered what they held.

    A callback of `call_soon` runs before the next poll, and one that is scheduled from it runs after that poll.
    """
    loop.call_soon(loop.call_soon, judge)


class SilenceTimer:
    """Calls `judge` after a delay, unless cancelled. Data that has arrived until then is read first, and may cancel
    it."""

    __slots__ = ("_handle", "_judge", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float, judge: Callable[[], object]) -> None:
        self._loop, self._judge = loop, judge
        self._handle: asyncio.Handle = loop.call_later(delay_s, self._due)

    def cancel(self) -> None:
        """Cancels the timer, because the other side has sent something."""
        self._handle.cancel()

    def _due(self) -> None:
        self._handle = self._loop.call_soon(self._polls_next)

    def _polls_next(self) -> None:
        self._handle = self._loop.call_soon(self._judge)


class AwakeClock:
    """A clock of the milliseconds in which this node ran; only differences have a meaning."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_ms = clock.monotonic_ms()
        self._ran_ms = 0

    def tick(self, now_ms: int) -> None:
        """Adds the time since the last call, at most AWAKE_MS of it, to the time that this node was awake. Called
        periodically."""
        self._ran_ms += min(now_ms - self._looked_ms, AWAKE_MS)
        self._looked_ms = now_ms

    def now_ms(self) -> int:
        """Returns the present time. It is right even if `tick` was not called yet after a standstill."""
        return self._ran_ms + min(self._clock.monotonic_ms() - self._looked_ms, AWAKE_MS)
