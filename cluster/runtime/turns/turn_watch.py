"""Measures how long the turns of the event loop are, and finds out what ran in a long one.

uvloop has no hook between two turns. So the loop records the time every STAMP_S (a stamp), and a thread checks the
stamp as often. While a stamp is late, one turn is still running, and the thread records the innermost frame of our
code. When the stamp comes, the loop's thread reads its own CPU clock and its meter (`raftlog.work`), which tell a turn
that worked from one that was not scheduled, or that waited. A turn's length is counted from when the stamp was due, so
it may have been longer by as much as the time between two stamps.

A turn that holds the GIL keeps the thread from looking until it releases the GIL; the thread then sees where it is.
Full garbage collections are named as such.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import starmap
from operator import attrgetter, itemgetter
from types import CodeType
from typing import Any, Final, NamedTuple

from cluster.runtime.figures.service_metrics import ServiceMetrics
from raftlog.work import METER

STAMP_S: Final = 0.02
IDLE_STAMP_S: Final = 0.1
"""Seconds between two stamps while the loop is idle."""
LONG_NS: Final = 20_000_000
"""Nanoseconds from which on a turn is reported."""
SEEN_NS: Final = 5_000_000
"""Nanoseconds by which a stamp must be late before the thread records what runs."""
COLLECTION: Final = "garbage collection"
UNKNOWN: Final = "code of a library"
PACKAGES: Final = ("raftlog.", "statemachine.", "cluster.", "raftmq.", "jepsen_like.")
DEPTH_MAX: Final = 64
"""The most functions of a stack that are looked at."""
_CALLERS: Final = tuple(
    attrgetter(f"{'f_back.' * depth}f_globals", f"{'f_back.' * depth}f_code") for depth in range(DEPTH_MAX)
)
_IDLE_SHARE: Final = 20
"""The loop counts as idle if it used the CPU for less than 1/_IDLE_SHARE of the time since the last stamp."""
_EXPLAINED: Final = 4
"""The meter explains a turn if it counted at least one unit for each _EXPLAINED microseconds of CPU time."""


class Moment(NamedTuple):
    """Readings of the loop's thread at one stamp."""

    wall_ns: int
    cpu_ns: int
    """CPU time of this thread alone."""
    units: int
    """The units of work that the thread's meter has counted."""
    collecting_ns: int
    """CPU time of full collections on that thread."""


class LongTurn(NamedTuple):
    """One long turn of the loop."""

    wall_ms: float
    cpu_ms: float
    units: int
    what: str
    """The name of the function that was seen most often; COLLECTION; or UNKNOWN if nothing was seen."""

    @property
    def worked(self) -> bool:
        """True if it used the processor for most of the time; otherwise it waited, or was not scheduled."""
        return self.cpu_ms * 2 >= self.wall_ms

    @property
    def explained(self) -> bool:
        """True if the meter counted at least a quarter of the work. A garbage collection counts as explained, because
        no code can charge for it."""
        return self.what == COLLECTION or self.units * _EXPLAINED >= self.cpu_ms * 1000

    def __str__(self) -> str:
        took = f"{self.wall_ms:.0f} ms ({self.cpu_ms:.0f} ms of CPU, {self.units} units)"
        return f"a turn of the event loop took {took} in {self.what}"


