"""Watches how long the turns of the event loop are, and what ran in a long one.

uvloop calls nobody between two turns. So the loop stamps the time every STAMP_S, and a thread looks at the stamp as
often. While a stamp is late, one turn is still running, and the thread notes the innermost frame of our code. When the
stamp comes, the loop's thread reads its own CPU clock and its meter (`raftlog.work`): a turn that worked is told from
one that was not scheduled, or that waited. A turn's length is counted from when the stamp was due, so it may have been
longer by as much as the time between two stamps.

A turn that holds the GIL keeps the thread from looking until it lets go, and is then seen where it stands. Full
collections of the garbage are named as such.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as PromCounter

from raftlog.work import METER

STAMP_S: Final = 0.02
IDLE_STAMP_S: Final = 0.1
"""While the loop does nothing."""
LONG_NS: Final = 20_000_000
"""A turn from this on is told of."""
SEEN_NS: Final = 5_000_000
"""The thread notes what runs when a stamp is later than this."""
COLLECTION: Final = "garbage collection"
UNKNOWN: Final = "code of a library"
PACKAGES: Final = ("raftlog.", "statemachine.", "cluster.", "raftmq.", "jepsen_like.")
_IDLE_SHARE: Final = 20
"""The loop is idle if it took less than one in so many nanoseconds."""
_EXPLAINED: Final = 4
"""The meter explains a turn if it counted one in so many of its microseconds."""


class Moment(NamedTuple):
    """Readings of the loop's thread at a stamp."""

    wall_ns: int
    cpu_ns: int
    """CPU time of this thread alone."""
    units: int
    """Its meter."""
    collecting_ns: int
    """CPU time of full collections on that thread."""


class LongTurn(NamedTuple):
    """One turn of the loop."""

    wall_ms: float
    cpu_ms: float
    units: int
    what: str
    """Function that was seen most often, or COLLECTION."""

    @property
    def worked(self) -> bool:
        """True if it used the processor for most of the time; if not, it waited, or was not scheduled."""
        return self.cpu_ms * 2 >= self.wall_ms

    @property
    def explained(self) -> bool:
        """True if the meter knew of the work: a quarter of it at least. A collection counts as explained: no code can
        charge for it."""
        return self.what == COLLECTION or self.units * _EXPLAINED >= self.cpu_ms * 1000

    def __str__(self) -> str:
        took = f"{self.wall_ms:.0f} ms ({self.cpu_ms:.0f} ms of CPU, {self.units} units)"
        return f"a turn of the event loop took {took} in {self.what}"


class TurnWatch:
    """`start` and `stop` on the loop; `told` is called on the loop, once for each turn of LONG_NS and more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, told: Callable[[LongTurn], None]) -> None:
        self._loop = loop
        self._told = told
        self._seen: Counter[str] = Counter()
        """Functions that the thread saw since the last stamp."""
        self._due_ns = 0
        """When the next stamp is due."""
        self._idle = False
        """The loop did nothing before the last stamp."""
        self._passes_over = False
        """The turn that runs is not told of."""
        self._timer: asyncio.TimerHandle | None = None
        self._collecting_ns = self._collection_began_ns = 0
        self._thread: threading.Thread | None = None
        self._ident = 0
        """The thread that is watched."""
        self._last = Moment(0, 0, 0, 0)
        self._runs = threading.Lock()
        """Held until the thread is to end."""

    def start(self) -> None:
        """Begins to watch the thread that calls this."""
        self._ident = threading.get_ident()
        self._last = self._moment()
        self._plan()
        gc.callbacks.append(self._on_collection)
        self._runs.acquire()
        self._thread = threading.Thread(target=self._watch, name="turn-watch", daemon=True)
        self._thread.start()

    def pass_over(self) -> None:
        """Tells nothing of the turn that runs now: it opens the node, and nobody waits for it yet."""
        self._passes_over = True

    def stop(self) -> None:
        """Ends."""
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
        """The loop has come round. If that is late, one turn took as long as it is late, or longer."""
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
    """The innermost function of ours in a stack."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PACKAGES):
            return f"{module}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return UNKNOWN


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
        gauge, counter = partial(Gauge, registry=registry), partial(PromCounter, registry=registry)
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
