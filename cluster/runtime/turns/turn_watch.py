"""Measures the turns of the event loop, and finds the function that ran in a long one.

uvloop calls nobody between two turns. The loop therefore stamps the time every STAMP_S, and a thread checks the stamp
as often. While a stamp is late, one turn is still running, and the thread notes the innermost frame of our code. When
the stamp comes, the loop's thread reads its own CPU clock and its meter (`raftlog.work`), which distinguishes a turn
that worked from one that was not scheduled, or that waited. A turn's length is counted from the time at which the stamp
was due, so the turn may have been longer by up to the time between two stamps.

A turn that holds the GIL keeps the thread from looking until it releases the lock, and is then seen at that place. Full
collections of the garbage are named as such.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Final, NamedTuple

from raftlog.work import METER

STAMP_S: Final = 0.02
IDLE_STAMP_S: Final = 0.1
"""Seconds between stamps while the loop does nothing."""
LONG_NS: Final = 20_000_000
"""CPU time in nanoseconds from which on a turn is reported."""
SEEN_NS: Final = 5_000_000
"""The thread notes the running function when a stamp is later than this, in nanoseconds."""
COLLECTION: Final = "garbage collection"
UNKNOWN: Final = "code of a library"
PACKAGES: Final = ("raftlog.", "statemachine.", "cluster.", "raftmq.", "jepsen_like.")
_IDLE_SHARE: Final = 20
"""The loop is idle if it used less than one in this many nanoseconds."""
_EXPLAINED: Final = 4
"""The meter explains a turn if it counted one in this many of the turn's microseconds."""


class Moment(NamedTuple):
    """Readings of the loop's thread at a stamp."""

    wall_ns: int
    cpu_ns: int
    """CPU time of this thread."""
    units: int
    """The thread's meter."""
    collecting_ns: int
    """CPU time of full collections on that thread."""


class LongTurn(NamedTuple):
    """One long turn of the loop."""

    wall_ms: float
    cpu_ms: float
    units: int
    what: str
    """The function that was seen most often, or COLLECTION."""

    @property
    def worked(self) -> bool:
        """True if it used the processor for most of the time. Otherwise it waited, or was not scheduled."""
        return self.cpu_ms * 2 >= self.wall_ms

    @property
    def explained(self) -> bool:
        """True if the meter counted at least a quarter of the work. A collection counts as explained, because no code
        can charge for it."""
        return self.what == COLLECTION or self.units * _EXPLAINED >= self.cpu_ms * 1000

    def __str__(self) -> str:
        took = f"{self.wall_ms:.0f} ms ({self.cpu_ms:.0f} ms of CPU, {self.units} units)"
        return f"a turn of the event loop took {took} in {self.what}"


class TurnWatch:
    """Watches one loop. Call `start` and `stop` on the loop; `told` is called on it, once for each turn of at least
    LONG_NS."""

    def __init__(self, loop: asyncio.AbstractEventLoop, told: Callable[[LongTurn], None]) -> None:
        self._loop = loop
        self._told = told
        self._seen: Counter[str] = Counter()
        """Functions that the thread saw since the last stamp."""
        self._due_ns = 0
        """The time at which the next stamp is due."""
        self._idle = False
        """True if the loop did nothing before the last stamp."""
        self._passes_over = False
        """True if the present turn is not reported."""
        self._timer: asyncio.TimerHandle | None = None
        self._collecting_ns = self._collection_began_ns = 0
        self._thread: threading.Thread | None = None
        self._ident = 0
        """The thread that is watched."""
        self._last = Moment(0, 0, 0, 0)
        self._runs = threading.Lock()
        """Held until the thread has to end."""

    def start(self) -> None:
        """Begins to watch the calling thread."""
        self._ident = threading.get_ident()
        self._last = self._moment()
        self._plan()
        gc.callbacks.append(self._on_collection)
        self._runs.acquire()
        self._thread = threading.Thread(target=self._watch, name="turn-watch", daemon=True)
        self._thread.start()

    def pass_over(self) -> None:
        """Does not report the present turn, in which the node opens and nobody waits for it yet."""
        self._passes_over = True

    def stop(self) -> None:
        """Ends the thread."""
        if self._thread is None or self._timer is None:
            return
        self._timer.cancel()
        gc.callbacks.remove(self._on_collection)
        self._runs.release()
        self._thread.join()
        self._thread = None

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _moment(self) -> Moment:
        return Moment(time.monotonic_ns(), time.thread_time_ns(), METER.units, self._collecting_ns)

    def _plan(self) -> None:
        wait_s = IDLE_STAMP_S if self._idle else STAMP_S
        self._due_ns = time.monotonic_ns() + int(wait_s * 1e9)
        self._timer = self._loop.call_later(wait_s, self._stamp)

    def _stamp(self) -> None:
        """Stamps the time. If that is late, one turn took at least as long as the stamp is late."""
        last, now = self._last, self._moment()
        late_ns, cpu_ns = now.wall_ns - self._due_ns, now.cpu_ns - last.cpu_ns
        was_idle, self._idle = self._idle, cpu_ns * _IDLE_SHARE < now.wall_ns - last.wall_ns
        self._last = now
        seen, self._seen = self._seen, Counter()
        self._plan()
        passes_over, self._passes_over = self._passes_over, False
        if late_ns >= LONG_NS and not passes_over:
            # Before, the loop did next to nothing: all of the time was this turn's.
            wall_ns = max(late_ns, cpu_ns) if was_idle else late_ns
            collects = (now.collecting_ns - last.collecting_ns) * 2 >= cpu_ns > 0
            what = COLLECTION if collects else next((name for name, _ in seen.most_common(1)), UNKNOWN)
            self._told(LongTurn(wall_ns / 1e6, min(cpu_ns, wall_ns) / 1e6, now.units - last.units, what))

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2 or threading.get_ident() != self._ident:
            return
        cpu_ns = time.thread_time_ns()
        if phase == "start":
            self._collection_began_ns = cpu_ns
        else:
            self._collecting_ns += cpu_ns - self._collection_began_ns

    # --- the thread --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        wait_s = STAMP_S
        while not self._runs.acquire(timeout=wait_s):
            late_ns = time.monotonic_ns() - self._due_ns
            if late_ns >= SEEN_NS:
                self._seen[name_of(sys._current_frames().get(self._ident))] += 1
            wait_s = IDLE_STAMP_S if self._idle and late_ns < 0 else STAMP_S


def name_of(frame: FrameType | None) -> str:
    """Returns the name of our innermost function in a stack."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PACKAGES):
            return f"{module}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return UNKNOWN
