"""The tier of a node, with the store that its configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cluster.tier.index_file.index_files import IndexFiles
from cluster.tier.index_file.index_parts import LocalIndexParts
from cluster.tier.store.opening import open_store
from cluster.tier.store.request_counts import RequestCounts
from cluster.tier.store.retries import RetryingStore, RetryPolicy
from cluster.tier.tier_service import Tier

if TYPE_CHECKING:
    from cluster.node.services import NodeServices
    from cluster.retention.leases import Leases
    from cluster.runtime.context import NodeContext
    from cluster.runtime.failpoints import FailpointSet
    from cluster.state.node_storage import NodeStorage
    from cluster.tier.index_file.index_metrics import IndexMetrics
    from cluster.tier.store.object_store import ObjectStore
    from cluster.tier.tier_metrics import TierMetrics

CALL_TOTAL_S = 20.0
"""No attempt of one call begins later: between calls the uploader looks whether it still leads."""


def tier_of(
    context: NodeContext,
    storage: NodeStorage,
    services: NodeServices,
    leases: Leases,
    metrics: TierMetrics,
    failpoints: FailpointSet,
    index_files: IndexFiles,
) -> Tier:
    """Not started. Without a URL it only shows what the state says. Raises LocalError."""
    url, environment = context.config.tier.url, context.environment
    store: ObjectStore | None = None
    if url:
        # The environment lies below the protocol of stores, so it cannot name the type.
        opened = cast("ObjectStore", environment.open_store(url)) if environment.open_store else open_store(url)
        store = RetryingStore(opened, RetryPolicy(total_s=CALL_TOTAL_S), environment.random(), RequestCounts())
    parts = LocalIndexParts(index_files)
    return Tier(context, storage, services, leases, store, metrics=metrics, failpoints=failpoints, index=parts)


def index_files_of(context: NodeContext, storage: NodeStorage, metrics: IndexMetrics) -> IndexFiles:
    """Not started. A node of a tiered cluster has them: whichever leads uploads its own."""
    enabled = context.config.index.files or bool(context.config.tier.url)
    return IndexFiles(context, storage, metrics, enabled=enabled)
