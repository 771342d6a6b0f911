"""The context that services share in a node, for a service that is tested by itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection
from cluster.runtime.alarms import Alarms
from cluster.runtime.context import NodeContext
from cluster.runtime.environment import Environment
from cluster.runtime.events import EventLog
from cluster.runtime.failpoints.failpoints import FailpointSet
from cluster.runtime.figures.stage_times import StageTimes
from cluster.runtime.leader_handover import Succession
from cluster.runtime.service_lifecycle import AppliedRun
from cluster.runtime.turns.work import Turns
from raftlog.types import Entry

CONFIG = Config(node=NodeSection(id=1, data_dir="/data"))


def context_of(
    raw: Any,
    alarms: Alarms,
    *,
    config: Config = CONFIG,
    environment: Environment | None = None,
    loop: Any = None,
    wake: Callable[[], None] = lambda: None,
) -> NodeContext:
    """A failure is raised where it happens; without a loop nothing may need one."""

    def fail(error: BaseException) -> None:
        raise error

    turns = Turns(loop.call_soon if loop is not None else lambda callback: None)
    environment = environment or Environment()
    events = EventLog(config.node.id, lambda: 0)
    return NodeContext(
        config,
        environment,
        loop,
        raw,
        alarms,
        wake,
        StageTimes(),
        fail,
        turns,
        events,
        FailpointSet(False),
        Succession(raw, wake),
    )


def run_of(*entries: Entry) -> AppliedRun:
    """Entries that were applied together."""
    return cast("AppliedRun", SimpleNamespace(entries=entries))
