"""Metrics of what a node asks of the tier's store, and of its cache (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.tier.fetch.tier_reading import TierReading
from cluster.tier.store.request_counts import RequestCounts


class ReadMetrics:
    """Read from the counts when Prometheus asks; nothing is paid for between."""

    def __init__(self, registry: CollectorRegistry, counts: RequestCounts, reading: TierReading | None) -> None:
        """Without a tier all of them are 0."""
        self._counts = counts
        self._reading = reading
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        counts, reading = self._counts, self._reading
        cache = None if reading is None else reading.cache
        log = None if reading is None else reading.log.counts
        requests = CounterMetricFamily(
            "raftmq_tier_requests",
            "Requests to the store, by operation and how they ended",
            labels=["operation", "outcome"],
        )
        for labels, count in counts.requests.items():
            requests.add_metric(labels, count)
        yield requests
        for name, text, value in (
            ("request_retries", "Requests to the store that were sent once more", counts.retries),
            ("sent_bytes", "Bytes of objects that the store accepted", counts.sent_bytes),
            ("received_bytes", "Bytes of objects that came from the store", counts.received_bytes),
            ("cache_hits", "Ranges, or parts of them, that the cache had", cache.counts.hits if cache else 0),
            ("cache_misses", "Ranges, or parts of them, that it did not have", cache.counts.misses if cache else 0),
            (
                "cache_dropped",
                "Files of the cache that were damaged, or could not be used",
                cache.counts.dropped if cache else 0,
            ),
            ("served_bytes", "Bytes of messages that were read from the tier", log.served_bytes if log else 0),
            (
                "damaged_messages",
                "Messages that did not match their checksum when first read",
                log.damaged if log else 0,
            ),
            ("mended_messages", "Of these: intact when fetched again, or elsewhere", log.mended if log else 0),
        ):
            yield CounterMetricFamily(f"raftmq_tier_{name}", text, value=value)
        yield GaugeMetricFamily(
            "raftmq_tier_cache_bytes", "Bytes that the cache holds now", value=cache.bytes if cache else 0
        )
