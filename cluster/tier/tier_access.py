"""The tier of a node, with the store that its configuration names: what uploads, what reads, what scrubs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from cluster.broker.reads.read_levels import ReadLevels
from cluster.config.source import ConfigError
from cluster.runtime.parts import Part
from cluster.tier.deletions import Expiry
from cluster.tier.fetch.index_reads import EvictedBoundReads, EvictedKeyReads
from cluster.tier.fetch.range_cache import RangeCache
from cluster.tier.fetch.tier_reading import ReadMetrics, TierReading
from cluster.tier.index_file.index_files import IndexFiles, LocalIndexParts
from cluster.tier.scrub.scrub_service import TierScrubs
from cluster.tier.scrub.scrubber import IndexOfTier, Scrubber, Source
from cluster.tier.store.lineage import LineageStore
from cluster.tier.store.opening import open_store
from cluster.tier.store.retries import Bandwidth, RequestCounts, RetryingStore, RetryPolicy
from cluster.tier.tier_service import Tier
from raftlog.errors import OutOfRangeError, StorageError
from raftmq_wire.errors import LocalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from cluster.broker.services import Services
    from cluster.config.config import Config, TierSection
    from cluster.retention.leases import Leases
    from cluster.retention.service import Retention
    from cluster.runtime.context import NodeContext
    from cluster.runtime.failpoints.failpoints import FailpointSet
    from cluster.state.node_storage import NodeStorage
    from cluster.tier.fetch.evicted_messages import OldReads
    from cluster.tier.index_file.index_files import IndexMetrics
    from cluster.tier.store.object_store import ObjectStore
    from cluster.tier.tier_metrics import TierMetrics
    from statemachine.broker_state import BrokerState

CALL_TOTAL_S = 20.0
"""No attempt of one call begins later: between calls the uploader looks whether it still leads."""
CACHE = "tier-cache"


class TierAccess(NamedTuple):
    """The store of a node that has a tier, and what reads from it."""

    store: ObjectStore
    reading: TierReading
    keys: EvictedKeyReads
    bounds: EvictedBoundReads
    uploads: Bandwidth
    levels: ReadLevels

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
        )

    def _reload(self, config: Config) -> None:
        self.levels.reload(config)
        self.uploads.reload(config.tier.bytes_per_second)

    async def close(self) -> None:
        """Gives up what is under way; the store stays open."""
        await self.bounds.close()
        await self.keys.close()
        await self.reading.close()


def configured_store(section: TierSection) -> ObjectStore:
    """Connects to nothing yet. Raises ConfigError."""
    try:
        return open_store(section.url, section)
    except LocalError as error:  # to a node that starts, it is its configuration that is wrong
        raise ConfigError(error.what, error.why, error.fix) from error


def access_of(
    context: NodeContext, storage: NodeStorage, services: Services, registry: CollectorRegistry
) -> TierAccess | None:
    """None without a URL. Connects to nothing yet. Raises ConfigError."""
    section, environment = context.config.tier, context.environment
    if not section.url:
        ReadMetrics(registry, RequestCounts(), None)
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
    ReadMetrics(registry, counts, reading)
    keys = EvictedKeyReads(context.loop, reading.queues, reading.log, storage.state)
    memory = context.environment.memory_bytes
    levels = ReadLevels(context.config, storage.state, context.clock.monotonic_ms, memory)
    return TierAccess(store, reading, keys, EvictedBoundReads(context.loop, reading.queues), uploads, levels)


def where_of(store: ObjectStore) -> Callable[[str], str]:
    """The name under which an object lies: that of a restored cluster may lie below an ancestor's id."""
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
    metrics: TierMetrics,
    failpoints: FailpointSet,
    index_files: IndexFiles,
    access: TierAccess | None,
    expiry: Expiry | None,
) -> Tier:
    """Not started. Without a store it only shows what the state says."""
    store = None if access is None else access.store
    parts = LocalIndexParts(index_files)
    return Tier(
        context, storage, services, leases, store, metrics=metrics, failpoints=failpoints, index=parts, expiry=expiry
    )


def expiry_of(retention: Retention, state: BrokerState, access: TierAccess | None) -> Expiry | None:
    """Returns the service that trims the tier: retention decides what leaves it. None without a tier."""
    if access is None:
        return None
    return Expiry(state, access.reading.queues.ends, lambda: retention.expired_in_tier, retention.cut)


def index_files_of(context: NodeContext, storage: NodeStorage, metrics: IndexMetrics) -> IndexFiles:
    """Not started. A node of a tiered cluster has them: whichever leads uploads its own."""
    enabled = context.config.index.files or bool(context.config.tier.url)
    return IndexFiles(context, storage, metrics, enabled=enabled)


def scrubs_of(
    context: NodeContext, storage: NodeStorage, services: Services, access: TierAccess | None, tier: Tier
) -> TierScrubs | None:
    """None without a tier."""
    if access is None:
        return None
    folder = str(storage.directory.identity.cluster_uuid)
    index = IndexOfTier(access.store, folder, storage.directory.log.genesis)
    scrubber = Scrubber(
        access.store,
        folder,
        rows=lambda: storage.state.tier.rows,
        kept_from=lambda: storage.state.kept.position,
        wall_ms=context.clock.wall_ms,
        leads=services.writes_open,
        sources=[Source("this node", tier.content_of), Source("the segment's objects", index.content_of)],
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
