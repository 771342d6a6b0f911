"""Applies configuration changes that need no restart to a running node (SIGHUP, `POST /v1/config/reload`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.config.config import Config, ConfigError
from cluster.config.reload import RELOADABLE, SECRET_KEY, KeyChange, ReloadView, differences, merged
from cluster.runtime import logs

if TYPE_CHECKING:
    from cluster.node.own_port import OwnPort

logger = logging.getLogger(__name__)


def _apply(node: OwnPort, config: Config) -> None:
    node.links.reload(config.ha)
    node.retention.reload(config.retention)
    node.disk.reload(config.retention)
    node.repairs.server.reload(config.repair.bytes_per_second)
    logs.set_level(config.log_output.level)


def reload(node: OwnPort) -> ReloadView:
    """Reads the configuration again. Raises ConfigError, having changed nothing, if it cannot be used."""
    read = node.environment.read_config
    if read is None:
        raise ConfigError(
            "this node has no configuration to read again",
            "it was started by a program, not from a file",
            "start it with raftmq serve --config FILE",
        )
    was = node.secret.state
    try:
        new = read()
        renewed = node.secret.reload()
    except ConfigError as error:
        logger.error("the configuration cannot be used and stays as it was: %s", error)
        raise
    changes = differences(node.config, new)
    config = merged(node.config, new)
    node.reconfigure(config)
    _apply(node, config)
    view = ReloadView(
        node=node.node_id,
        applied=[
            *([KeyChange(key=SECRET_KEY, before=was, after=node.secret.state)] if renewed else []),
            *(change for change in changes if change.key in RELOADABLE),
        ],
        needs_restart=[change for change in changes if change.key not in RELOADABLE],
    )
    for change in view.applied:
        logger.info("configuration: %s is %s now, it was %s", change.key, change.after, change.before)
    for change in view.needs_restart:
        logger.warning("configuration: %s takes effect at the next start", change.key)
    return view
