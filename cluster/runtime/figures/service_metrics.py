"""The metrics of one service: the service makes them beside the code that counts, and lists them in its Part
(`cluster.runtime.service_lifecycle`).

The node's exporter (`cluster.node.metrics`) collects them from the parts, so a new metric changes no other file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client import Counter, Gauge
from prometheus_client.metrics_core import Metric

from cluster.runtime.figures.counters import Spread, Tallies, Tally


class _Shown(Protocol):
    def collect(self) -> Iterable[Metric]:
        """Yields the metrics."""


class ServiceMetrics:
    """The metrics of one service. Event loop only. A class that computes them at a scrape replaces `collect`."""

    def __init__(self) -> None:
        self._made: list[_Shown] = []
        self.labels: dict[str, Sequence[str]] = {}
        """Name of a metric that was made here -> its labels."""

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """Makes a gauge. `text` is its help text, `labels` are the names of its labels."""
        made = Gauge(name, text, labels, registry=None)
        self.labels[name] = labels
        self._made.append(made)
        return made

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Makes a counter for rare events: each increment takes a lock."""
        made = Counter(name, text, labels, registry=None)
        self.labels[name] = labels
        self._made.append(made)
        return made

    def tally(self, name: str, text: str) -> Tally:
        """Makes a counter for what happens once per entry."""
        made = Tally(name, text)
        self._made.append(made)
        return made

    def tallies(self, name: str, text: str, label: str) -> Tallies:
        """Makes counters, one for each value of the label `label`, for what happens once per entry."""
        made = Tallies(name, text, label)
        self.labels[name] = (label,)
        self._made.append(made)
        return made

    def spread(self, name: str, text: str, bounds: tuple[float, ...]) -> Spread:
        """Makes a histogram for what happens once per entry; `bounds` as in Spread."""
        made = Spread(name, text, bounds)
        self._made.append(made)
        return made

    def look(self) -> None:
        """Sets the metrics whose values are read from the service rather than counted. Called once before each
        scrape."""

    def look_in_steps(self) -> Iterable[None]:
        """Updates the metrics; yields between two steps if the work grows with the data."""
        self.look()
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for the exporter."""
        for each in self._made:
            yield from each.collect()
