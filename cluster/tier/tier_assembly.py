"""Builds the tier of a node on the store that its configuration names: uploads, reads and scrubs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.broker.reads.tier_read_policy import ReadLevels
from cluster.config.source import ConfigError
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.service_lifecycle import Part
from cluster.runtime.turns.work import Turns
from cluster.tier.deletions import Expiry
from cluster.tier.fetch.evicted_messages import OldPageReads, OldReads
from cluster.tier.fetch.index_reads import EvictedBoundReads, EvictedKeyReads
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.fetch.range_cache import RangeCache
from cluster.tier.fetch.tier_log import OtherSource, TierLog
from cluster.tier.fetch.tier_queues import TierQueues
from cluster.tier.index_file.index_files import IndexFiles, LocalIndexParts
from cluster.tier.scrub.scrub_service import TierScrubs
from cluster.tier.scrub.scrubber import IndexOfTier, PartSource, TierScrubber
from cluster.tier.store.errors import NotFound
from cluster.tier.store.object_store import Data, ObjectInfo, ObjectStore, StoredObject
from cluster.tier.store.retrying_store import Bandwidth, RequestCounts, RetryingStore, RetryPolicy
from cluster.tier.store.store_by_url import open_store
from cluster.tier.tier_service import Tier
from raftlog.errors import OutOfRangeError, StorageError
from raftmq_wire.errors import LocalError
from statemachine.tier import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.broker.services import Services
    from cluster.config.config import Config
    from cluster.config.storage_sections import TierSection
    from cluster.retention.service import Retention
    from cluster.runtime.context import NodeContext
    from cluster.runtime.read_leases import Leases
    from cluster.state.node_storage import NodeStorage
    from cluster.tier.fetch.evicted_messages import OldReads
    from cluster.tier.store.object_store import ObjectStore
    from statemachine.broker_state import BrokerState


T = TypeVar("T")
SHARED = ("log/", "index/")
"""Folders of a cluster whose objects the rows of a restored cluster name too. An object's name contains a hash of its
content, so in every cluster the same name means the same content."""


class LineageStore:
    """An ObjectStore that also reads the objects of a cluster's ancestors: the clusters from which it was restored.
    Writes only the cluster's own objects. Event loop only."""

    def __init__(self, store: ObjectStore, own: str, ancestors: Sequence[str]) -> None:
        """`own`: the cluster's folder; `ancestors`: those of the clusters it was restored from, the nearest first."""
        self._store = store
        self._own = own
        self._ancestors = ancestors
        self._found: dict[str, str] = {}
        """Name of an object -> the ancestor's name under which it was found."""

    @property
    def root(self) -> str:
        return self._store.root

    async def create(self, name: str, data: Data) -> None:
        await self._store.create(name, data)

    async def replace(self, name: str, data: Data, tag: str) -> None:
        """Replaces the version `tag` of the object (`ObjectStore.replace`). An ancestor's object is not changed: the
        new content is written below the own folder, where readers look first."""
        if self._found.pop(name, None) is not None:
            await self._store.create(name, data)
        else:
            await self._store.replace(name, data, tag)

    async def get(self, name: str, size_max: int) -> StoredObject:
        return await self._look(name, lambda where: self._store.get(where, size_max))

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        return await self._look(name, lambda where: self._store.get_range(where, start, stop))

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await self._look(name, lambda where: self._store.get_ranges(where, ranges))

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        return await self._look(name, lambda where: self._store.checksum(where, start, stop, crc))

    async def head(self, name: str) -> ObjectInfo:
        return await self._look(name, self._store.head)

    def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """Lists the objects below `folder` (`ObjectStore.list`); ancestors' objects are left out."""
        return self._store.list(folder)

    async def delete(self, name: str) -> None:
        """Removes the object, if there is one (`ObjectStore.delete`); an ancestor's object stays."""
        await self._store.delete(name)

    async def sweep(self, older_than_ms: int) -> int:
        return await self._store.sweep(older_than_ms)

    async def close(self) -> None:
        await self._store.close()

    def where(self, name: str) -> str:
        """Returns the name under which the object is stored, as far as it is known; for people."""
        return self._found.get(name, name)

    async def _look(self, name: str, call: Callable[[str], Awaitable[T]]) -> T:
        """Calls `call` with the name under which the object exists: first the cluster's own name, then those of its
        ancestors. Returns the result of the call."""
        known = self._found.get(name)
        if known is not None:
            try:
                return await call(known)
            except NotFound:
                del self._found[name]
        try:
            return await call(name)
        except NotFound:
            for where in self._elsewhere(name):
                try:
                    answer = await call(where)
                except NotFound:
                    continue
                self._found[name] = where
                return answer
            if elsewhere := self._elsewhere(name):
                raise NotFound(f"there is no {' and no '.join((name, *elsewhere))}") from None
            raise

    def _elsewhere(self, name: str) -> Sequence[str]:
        folder, _, part = name.partition("/")
        if folder != self._own or not part.startswith(SHARED):
            return ()
        return [f"{ancestor}/{part}" for ancestor in self._ancestors]


