"""An open loop: requests arrive by a schedule, whether earlier ones were answered or not, as those of users do.

A closed loop sends less as soon as the system is slow, so it never shows the latency that users see then ("coordinated
omission"). Here the latency of a request counts from the moment at which it was scheduled. The generator may be late
itself; such arrivals are counted apart, because they say something about the generator only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

UNKNOWN = -1
"""Used in place of a code for an answer that leaves open whether the message is stored."""
LATE_S = 0.001
"""An arrival counts as late if it is sent more than this many seconds after its scheduled moment."""


class Second(NamedTuple):
    """The events of one second of a run."""

    arrivals: int
    """The requests scheduled in this second."""
    late: int
    """The requests scheduled in this second that the generator sent late."""
    stored: int
    """The requests that were acknowledged in this second."""
    refused: int
    """The requests that were refused in this second."""
    p50_ms: float
    """The median latency, in ms, of the requests acknowledged in this second; 0.0 if there were none."""
    p99_ms: float


class Arrivals:
    """The schedule of one connection, and what became of its requests. `begin` starts it; event loop only."""

    def __init__(self, rate: float, seconds: float, seed: int, *, even: bool = False) -> None:
        """`rate`: requests per second. The times between them are exponential, as those of independent users are, and
        drawn from `seed`; with `even` they are all equal."""
        self._rate, self._seconds, self._even = rate, seconds, even
        self._random = Random(seed)
        self.stored: list[tuple[float, float]] = []
        """(seconds from the begin to the answer, latency in ms) of each acknowledged request, in the order of the
        answers."""
        self.refused: list[tuple[float, float]] = []
        """(seconds from the begin to the answer, latency in ms) of each refused request."""
        self.codes: Counter[int] = Counter()
        """Code -> number of refusals, where the protocol has codes."""
        self.scheduled: list[float] = []
        """Seconds from the begin at which requests were due, ascending."""
        self.late: list[float] = []
        """Those of `scheduled` that were sent late."""
        self.latest_s = 0.0
        """The longest time in seconds by which a request was sent too late."""
        self.unknown = 0
        """Requests whose connection was lost before they were answered, or whose answer leaves their outcome open."""
        self.ended = asyncio.Event()
        """Set while the connection is lost."""
        self.begun_s = 0.0
        """The time at which the schedule began (perf_counter); 0.0 before that."""
        self._next = 0.0
        self._due: list[float] = []
        self._free: deque[int] = deque()
        self._send: Callable[[list[int]], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def outstanding(self) -> int:
        """The number of requests that were sent and not answered."""
        return len(self._due) - len(self._free)

    def begin(self, places: int, send: Callable[[list[int]], None], done: asyncio.Future[None]) -> None:
        """Starts the schedule on a connection, or continues it on the next one. `places`: the most requests without an
        answer; `send` sends the requests of the given places; `done` is resolved at the end."""
        self._send, self._done = send, done
        self._free = deque(range(places))
        if not self._due:
            self.begun_s = time.perf_counter()
            self._next = self.begun_s + self._distance()
        self._due = [0.0] * places
        self.ended.clear()
        self._arrive()

    def answered(self, places: list[int], refused: int, codes: Mapping[int, int], now: float) -> None:
        """Counts the answers to the requests of `places`, which came at `now` (perf_counter). `codes`: place -> code of
        each answer that is no acknowledgement, UNKNOWN if it leaves the outcome open. In a protocol without codes, the
        first `refused` answers count as refused."""
        at = now - self.begun_s
        for number, place in enumerate(places):
            latency = at, (now - self._due[place]) * 1000
            if codes.get(place) == UNKNOWN:
                self.unknown += 1
            elif place in codes or (not codes and number < refused):
                self.refused.append(latency)
                self.codes[codes.get(place, 0)] += 1
            else:
                self.stored.append(latency)
        had_none = not self._free
        self._free.extend(places)
        if had_none and self._timer is None:
            self._arrive()
        self._end()

    def lost(self) -> None:
        """Records that the connection is lost: the outcome of its requests is unknown."""
        self.unknown += self.outstanding
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._send = None
        self._free = deque(range(len(self._due)))
        self.ended.set()
        self._end()

    def _distance(self) -> float:
        return 1 / self._rate if self._even else self._random.expovariate(self._rate)

    def _arrive(self) -> None:
        """Sends the requests that are due, as far as places are free. Then sets a timer for the next one if a place is
        free, or ends if the run's time is over."""
        self._timer = None
        if self._send is None:
            return
        now, until = time.perf_counter(), self.begun_s + self._seconds
        places = []
        while self._next <= now and self._next < until and self._free:
            place = self._free.popleft()
            self._due[place] = self._next
            places.append(place)
            self.scheduled.append(self._next - self.begun_s)
            if now - self._next > LATE_S:
                self.late.append(self._next - self.begun_s)
                self.latest_s = max(self.latest_s, now - self._next)
            self._next += self._distance()
        if places:
            self._send(places)
        if self._next >= until:
            self._end()
        elif self._free:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._next - now), self._arrive)

    def _end(self) -> None:
        """Ends the run once all requests were sent and answered."""
        if self._next >= self.begun_s + self._seconds and not self.outstanding and not self._done.done():
            self._done.set_result(None)


def seconds_of(runs: list[Arrivals]) -> list[Second]:
    """Returns the seconds of a run of several connections, which began together."""
    refused = Counter(int(at) for run in runs for at, _ in run.refused)
    arrivals = Counter(int(at) for run in runs for at in run.scheduled)
    late = Counter(int(at) for run in runs for at in run.late)
    latencies: dict[int, list[float]] = {}
    for run in runs:
        for at, latency in run.stored:
            latencies.setdefault(int(at), []).append(latency)
    found = []
    for second in range(max([*latencies, *refused, *arrivals], default=-1) + 1):
        took = sorted(latencies.get(second, ()))
        found.append(
            Second(
                arrivals[second],
                late[second],
                len(took),
                refused[second],
                round(percentile(took, 0.5), 3),
                round(percentile(took, 0.99), 3),
            )
        )
    return found


def percentile(ascending: Sequence[float], share: float) -> float:
    """Returns the value at this share of an ascending list; 0.0 if it is empty."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))] if ascending else 0.0
