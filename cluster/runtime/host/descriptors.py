"""Divides the process's file descriptors between clients and files.

A node that accepts clients until the system refuses the next descriptor cannot open its next segment either, and stops.
"""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cluster.config.source import ConfigError
from statemachine.rows.rocksdb_store import open_files_max

if TYPE_CHECKING:
    from cluster.config.config import Config

logger = logging.getLogger(__name__)

OTHERS = 128
"""Descriptors for the log, copies and backups, the peers, the HTTP API and the process itself, besides RocksDB's."""
CLIENTS_MIN = 32
"""The least number of clients for which there must be descriptors; with fewer the node does not start."""


def fit(config: Config) -> Config:
    """Returns the configuration with no more clients' connections than there are descriptors for them. Raises the
    process's soft limit of descriptors first, if that is allowed.

    Raises ConfigError if hardly any descriptors are left.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.limits.connections_max
    soft = _raised(soft, hard, wanted + reserve(wanted + 1024))
    if soft == resource.RLIM_INFINITY or soft - reserve(soft) >= wanted:
        return config
    clients = soft - reserve(soft)
    if clients < CLIENTS_MIN:
        raise ConfigError(
            f"this process may have {soft} file descriptors, too few to serve anybody",
            f"{reserve(soft)} are kept for files, peers and the HTTP API, and {CLIENTS_MIN} clients need one each",
            f"raise the limit where the node is started, for example: ulimit -n {max(4096, 2 * soft)}",
        )
    logger.warning(
        "this process may have %d file descriptors, so it takes %d clients and not limits.connections_max = %d\n"
        "%d are kept for files, peers and the HTTP API\n"
        "raise the limit where the node is started (ulimit -n %d), or lower limits.connections_max",
        soft,
        clients,
        wanted,
        reserve(soft),
        wanted + reserve(wanted + 1024),
    )
    return replace(config, limits=replace(config.limits, connections_max=clients))


def reserve(descriptors: int) -> int:
    """Returns how many of `descriptors` file descriptors are not for clients: those of RocksDB's files and OTHERS."""
    return open_files_max(descriptors) + OTHERS


def _raised(soft: int, hard: int, wanted: int) -> int:
    """Raises the soft limit to `wanted` if it is lower and that is allowed; returns the soft limit."""
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if target > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return max(soft, target)
