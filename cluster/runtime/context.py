"""The value that the services of one node share: made once, when the node starts, and handed to constructors.

It holds nothing but what lies below every service. Who needs one callable or one section of it takes just that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.config.config import Config
from cluster.runtime.alarms import Alarms
from cluster.runtime.clock import Clock
from cluster.runtime.environment import Environment
from cluster.runtime.events import EventLog
from cluster.runtime.failpoints.failpoints import FailpointSet
from cluster.runtime.figures.stage_times import StageTimes
from cluster.runtime.in_flight import InFlight
from cluster.runtime.succession import Succession
from cluster.runtime.turns.work import Turns
from raftlog.core.raw_node import RawNode
from raftlog.storage.files.fs import FileSystem


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The shared context of one start of a node, on its event loop."""

    config: Config
    """The configuration at the node's start; a service is handed what changes later
    (`cluster.runtime.parts.Part.reload`)."""
    environment: Environment
    loop: asyncio.AbstractEventLoop
    raw: RawNode
    """The core. Only the driver steps it; services ask it, propose to it, and wake the driver."""
    alarms: Alarms
    wake: Callable[[], None]
    """Schedules a turn of the driver. Event loop only."""
    stages: StageTimes
    """When the driver saw the stages of entries end."""
    fail: Callable[[BaseException], None]
    """Ends the node: its storage failed, or it is in a state that must not exist. Event loop only."""
    turns: Turns
    """Work that grows with input or data is cut, and shares turns here."""
    events: EventLog
    failpoints: FailpointSet
    succession: Succession
    """Hands leadership over."""
    in_flight: InFlight = field(default_factory=InFlight)

    @property
    def clock(self) -> Clock:
        """The node's clock."""
        return self.environment.clock

    @property
    def fs(self) -> FileSystem:
        """The node's file system."""
        return self.environment.fs