class TurnWatch:
    """Measures the turns of one loop. `start` and `stop` are called on the loop; so is `told`, once for each turn of at
    least LONG_NS."""

    def __init__(self, loop: asyncio.AbstractEventLoop, told: Callable[[LongTurn], None]) -> None:
        self._loop = loop
        self._told = told
        self._seen: Counter[str] = Counter()
        """Name of a function -> how often the watching thread saw it running since the last stamp."""
        self._due_ns = 0
        """Time at which the next stamp is due."""
        self._idle = False
        """True if the loop was idle (`_IDLE_SHARE`) between the two last stamps."""
        self._passes_over = False
        """True if the present turn must not be reported."""
        self._timer: asyncio.TimerHandle | None = None
        self._collecting_ns = self._collection_began_ns = 0
        self._thread: threading.Thread | None = None
        self._ident = 0
        """Id of the thread that is watched."""
        self._last = Moment(0, 0, 0, 0)
        self._runs = threading.Lock()
        """Held until the watching thread must end."""

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
        """Makes the watch ignore the present turn, in which the process opens the node: no client waits for it yet."""
        self._passes_over = True

    def stop(self) -> None:
        """Ends the watching thread."""
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
        """Records a stamp. If the stamp is late by LONG_NS or more, reports a turn that took as long as the stamp is
        late, or longer."""
        last, now = self._last, self._moment()
        late_ns, cpu_ns = now.wall_ns - self._due_ns, now.cpu_ns - last.cpu_ns
        was_idle, self._idle = self._idle, cpu_ns * _IDLE_SHARE < now.wall_ns - last.wall_ns
        self._last = now
        seen, self._seen = self._seen, Counter()
        self._plan()
        passes_over, self._passes_over = self._passes_over, False
        if late_ns >= LONG_NS and not passes_over:
            # `was_idle`: the loop did next to nothing before the last stamp. Presumably it went on so until this turn
            # began, so all CPU time since that stamp counts as this turn's.
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
                self._seen[name_of(self._ident)] += 1
            wait_s = IDLE_STAMP_S if self._idle and late_ns < 0 else STAMP_S


def running(ident: int, depth: int = 0) -> tuple[dict[str, Any], CodeType] | None:
    """Returns the globals and the code of the function that a thread runs (`depth` 0), of its caller (1), and so on;
    None if there is none.

    All of it is one call of C code, so that no other thread runs meanwhile. A frame of a thread that has run on must
    not be asked for its caller: on CPython 3.11.2 `f_back` once returned a dict, memory of another frame.

    Nothing is collected meanwhile. Some releases of CPython 3.11 make the frames under the lock of the list of threads.
    A collection there calls `gc.callbacks`, which lets other threads run. The first of them that starts a thread waits
    for that lock, and keeps the interpreter's lock: the process hangs (gh-106883).
    """
    steps = map(_CALLERS[depth], map(itemgetter(ident), starmap(sys._current_frames, [()])))
    collects = gc.isenabled()
    gc.disable()
    try:
        return next(steps)
    except (KeyError, AttributeError):
        return None
    finally:
        if collects:
            gc.enable()


def name_of(ident: int) -> str:
    """Returns the name of the innermost function of ours that a thread runs. The thread continues during this call."""
    for depth in range(DEPTH_MAX):
        found = running(ident, depth)
        if found is None:
            break
        module = found[0].get("__name__", "")
        if isinstance(module, str) and module.startswith(PACKAGES):
            return f"{module}.{found[1].co_qualname}"
    return UNKNOWN


class LoopMetrics(ServiceMetrics):
    """Metrics of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.lag = self.gauge("raftmq_loop_lag_seconds", "Longest delay of a timer on the event loop in the last 10 s")
        self._tasks = self.gauge("raftmq_loop_tasks", "asyncio tasks on the event loop that have not ended")

    def look(self) -> None:
        """Sets the gauge to the number of tasks that have not ended."""
        self._tasks.set(len(asyncio.all_tasks(self._loop)))


class LoopLagSampler:
    """Schedules a timer on the loop every INTERVAL_S, and keeps the timer's largest delay in the last 10 s."""

    INTERVAL_S: Final = 0.25

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.metrics: Final = LoopMetrics(loop)
        self.lag_s = 0.0
        """The largest delay in seconds in the last 10 s."""
        self._recent: deque[float] = deque(maxlen=int(10 / self.INTERVAL_S))
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts sampling."""
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
        self.lag_s = max(self._recent)
        self.metrics.lag.set(self.lag_s)
        self._schedule()


NAMES_MAX: Final = 100
"""The most names of functions that are counted separately; all others count as OTHER."""
OTHER: Final = "other"
_LONG_MS: Final = LONG_NS / 1e6


class TurnMetrics(ServiceMetrics):
    """Metrics of long turns. Event loop only."""

    def __init__(self) -> None:
        super().__init__()
        gauge, counter = self.gauge, self.counter
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
        """Counts one long turn. One that only waited is not counted, because the delay of timers shows it."""
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
