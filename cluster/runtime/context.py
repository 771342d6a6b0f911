"""The values that all services of one node share: made once, when the node starts, and passed to constructors.

The context holds only values of layers below all services. A service that needs one function or one section of the
configuration takes just that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from cluster.config.config import Config
from cluster.runtime.alarms import Alarms
from cluster.runtime.clock import Clock
from cluster.runtime.environment import Environment
from cluster.runtime.events import EventLog
from cluster.runtime.failpoints.failpoints import FailpointSet
from cluster.runtime.figures.stage_times import StageTimes
from cluster.runtime.leader_handover import Succession
from cluster.runtime.turns.work import Turns
from raftlog.core.raw_node import RawNode
from raftlog.storage.files.fs import FileSystem


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The shared context of one start of a node, on its event loop."""

    config: Config
    """The configuration at the node's start. Later changes are passed to each service
    (`cluster.runtime.service_lifecycle.Part.reload`)."""
    environment: Environment
    loop: asyncio.AbstractEventLoop
    raw: RawNode
    """The Raft core. Only the driver steps it; services read it, propose to it, and wake the driver."""
    alarms: Alarms
    wake: Callable[[], None]
    """Schedules a turn of the driver. Event loop only."""
    stages: StageTimes
    """The times at which the driver saw that entries were on this node's disk, and that they were committed."""
    fail: Callable[[BaseException], None]
    """Ends the node, because its storage failed or its state is impossible. Event loop only."""
    turns: Turns
    """Divides work that grows with input or data into steps, and shares turns of the loop between them."""
    events: EventLog
    failpoints: FailpointSet
    succession: Succession
    """Chooses the next leader and hands leadership over."""

    @property
    def clock(self) -> Clock:
        """The node's clock."""
        return self.environment.clock

    @property
    def fs(self) -> FileSystem:
        """The node's file system."""
        return self.environment.fs
