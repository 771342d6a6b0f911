"""Assembles the watch over a node's disk and its retention from the node's parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cluster.retention.carry_forward import Carrier
from cluster.retention.disk_space import DiskSpace
from cluster.retention.metrics import RetentionMetrics
from cluster.retention.service import Retention

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster.replication.proposals import Proposals
    from cluster.retention.pinned_messages import ReadIntact
    from cluster.runtime.context import NodeContext
    from cluster.runtime.read_leases import Leases
    from cluster.state.node_storage import NodeStorage


def disk_of(context: NodeContext, directory: Path, proposals: Proposals, groups_here: Callable[[], int]) -> DiskSpace:
    """Makes the watch over the disk, which refuses sends and keeps the node from campaigning while the disk lacks
    space. `directory` is DATA. `groups_here` returns the number of groups of brokers that have nodes on this disk."""
    return DiskSpace(
        context.fs,
        directory,
        context.config.retention,
        context.alarms,
        refuse=proposals.refuse,
        hold=partial(context.raw.hold_campaigns, "disk"),
        slow_append_ms=context.config.log.slow_append_ms,
        groups_here=groups_here,
    )


def retention_of(
    context: NodeContext,
    storage: NodeStorage,
    proposals: Proposals,
    leases: Leases,
    *,
    writes_open: Callable[[], bool],
    read_intact: ReadIntact,
    report_damage: Callable[[int, int], None],
    tier_known: Callable[[], bool],
) -> Retention:
    """Makes the retention of the node, not started yet. `report_damage` receives the position and size of messages that
    cannot be read; the other parameters are explained at `Retention`."""
    metrics = RetentionMetrics(storage.state)
    carries = partial(
        Carrier,
        context.raw,
        storage.state,
        proposals,
        report_damage=report_damage,
        metrics=metrics,
    )
    return Retention(
        context,
        storage,
        leases,
        metrics=metrics,
        writes_open=writes_open,
        read_intact=read_intact,
        carries=lambda gather, ended: carries(gather=gather, ended=ended),
        tier_known=tier_known,
    )
