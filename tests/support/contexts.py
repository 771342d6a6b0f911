"""What services share in a node, for a service that is tested by itself."""

from __future__ import annotations

from typing import Any

from cluster.config.config import Config
from cluster.runtime.alarms import Alarms
from cluster.runtime.context import NodeContext
from cluster.runtime.environment import Environment


def context_of(
    config: Config, raw: Any, alarms: Alarms, environment: Environment | None = None, loop: Any = None
) -> NodeContext:
    """Nobody is to be woken, and a failure is raised where it happens; without a loop nothing may need one."""

    def fail(error: BaseException) -> None:
        raise error

    return NodeContext(config, environment or Environment(), loop, raw, alarms, wake=lambda: None, fail=fail)
