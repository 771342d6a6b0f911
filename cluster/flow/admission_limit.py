"""The limit on a leader's undecided sends, above which it refuses some: what the log decides in a stated time.

The *house* (of sends) is what has arrived and is not decided: the queue of sends and the entries that are proposed. By
Little's law its bytes divided by the rate at which the log decides are the time that a send spends in it. So a limit on
the time is a limit on the bytes, and the only thing to learn is the rate. It is learned as BBR (the TCP congestion
control) learns the rate of a path: from the last intervals in which the log was never without work (one with less than
it could do says nothing).

A house above its limit is no overload yet. It fills while a sync, a checkpoint or an election delays the log, and
empties by itself. Overload is a house that stays above the limit and grows while the log decides at its usual rate. A
closed loop of many requests keeps its size, so it is no overload either: its clients wait, as they asked. docs/adr/0105
has the alternatives and what was measured.

Nothing here has a clock or does I/O: the caller gives the time in milliseconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cluster.config.service_sections import FlowSection

INTERVAL_MS: Final = 200
INTERVAL_MS_MAX: Final = 800
"""The longest interval. One in which nothing was decided goes on so long: on a slow disk an entry takes longer than
INTERVAL_MS, and those that end in a shorter interval would count as its work alone."""
INTERVALS_MAX: Final = 8
"""The number of intervals whose median rate counts."""
RATE_AGE_MS: Final = 60_000
"""The age at which a rate is forgotten: the disk may be another one by now."""
SCALES: Final = (1, 2, 4, 8)
"""The lengths, in intervals, of the spans that are compared: a great overload shows in the short ones, a small one
beside a noisy disk in the long ones."""
GROWTH: Final = 1 / 6
"""The share of the limit by which a house that grows does so at least, from one span to the next."""
GROWTH_OF_HOUSE: Final = 1 / 10
"""The share of the house itself by which it grows so: after a burst, closed loops that wait behind it add a little."""
RISING: Final = 1.25
"""The factor by which the rate of a log that is not busy yet rises while its house grows: it only fills its pipe."""
STALLED: Final = 0.7
"""The share of the usual rate below which a span counts as one in which something stood in the way."""
LEAVE_MS: Final = 2_000
"""Milliseconds for which the house stays within its limit until an overload is over."""
ENTRY_SHARE: Final = 4
"""The fraction (1/n) of the limit that one entry takes: two of them are under way, and the rest waits."""
ENTRY_BYTES_MIN: Final = 64 * 1024
ENTRY_BYTES_UNKNOWN: Final = 256 * 1024
"""The bytes of an entry before the rate is known, unless the last one was decided so quickly that more is no burden: a
log that has a break now and then may never tell its rate. With entries of 1 MiB nothing is learnt of a disk of 2 MB/s
for seconds."""
TOOK_MS_MIN: Final = 0.1
"""The least milliseconds that a decision counts for when a speed is taken from it alone."""
SYNCS: Final = 1.5
"""The times of a sync, or of the quickest decision if that is longer, for which an entry lasts at least that others
wait for: with less in each of two entries, disks with slow syncs would wait for work."""
TRIPS: Final = 10
"""The times of the quickest decision that the house lasts at least: with less under way, a log whose majority is far
away, or whose disk is slow with each sync, would wait for answers and not for its disks."""
TRIPS_MS_MAX: Final = 1_000
"""The most milliseconds that these times make. A leader that is elected in an overload sees no quick decision: each
waits behind others."""
QUICKEST_AGE_MS: Final = 60_000
"""The age at which the quickest decision is forgotten, as soon as the log has nothing to do: in an overload none is
quick."""
NO_LIMIT: Final = 1 << 62
UNKNOWN_MS: Final = math.inf


class _Span(NamedTuple):
    """An interval, or several in a row."""

    low: float
    """The least bytes of the house."""
    mean: float
    rate: float


class AdmissionLimit:
    """The limit of one node's house. Event loop only."""

    __slots__ = (
        "_config",
        "_decided",
        "_low",
        "_over_ms",
        "_quickest_ms",
        "_quickest_since_ms",
        "_rates",
        "_seen",
        "_since_ms",
        "_spans",
        "_sum",
        "_sync_ms",
        "entry_bytes",
        "house_bytes",
        "overloaded",
        "rate",
        "shared_bytes",
        "watching",
    )

    def __init__(self, config: FlowSection, sync_ms: Callable[[], float] = lambda: 0.0) -> None:
        """`sync_ms` returns the mean time of a sync on the disks of a majority, in milliseconds; 0.0 if unknown."""
        self._config = config
        self._sync_ms = sync_ms
        self.watching = False
        """True while the log is at work without a break: then what is decided must be told (`decided`)."""
        self.overloaded = False
        """True while sends are refused as soon as the house is above its limit."""
        self.rate = 0.0
        """The bytes of sends that the log decides in a second; 0.0 if unknown."""
        self.house_bytes = NO_LIMIT
        """The limit."""
        self.entry_bytes = NO_LIMIT
        """The bytes of one entry: a large one makes all that come after it wait."""
        self.shared_bytes = NO_LIMIT
        """The same while somebody who sends less than its share waits for what others send."""
        self._rates: deque[tuple[int, float]] = deque(maxlen=INTERVALS_MAX)
        """(end of the interval in ms, bytes a second), oldest first."""
        self._since_ms = self._over_ms = 0
        self._decided = 0
        self._low = self._sum = self._seen = 0
        """The least bytes of the house in this interval, the sum of all that were seen, and their number."""
        self._spans: deque[_Span] = deque(maxlen=3 * SCALES[-1])
        """The last intervals without a break between them, oldest first."""
        self._quickest_ms, self._quickest_since_ms = UNKNOWN_MS, 0
        """Milliseconds from proposal to commit of the entry that was decided quickest, and the time from which on that
        was looked for."""
        self.forget()

    def reload(self, config: FlowSection) -> None:
        """Applies a changed configuration."""
        self._config = config
        if config.admission and self.rate:
            self._set()
        else:
            self.forget()

    def forget(self) -> None:
        """Forgets what was measured, for example when a term of leadership begins."""
        self.watching = self.overloaded = False
        self.rate = 0.0
        self._spans.clear()
        self.house_bytes = NO_LIMIT
        self.entry_bytes = self.shared_bytes = ENTRY_BYTES_UNKNOWN if self._config.admission else NO_LIMIT
        self._rates.clear()
        self._quickest_ms = UNKNOWN_MS

    def decided(self, size: int, took_ms: float) -> None:
        """Records that the log has decided an entry with `size` bytes of sends, `took_ms` after its proposal."""
        self._decided += size
        if took_ms < self._quickest_ms:
            self._quickest_ms = took_ms
        if not self.rate:
            share_ms = self._config.house_ms / ENTRY_SHARE
            self.entry_bytes = max(ENTRY_BYTES_UNKNOWN, int(size * share_ms / max(took_ms, TOOK_MS_MIN)))

    def emptied(self) -> None:
        """Records that the log has nothing to do: the interval ends without a result."""
        self.watching = False
        self._spans.clear()

    def is_limiting(self, now_ms: int) -> bool:
        """Returns True in an overload, if the house was above its limit a moment ago."""
        return self.overloaded and now_ms - self._over_ms <= LEAVE_MS

    def excess(self, house: int, waiting: int, now_ms: int) -> int:
        """Returns how many of the `waiting` bytes must be refused now, with `house` bytes undecided, these included; 0
        if none. Called as long as the log is at work."""
        if not self._config.admission:
            return 0
        if not self.watching:
            self.watching = True
            if now_ms - self._quickest_since_ms > QUICKEST_AGE_MS:
                self._quickest_ms, self._quickest_since_ms = UNKNOWN_MS, now_ms
            self._begin(house, now_ms)
        else:
            self._low = min(self._low, house)
            self._sum += house
            self._seen += 1
        elapsed_ms = now_ms - self._since_ms
        if elapsed_ms >= (INTERVAL_MS if self._decided else INTERVAL_MS_MAX):
            self._end(elapsed_ms, now_ms)
            self._begin(house, now_ms)
        if self.overloaded and now_ms - self._over_ms > LEAVE_MS:  # also if the log has been idle since then
            self.overloaded = False
        if not self.overloaded or house <= self.house_bytes:
            return 0
        self._over_ms = now_ms
        # The house may exceed the limit. The next entry waits all the same, because the log would be idle otherwise.
        return max(0, min(house - self.house_bytes, waiting - self.house_bytes // ENTRY_SHARE))

    def _begin(self, house: int, now_ms: int) -> None:
        self._since_ms, self._decided, self._low = now_ms, 0, house
        self._sum, self._seen = house, 1

    def _end(self, elapsed_ms: int, now_ms: int) -> None:
        """Ends an interval in which the log was never idle: records its rate."""
        rate = 1000 * self._decided / elapsed_ms
        if rate:  # an idle log shows nothing about what it can do
            self._rates.append((now_ms, rate))
            while now_ms - self._rates[0][0] > RATE_AGE_MS:
                self._rates.popleft()
            self.rate = median(each for _, each in self._rates)
            self._set()
        span = _Span(self._low, self._sum / self._seen, rate)
        self._spans.extend([span] * (elapsed_ms // INTERVAL_MS))
        if not self.overloaded and self._grows():
            self.overloaded, self._over_ms = True, now_ms

    def _grows(self) -> bool:
        """Returns True if the house grows above its limit from one span to the next, while the log decides at its usual
        rate."""
        spans = list(self._spans)
        usual = self.rate
        for scale in SCALES:
            if len(spans) < 3 * scale:
                return False
            first, second, third = (_joined(spans[-n * scale :][:scale]) for n in (3, 2, 1))
            growth = max(self.house_bytes * GROWTH, third.mean * GROWTH_OF_HOUSE)
            if (
                min(second.low, third.low) > self.house_bytes
                and min(second.mean - first.mean, third.mean - second.mean) >= growth
                and min(first.rate, second.rate, third.rate) >= usual * STALLED
                and third.rate <= first.rate * RISING
            ):
                return True
        return False

    def _set(self) -> None:
        config = self._config
        if self.rate:
            quickest_ms = 0.0 if self._quickest_ms == UNKNOWN_MS else self._quickest_ms
            house_ms = max(config.house_ms, min(TRIPS * quickest_ms, TRIPS_MS_MAX))
            self.house_bytes = max(config.house_bytes_min, int(self.rate * house_ms / 1000))
            self.entry_bytes = max(ENTRY_BYTES_MIN, self.house_bytes // ENTRY_SHARE)
            least = int(self.rate * SYNCS * max(self._sync_ms(), quickest_ms) / 1000)
            self.shared_bytes = min(self.entry_bytes, max(ENTRY_BYTES_MIN, least))


def _joined(spans: Sequence[_Span]) -> _Span:
    count = len(spans)
    return _Span(
        min(each.low for each in spans),
        sum(each.mean for each in spans) / count,
        sum(each.rate for each in spans) / count,
    )
