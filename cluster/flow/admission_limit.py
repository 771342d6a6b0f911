"""Limits the bytes of a leader's undecided sends to as many as the log decides in a configured time. In an overload,
the leader refuses sends above this limit.

The *house* is the set of sends that have arrived and are not decided: the queue of sends, and the proposed entries. By
Little's law its bytes divided by the rate at which the log decides are the time that a send spends in it. So a limit on
the time is a limit on the bytes, and the only thing to learn is the rate. It is learned as BBR (the TCP congestion
control) learns the rate of a path: from the last intervals in which the log was never without work. An interval in
which the log was idle does not show what it can do.

A house above its limit is no overload yet. It fills while a sync, a checkpoint or an election delays the log, and
empties by itself. Overload is a house that stays above the limit and grows while the log decides at its usual rate. If
each of many clients waits for its answer before it sends again, the house does not grow, so this is no overload either.
docs/adr/0105 has the alternatives and what was measured.

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
"""The longest interval, in milliseconds. An interval ends after INTERVAL_MS if something was decided in it, otherwise
after this time. On a slow disk an entry takes longer than INTERVAL_MS. If the interval ended while the entry is
undecided, all bytes of the entry would count for the next interval, and its rate would be too high."""
INTERVALS_MAX: Final = 8
"""The number of intervals whose median rate is the rate of the log."""
RATE_AGE_MS: Final = 60_000
"""The age at which the rate of an interval is forgotten: the speed of the disk may have changed by now."""
SCALES: Final = (1, 2, 4, 8)
"""The lengths, in intervals, of the spans that are compared. A great overload shows in short spans; a small one on a
disk of uneven speed shows only in long spans."""
GROWTH: Final = 1 / 6
"""The least growth of the house from one span to the next that counts as growth, as a share of the limit."""
GROWTH_OF_HOUSE: Final = 1 / 10
"""The least growth that counts, as a share of the house itself. It applies if it is more than GROWTH of the limit.
After a burst, clients that wait behind it add a little to the house, which is no overload."""
RISING: Final = 1.25
"""The factor by which the log's rate may rise over three spans in an overload. A log whose rate rises by more was not
busy before, so the house grows only because more is in flight."""
STALLED: Final = 0.7
"""The share of the usual rate that the log must reach in each of the three spans. If it did not, something (a sync, a
checkpoint) delayed it, and the spans show no overload."""
LEAVE_MS: Final = 2_000
"""Milliseconds for which the house must stay within its limit before an overload is over."""
ENTRY_SHARE: Final = 4
"""One entry takes 1/ENTRY_SHARE of the limit: two entries are in flight, and the rest of the house waits."""
ENTRY_BYTES_MIN: Final = 64 * 1024
ENTRY_BYTES_UNKNOWN: Final = 256 * 1024
"""The least limit of an entry's bytes before the rate is known. It is raised if the last entry was decided quickly,
because a log that often has a break may never show its rate. With a limit of 1 MiB, nothing would be learned about a
disk of 2 MB/s for seconds."""
TOOK_MS_MIN: Final = 0.1
"""The least duration of a decision, in milliseconds, when a speed is computed from one decision alone."""
SYNCS: Final = 1.5
"""The time from which `shared_bytes` is computed, as a multiple of a sync, or of the quickest decision if that is
longer: an entry may have as many bytes as the log decides in this time. With less work in each of the two entries in
flight, disks with slow syncs would wait for work."""
TRIPS: Final = 10
"""The limit of the house is at least as many bytes as the log decides in this multiple of the quickest decision. With
less in flight, a log whose majority is far away, or whose disk syncs slowly, would wait for answers instead of using
its disks."""
TRIPS_MS_MAX: Final = 1_000
"""The most milliseconds that TRIPS times the quickest decision counts for. A leader that is elected in an overload sees
no quick decision, because each entry waits behind others."""
QUICKEST_AGE_MS: Final = 60_000
"""The age at which the quickest decision is forgotten. This happens only after the log has had nothing to do, because
no decision is quick in an overload."""
NO_LIMIT: Final = 1 << 62
UNKNOWN_MS: Final = math.inf


class _Span(NamedTuple):
    """The house and the log's rate, in bytes a second, during one interval or several in a row."""

    low: float
    """The least bytes that the house had."""
    mean: float
    rate: float


class AdmissionLimit:
    """Computes the limit of one node's house, and decides how much to refuse. Event loop only."""

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
        """True while the log is at work without a break. The caller must then report each decision to `decided`."""
        self.overloaded = False
        """True while sends are refused as soon as the house is above its limit."""
        self.rate = 0.0
        """The bytes of sends that the log decides in a second; 0.0 if unknown."""
        self.house_bytes = NO_LIMIT
        """The limit of the house, in bytes."""
        self.entry_bytes = NO_LIMIT
        """The most bytes of one entry. A larger entry would make all entries behind it wait."""
        self.shared_bytes = NO_LIMIT
        """The most bytes of one entry while an owner that sends less than its share waits behind what others send."""
        self._rates: deque[tuple[int, float]] = deque(maxlen=INTERVALS_MAX)
        """(end of the interval in ms, bytes a second), oldest first."""
        self._since_ms = self._over_ms = 0
        self._decided = 0
        self._low = self._sum = self._seen = 0
        """The least bytes of the house in this interval, the sum of all measurements of it, and the number of
        measurements."""
        self._spans: deque[_Span] = deque(maxlen=3 * SCALES[-1])
        """The last intervals without a break between them, oldest first."""
        self._quickest_ms, self._quickest_since_ms = UNKNOWN_MS, 0
        """The fewest milliseconds from proposal to commit of an entry, and the time since which that is measured."""
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
        """Records that the log has nothing to do: the present interval is dropped, with the spans before it."""
        self.watching = False
        self._spans.clear()

    def is_limiting(self, now_ms: int) -> bool:
        """Returns True in an overload, if the house was above its limit in the last LEAVE_MS."""
        return self.overloaded and now_ms - self._over_ms <= LEAVE_MS

    def excess(self, house: int, waiting: int, now_ms: int) -> int:
        """Returns how many bytes of sends must be refused now; 0 if none. `house`: the bytes of all undecided sends.
        `waiting`: those of them that are not proposed yet, of which the result is a part. Called as long as the log is
        at work."""
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
        if self.overloaded and now_ms - self._over_ms > LEAVE_MS:  # this also happens after the log was idle
            self.overloaded = False
        if not self.overloaded or house <= self.house_bytes:
            return 0
        self._over_ms = now_ms
        # The sends of the next entry are not refused even if the house exceeds the limit, because the log would be idle
        # otherwise.
        return max(0, min(house - self.house_bytes, waiting - self.house_bytes // ENTRY_SHARE))

    def _begin(self, house: int, now_ms: int) -> None:
        self._since_ms, self._decided, self._low = now_ms, 0, house
        self._sum, self._seen = house, 1

    def _end(self, elapsed_ms: int, now_ms: int) -> None:
        """Ends an interval in which the log was never idle: records its rate, and checks for an overload."""
        rate = 1000 * self._decided / elapsed_ms
        if rate:  # an interval without a decision does not show what the log can do
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
        """Returns True if the house is above its limit and grows from one span to the next, while the log decides at
        its usual rate."""
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
