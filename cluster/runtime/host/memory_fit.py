"""Keeps what a node holds in memory below the bound of its control group, where the configuration allows more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cluster.runtime.host.cgroup import bounds

if TYPE_CHECKING:
    from cluster.config.config import Config

logger = logging.getLogger(__name__)

PART = 8
"""Requests in flight, answers that are not read yet and the page cache of the log get such a part of the bound each."""
MEMORY_MIN = 512 << 20
"""With less than this, a node under load is likely to be ended by the kernel."""


def fit_memory(config: Config, bound: int | None = None) -> Config:
    """The configuration with its limits of memory lowered to what the control group allows; the same if it bounds
    nothing. `bound`: bytes, for tests."""
    memory = bound if bound is not None else bounds().memory_bytes
    if memory is None:
        return config
    limits, log, part = config.limits, config.log, memory // PART
    inflight = min(limits.node_inflight_bytes_max, max(part, limits.connection_inflight_bytes_max))
    unsent = min(limits.node_unsent_bytes_max, max(part, limits.connection_unsent_bytes_max))
    cached = min(log.page_cache_bytes_max or part, part)
    if (inflight, unsent, cached) == (
        limits.node_inflight_bytes_max,
        limits.node_unsent_bytes_max,
        log.page_cache_bytes_max,
    ):
        return config
    logger.warning(
        "the control group of this process allows %d MiB of memory, so limits.node_inflight_bytes_max is %d, "
        "limits.node_unsent_bytes_max %d and log.page_cache_bytes_max %d here",
        memory >> 20,
        inflight,
        unsent,
        cached,
    )
    return replace(
        config,
        limits=replace(limits, node_inflight_bytes_max=inflight, node_unsent_bytes_max=unsent),
        log=replace(log, page_cache_bytes_max=cached),
    )
