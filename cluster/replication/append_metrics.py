"""Writes to the log: how many bytes, how long, and how much of that was fdatasync. One call per write."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

from cluster.runtime.tallies import buckets

WHOLE = "raftmq_append_seconds", "Duration of one write to the log, fdatasync included"
SYNC = "raftmq_fdatasync_seconds", "Duration of fdatasync alone, of one write to the log"
BYTES = "raftmq_append_bytes", "Bytes made durable in the log"


class AppendMetrics:
    """Event loop only."""

    def __init__(self, registry: CollectorRegistry, bounds: tuple[float, ...]) -> None:
        """`bounds`: the greatest value of each bucket, ascending, seconds; one more bucket has the rest."""
        self.bounds = (*bounds, inf)
        self._whole, self._sync = [0] * len(self.bounds), [0] * len(self.bounds)
        self._whole_s = self._sync_s = 0.0
        self._bytes = 0
        registry.register(self)

    def written(self, size_bytes: int, seconds: float, sync_seconds: float) -> None:
        """One write."""
        self._bytes += size_bytes
        self._whole[bisect_left(self.bounds, seconds)] += 1
        self._whole_s += seconds
        self._sync[bisect_left(self.bounds, sync_seconds)] += 1
        self._sync_s += sync_seconds

    @property
    def counts(self) -> tuple[int, ...]:
        """Returns the writes in each bucket by their time, fdatasync included."""
        return tuple(self._whole)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for the registry."""
        for (name, text), counts, total_s in (WHOLE, self._whole, self._whole_s), (SYNC, self._sync, self._sync_s):
            family = HistogramMetricFamily(name, text)
            family.add_metric([], buckets(self.bounds, counts), total_s)
            yield family
        yield CounterMetricFamily(*BYTES, self._bytes)
