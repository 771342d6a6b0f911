"""/v1/log-level: how much the node logs, until its next start or until its configuration is read again."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.admin.call import Call
from cluster.runtime import logs

Level = Literal["debug", "info", "warning", "error"]


class LogLevel(msgspec.Struct, frozen=True, kw_only=True):
    """`PUT /v1/log-level`."""

    level: Level


class LogLevelView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/log-level`."""

    node: int
    level: Level
    """Now."""
    configured: Level
    """log_output.level."""


async def get_log_level(call: Call) -> LogLevelView:
    """How much this node logs."""
    config = call.port.config
    return LogLevelView(node=config.node.id, level=logs.level(), configured=config.log_output.level)


async def set_log_level(call: Call) -> LogLevelView:
    """Makes this node log more or less until its next start."""
    wanted: LogLevel = call.body
    before = logs.level()
    logs.set_level(wanted.level)
    about = f"node {call.port.config.node.id}"
    call.port.events.note("configuration", about, f"the log level is {wanted.level} now, it was {before}")
    return await get_log_level(call)
