"""The room on a node's disk, watched: who refuses, holds and counts for the node."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cluster.retention.disk_space import DiskSpace

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.replication.mode_metrics import ModeMetrics
    from cluster.replication.proposals import Proposals
    from cluster.runtime.context import NodeContext


def disk_of(context: NodeContext, directory: Path, proposals: Proposals, metrics: ModeMetrics) -> DiskSpace:
    """`directory` is DATA. While there is no room no send may enter, and the node does not campaign."""
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
