"""Counters and histograms for one thread, for values that are counted once per entry. They are quicker than those of
prometheus_client, which take a lock for each value and search the buckets of a histogram in Python. They are exported
in the same form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import accumulate, islice
from math import inf
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from raftlog.work import charge


def buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    """Returns a histogram's buckets as they are exported: (upper bound as text, number of values not above it).
    `counts` are the numbers of values in each bucket alone."""
    return list(zip(map(floatToGoString, bounds), accumulate(counts), strict=True))


class Tally:
    """A counter. Only the event loop adds and reads."""

    __slots__ = ("_name", "_text", "_value")

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Adds `amount` to the counter."""
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        """Yields the counter as a metric, for the exporter."""
        yield CounterMetricFamily(self._name, self._text, self._value)


SERIES_MAX = 1000
"""The most series of one counter that are exported, those that were counted first. One more series, with an empty
label, has the sum of those that are not exported."""


class Tallies:
    """Counters of one name, one for each value of a label. Only the event loop adds and reads."""

    __slots__ = ("_label", "_name", "_text", "values")

    def __init__(self, name: str, text: str, label: str) -> None:
        self._name, self._text, self._label = name, text, label
        self.values: dict[str, int] = {}
        """Value of the label -> count."""

    def collect(self) -> Iterator[Metric]:
        """Yields the metric with the counters of at most SERIES_MAX values, and one for the rest."""
        family = CounterMetricFamily(self._name, self._text, labels=(self._label,))
        for value, count in islice(self.values.items(), SERIES_MAX):
            family.add_metric((value,), count)
        if len(self.values) > SERIES_MAX:
            family.add_metric(("",), sum(islice(self.values.values(), SERIES_MAX, None)))
        yield family


SERIES_PER_UNIT = 64
"""The number of series that are compared with the existing topics for one unit of work (`raftlog.work`)."""


class TopicTallies:
    """Counts messages and their bytes by topic."""

    __slots__ = ("_bytes", "messages")

    def __init__(self, messages: Tallies, size_bytes: Tallies) -> None:
        self.messages = messages
        self._bytes = size_bytes

    def add(self, topic: str, messages: int, size_bytes: int) -> None:
        """Adds `messages` messages of one topic, which have `size_bytes` bytes together."""
        counts, sizes = self.messages.values, self._bytes.values
        counts[topic] = counts.get(topic, 0) + messages
        sizes[topic] = sizes.get(topic, 0) + size_bytes

    def forget_all_but(self, topics: Container[str]) -> None:
        """Removes the series of each topic that is not in `topics`."""
        for tallies in (self.messages, self._bytes):
            charge(len(tallies.values) // SERIES_PER_UNIT)
            for topic in [each for each in tallies.values if each not in topics]:
                del tallies.values[topic]


class Spread:
    """A histogram. Only the event loop adds and reads."""

    __slots__ = ("_bounds", "_counts", "_name", "_sum", "_text")

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        """`bounds` are the greatest values of the buckets, ascending; one more bucket has the rest."""
        self._name, self._text = name, text
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value in its bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def bounds(self) -> tuple[float, ...]:
        """The upper bound of each bucket; the last one is infinite."""
        return self._bounds

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of values in each bucket."""
        return tuple(self._counts)

    def collect(self) -> Iterator[Metric]:
        """Yields the histogram as a metric, for the exporter."""
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], buckets(self._bounds, self._counts), self._sum)
        yield family


SAMPLE_MS = 1_000
WINDOWS_MS = (10_000, 60_000, 600_000)
"""RocketMQ's three windows of rates, in milliseconds."""
SAMPLES_MAX = WINDOWS_MS[-1] // SAMPLE_MS + 1


class Totals(NamedTuple):
    """Totals of messages since the node's start."""

    taken: int
    """Messages that this node has acknowledged while it led."""
    given: int
    """Messages that were delivered as answers to pulls."""


class Rates:
    """Samples the totals of messages once a second, and computes rates from the samples."""

    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals
        self._times_ms: list[int] = []
        self._samples: list[Totals] = []

    @property
    def samples(self) -> int:
        """Number of samples that are kept."""
        return len(self._samples)

    def tick(self, now_ms: int) -> None:
        """Takes a sample when one is due. Called on a timer."""
        if self._times_ms and now_ms - self._times_ms[-1] < SAMPLE_MS:
            return
        self._times_ms.append(now_ms)
        self._samples.append(self._totals())
        if len(self._times_ms) > 2 * SAMPLES_MAX:
            del self._times_ms[:-SAMPLES_MAX], self._samples[:-SAMPLES_MAX]

    def taken(self) -> list[float]:
        """Returns the acknowledged messages per second in each of WINDOWS_MS. If the samples do not go back that far,
        the rate is that since the first sample; 0 with fewer than two samples."""
        return [self._rate(window_ms, 0) for window_ms in WINDOWS_MS]

    def given(self) -> list[float]:
        """Returns the delivered messages per second in each of WINDOWS_MS, as `taken` does."""
        return [self._rate(window_ms, 1) for window_ms in WINDOWS_MS]

    def _rate(self, window_ms: int, place: int) -> float:
        if len(self._times_ms) < 2:
            return 0.0
        first = min(bisect_left(self._times_ms, self._times_ms[-1] - window_ms), len(self._times_ms) - 2)
        count = self._samples[-1][place] - self._samples[first][place]
        return 1000 * count / (self._times_ms[-1] - self._times_ms[first])
