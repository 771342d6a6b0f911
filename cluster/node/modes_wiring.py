"""What a node has of modes and of room on its disk, made from the node's parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cluster.replication.modes import Modes
from cluster.retention.disk_space import DiskSpace

if TYPE_CHECKING:
    from cluster.node.own_port import OwnPort
    from cluster.runtime.clock import Clock


def disk_of(node: OwnPort, retry: Callable[[], None]) -> DiskSpace:
    """`retry` has the append lane try again what it put aside."""
    return DiskSpace(
        node.environment.fs,
        node.parts.directory.path,
        node.config.retention,
        node.alarms,
        refuse=node.proposals.refuse,
        retry=retry,
        hold=partial(node.raw.hold_campaigns, "disk"),
        metrics=node.metrics.modes,
        slow_append_ms=node.config.log.slow_append_ms,
    )


def modes_of(node: OwnPort, loop: asyncio.AbstractEventLoop, clock: Clock) -> Modes:
    """The pulls of the node are told whom to suggest."""
    modes = Modes(
        node.config,
        node.raw,
        node.proposals.early,
        node.parts.directory.log,
        node.transport,
        loop,
        node.driver.wake,
        node.metrics.modes,
        node.state,
        clock.monotonic_ms,
    )
    node.pulls.reads = modes.reads
    return modes
