"""Periodic tasks of a node, called chores: one timer calls them in a fixed order, so that a seed gives one schedule.

Chores judge silence: of clients, of peers, of nodes that were asked. After a standstill of the loop they run only once
it has read its sockets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.runtime.clock import Clock
from cluster.runtime.succession import Succession
from cluster.runtime.turns.standstill import behind_sockets
from raftlog.core.raw_node import RawNode
from raftlog.types import NOBODY, Role

logger = logging.getLogger(__name__)

TIMER_MS = 50
DISK_LAG_MS = 1000
"""Milliseconds for which a leader's disk may be behind the commit index before the leader hands over."""

Chore = Callable[[int], object]
"""A function that is called with the present monotonic time in milliseconds."""


class Chores:
    """Calls its chores every TIMER_MS."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, late: Callable[[float], object], *chores: Chore
    ) -> None:
        """`late` is called with the milliseconds for which the loop stood still, if these are more than TIMER_MS."""
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
        """Stops the timer; nothing is called any more."""
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
        """`do` returns True if it did something; until then it is called at every turn of the timer."""
        self._interval_ms = interval_ms
        self._do = do
        self._due_ms = due_ms

    def tick(self, now_ms: int) -> None:
        """Calls the function, if it is due."""
        if now_ms >= self._due_ms and self._do():
            self._due_ms = now_ms + self._interval_ms


class DiskLag:
    """Watches a leader's own disk. A leader whose disk is behind the entries that the others have committed answers
    nobody, so another node should lead."""

    def __init__(self, raw: RawNode, succession: Succession) -> None:
        self._raw = raw
        self._succession = succession
        self._ok_ms: int | None = None

    def tick(self, now_ms: int) -> None:
        """Hands leadership over when the disk has been behind for DISK_LAG_MS."""
        raw = self._raw
        if self._ok_ms is None or raw.role is not Role.LEADER or raw.persisted_index >= raw.commit_index:
            self._ok_ms = now_ms
            return
        if now_ms - self._ok_ms < DISK_LAG_MS:
            return
        self._ok_ms = now_ms
        commit_index = raw.commit_index
        to = self._succession.choose(lambda peer: peer.match_index >= commit_index)
        if to != NOBODY:
            logger.warning("this node's disk lags behind its followers' disks; node %d should lead", to)
            self._succession.transfer(to)