class TierReading:
    """The readers of the tier: ranges of objects, messages of the log, queues. The caller closes the store. Event loop
    only."""

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
        """`rows`, `folder` and `elsewhere` are explained at TierLog, `turns` at OldReads, `where` at ObjectReads.
        `cache`: None to keep nothing that is read."""
        self.cache = cache
        self.reads = ObjectReads(store, cache, where=where)
        self.log = TierLog(self.reads, rows, folder, elsewhere)
        self.queues = TierQueues(self.reads, rows, folder)
        self.old = OldReads(loop, self.queues, self.log, self.reads, turns)
        self.pages = OldPageReads(self.queues, self.log)

    async def open(self) -> None:
        """Opens the cache, if there is one; called before the first read."""
        if self.cache is not None:
            await self.cache.open()

    async def close(self) -> None:
        """Cancels the reads in progress, and closes the cache."""
        await self.old.close()
        await self.reads.close()
        if self.cache is not None:
            self.cache.close()


class ReadMetrics(ServiceMetrics):
    """Metrics of requests to the store and of reads from the tier, computed from the counts at each scrape."""

    def __init__(self, counts: RequestCounts, reading: TierReading | None) -> None:
        """`reading`: None without a tier; then its metrics are 0."""
        super().__init__()
        self._counts = counts
        self._reading = reading

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for the exporter."""
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


CALL_TOTAL_S = 20.0
"""Seconds after which no further attempt of one call begins. Between calls the uploader checks that the node still
leads."""
CACHE = "tier-cache"


class TierAccess(NamedTuple):
    """The store of a node that has a tier, and the readers of it."""

    store: ObjectStore
    reading: TierReading
    keys: EvictedKeyReads
    bounds: EvictedBoundReads
    uploads: Bandwidth
    levels: ReadLevels
    metrics: ReadMetrics

    @property
    def for_pulls(self) -> tuple[OldReads, ReadLevels]:
        """The service that answers pulls from the tier, and the levels that say when it does."""
        return self.reading.old, self.levels

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="tier reading",
            start=self.reading.open,
            close=self.close,
            reload=self._reload,
            metrics=(self.metrics,),
        )

    def _reload(self, config: Config) -> None:
        self.levels.reload(config)
        self.uploads.reload(config.tier.bytes_per_second)

    async def close(self) -> None:
        """Cancels the reads in progress; the store stays open."""
        await self.bounds.close()
        await self.keys.close()
        await self.reading.close()


def configured_store(section: TierSection) -> ObjectStore:
    """Returns the store of the configuration without connecting to it. Raises ConfigError."""
    try:
        return open_store(section.url, section)
    except LocalError as error:  # a wrong store is an error of the starting node's configuration
        raise ConfigError(error.what, error.why, error.fix) from error


def reading_part(access: TierAccess | None) -> Part:
    """Returns the part that reads the tier; without a tier it only shows metrics."""
    if access is None:
        return Part(name="tier reading", metrics=(ReadMetrics(RequestCounts(), None),))
    return access.part()


def access_of(context: NodeContext, storage: NodeStorage, services: Services) -> TierAccess | None:
    """Returns the access to the tier without connecting to it; None if no URL is configured. Raises ConfigError."""
    section, environment = context.config.tier, context.environment
    if not section.url:
        return None
    counts, uploads = RequestCounts(), Bandwidth(section.bytes_per_second, context.clock.monotonic_s)
    if environment.open_store is not None:
        # The environment lies below the protocol of stores, so it cannot name the type.
        opened, cache = cast("ObjectStore", environment.open_store(section.url)), None
    else:
        opened, cache = configured_store(section), _cache(section, storage.directory.path)
    retrying = RetryingStore(
        opened,
        RetryPolicy(total_s=CALL_TOTAL_S),
        environment.random(),
        counts,
        uploads,
    )
    identity = storage.directory.identity
    folder, ancestors = str(identity.cluster_uuid), [str(each.cluster_uuid) for each in reversed(identity.origin)]
    store = LineageStore(retrying, folder, ancestors) if ancestors else retrying

    async def from_log(position: int, size: int) -> bytes | None:
        try:
            return services.read_log(position, size)
        except (StorageError, OutOfRangeError):
            return None

    reading = TierReading(
        context.loop,
        store,
        folder,
        lambda: storage.state.kept_segments,
        cache,
        from_log,
        context.turns,
        where_of(store),
    )
    keys = EvictedKeyReads(context.loop, reading.queues, reading.log, storage.state)
    memory = context.environment.memory_bytes
    levels = ReadLevels(context.config, storage.state, context.clock.monotonic_ms, memory)
    bounds, metrics = EvictedBoundReads(context.loop, reading.queues), ReadMetrics(counts, reading)
    return TierAccess(store, reading, keys, bounds, uploads, levels, metrics)


def where_of(store: ObjectStore) -> Callable[[str], str]:
    """Returns a function from an object's name to the name under which the object lies. In a restored cluster, the
    latter may begin with an ancestor's id."""
    return store.where if isinstance(store, LineageStore) else str


