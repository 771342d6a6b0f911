"""What services share in a node, for a service that is tested by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.config.config import Config, NodeSection
from cluster.runtime.alarms import Alarms
from cluster.runtime.context import NodeContext
from cluster.runtime.environment import Environment
from cluster.runtime.stage_times import StageTimes
from cluster.runtime.work import Turns

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
    return NodeContext(config, environment or Environment(), loop, raw, alarms, wake, StageTimes(), fail, turns)
