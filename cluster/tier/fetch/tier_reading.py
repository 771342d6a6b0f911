"""Everything that one node reads from the tier with, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.runtime.turns.work import Turns
from cluster.tier.fetch.evicted_messages import OldPageReads, OldReads
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.fetch.range_cache import RangeCache
from cluster.tier.fetch.tier_log import OtherSource, TierLog
from cluster.tier.fetch.tier_queues import TierQueues
from cluster.tier.store.object_store import ObjectStore
from cluster.tier.store.retries import RequestCounts
from statemachine.tier import Rows


class TierReading:
    """Event loop only. The store is the caller's to close."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: ObjectStore,
        folder: str,
        rows: Callable[[], Rows],
        cache: RangeCache | None,
        elsewhere: OtherSource | None = None,
        turns: Turns | None = None,
        where: Callable[[str], str] = str,
    ) -> None:
        """See TierLog. `turns`: see OldReads; `where`: see ObjectReads."""
        self.cache = cache
        self.reads = ObjectReads(store, cache, where=where)
        self.log = TierLog(self.reads, rows, folder, elsewhere)
        self.queues = TierQueues(self.reads, rows, folder)
        self.old = OldReads(loop, self.queues, self.log, self.reads, turns)
        self.pages = OldPageReads(self.queues, self.log)

    async def open(self) -> None:
        """Before the first read."""
        if self.cache is not None:
            await self.cache.open()

    async def close(self) -> None:
        """Gives up what is under way."""
        await self.old.close()
        await self.reads.close()
        if self.cache is not None:
            self.cache.close()


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
