"""Assembles the watch over a node's disk and its retention from the node's parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cluster.retention.carry_forward import Carrier
from cluster.retention.disk_space import DiskSpace
from cluster.retention.service import Retention

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster.broker.services import Services
    from cluster.replication.metrics import ModeMetrics
    from cluster.replication.proposals import Proposals
    from cluster.retention.metrics import RetentionMetrics
    from cluster.runtime.context import NodeContext
    from cluster.runtime.read_leases import Leases
    from cluster.state.node_storage import NodeStorage


def disk_of(context: NodeContext, directory: Path, proposals: Proposals, metrics: ModeMetrics) -> DiskSpace:
    """Makes the watch over the disk, which refuses sends and keeps the node from campaigning while the disk lacks
    space. `directory` is DATA."""
    return DiskSpace(
        context.fs,
        directory,
        context.config.retention,
        context.alarms,
        refuse=proposals.refuse,
        hold=partial(context.raw.hold_campaigns, "disk"),
        metrics=metrics,
        slow_append_ms=context.config.log.slow_append_ms,
    )


def retention_of(
    context: NodeContext,
    storage: NodeStorage,
    services: Services,
    proposals: Proposals,
    leases: Leases,
    metrics: RetentionMetrics,
    *,
    tier_known: Callable[[], bool],
) -> Retention:
    """Makes the retention of the node, not started yet. `tier_known` is explained at `Retention`."""
    carries = partial(
        Carrier,
        context.raw,
        storage.state,
        proposals,
        report_damage=services.report_damage,
        metrics=metrics,
    )
    return Retention(
        context,
        storage,
        leases,
        metrics=metrics,
        writes_open=services.writes_open,
        carries=lambda gather, ended: carries(gather=gather, ended=ended),
        tier_known=tier_known,
    )