def _cache(section: TierSection, data: Path) -> RangeCache | None:
    if not section.cache_bytes_max:
        return None
    return RangeCache(Path(section.cache_dir) if section.cache_dir else data / CACHE, section.cache_bytes_max)


def tier_of(
    context: NodeContext,
    storage: NodeStorage,
    services: Services,
    leases: Leases,
    index_files: IndexFiles,
    access: TierAccess | None,
    expiry: Expiry | None,
) -> Tier:
    """Returns the tier, not started. Without a store it only shows what the state says."""
    store = None if access is None else access.store
    parts = LocalIndexParts(index_files)
    return Tier(context, storage, services, leases, store, index=parts, expiry=expiry)


def expiry_of(retention: Retention, state: BrokerState, access: TierAccess | None) -> Expiry | None:
    """Returns the service that trims the tier as retention decides; None without a tier."""
    if access is None:
        return None
    return Expiry(state, access.reading.queues.ends, lambda: retention.expired_in_tier, retention.cut)


def index_files_of(context: NodeContext, storage: NodeStorage) -> IndexFiles:
    """Returns the builder of index files, not started. In a cluster with a tier every node builds them, so that each
    leader can upload its own."""
    enabled = context.config.index.files or bool(context.config.tier.url)
    return IndexFiles(context, storage, enabled=enabled)


def scrubs_of(
    context: NodeContext, storage: NodeStorage, services: Services, access: TierAccess | None, tier: Tier
) -> TierScrubs | None:
    """Returns the service that scrubs the tier, with its first scrub planned; None without a tier."""
    if access is None:
        return None
    folder = str(storage.directory.identity.cluster_uuid)
    index = IndexOfTier(access.store, folder, storage.directory.log.genesis)
    scrubber = TierScrubber(
        access.store,
        folder,
        rows=lambda: storage.state.tier.rows,
        kept_from=lambda: storage.state.kept.position,
        wall_ms=context.clock.wall_ms,
        leads=services.writes_open,
        sources=[PartSource("this node", tier.content_of), PartSource("the segment's objects", index.content_of)],
        where=where_of(access.store),
    )
    scrubs = TierScrubs(
        context.config.node.id,
        scrubber,
        every_hours=context.config.tier.scrub_every_hours,
        wall_ms=context.clock.wall_ms,
        leads=services.writes_open,
        alarm=context.alarms.raise_alarm,
        clear=context.alarms.clear,
        repaired=access.reading.reads.broken.forget,
    )
    scrubs.plan(clean=storage.directory.log.report.clean)
    return scrubs
