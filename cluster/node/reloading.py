"""Puts another configuration in force in a running node: one that was read again, or one that came with the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.config.cluster_keys import CLUSTER_KEYS
from cluster.config.config import Config, ConfigError
from cluster.config.reload import RELOADABLE, SECRET_KEY, KeyChange, ReloadView, differences, merged
from cluster.runtime import logs

if TYPE_CHECKING:
    from cluster.node.own_port import OwnPort

logger = logging.getLogger(__name__)


def put_in_force(node: OwnPort, config: Config) -> None:
    """Everything that goes by one of the cluster's keys, or by one of RELOADABLE, goes by `config` from now on."""
    was = node.config
    node.reconfigure(config)
    node.links.reload(config.ha)
    node.retention.reload(config.retention)
    node.retention.reload_tier(config.tier)
    node.disk.reload(config.retention)
    node.repairs.server.reload(config.repair.bytes_per_second)
    node.consistency.reload(config.consistency.digest_every_ms)
    node.changes.reload(config.raft.preferred_leaders, config.raft.preferred_lag_entries)
    node.proposals.reload(config)
    node.modes.reload(config)
    node.sends.reload(config)
    node.send_backs.reload(config)
    node.forwarder.reload(config)
    node.router.reload(config.limits)
    node.pulls.long_polls.reload(config.limits.node_inflight_bytes_max)
    node.listeners.reload(config)
    node.tier.reload(config.health.tier_stuck_ms, config.tier.seal_after_ms)
    if node.tier_access is not None:
        node.tier_access.levels.reload(config)
        node.tier_access.uploads.reload(config.tier.bytes_per_second)
    if node.tier_scrubs is not None:
        node.tier_scrubs.reload(config.tier.scrub_every_hours)
    if config.log_output.level != was.log_output.level:  # else PUT /v1/log-level counts on
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
    layers = node.layers
    before, waits = node.config, differences(layers.own, new)
    layers.set_own(merged(layers.own, new))
    put_in_force(node, layers.in_force())
    view = ReloadView(
        node=node.node_id,
        applied=[
            *([KeyChange(key=SECRET_KEY, before=was, after=node.secret.state)] if renewed else []),
            *differences(before, node.config),
        ],
        needs_restart=[change for change in waits if change.key not in RELOADABLE and change.key not in CLUSTER_KEYS],
        overruled=layers.overruled(),
    )
    for change in view.applied:
        logger.info("configuration: %s is %s now, it was %s", change.key, change.after, change.before)
    for change in view.needs_restart:
        logger.warning("configuration: %s takes effect at the next start", change.key)
    for change in view.overruled:
        logger.warning(
            "configuration: %s is %s for the cluster, whatever the file says (%s): raftmq config set %s VALUE",
            change.key,
            change.before,
            change.after,
            change.key,
        )
    return view
