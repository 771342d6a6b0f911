"""Puts another configuration in force in a running node: one that was read again, or one that came with the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.config.cluster_keys import CLUSTER_KEYS
from cluster.config.config import Config, ConfigError
from cluster.config.reload import RELOADABLE, SECRET_KEY, TLS_KEY, KeyChange, ReloadView, differences, merged
from cluster.runtime import logs
from cluster.runtime.signal import Signal

if TYPE_CHECKING:
    from cluster.peer.secret import SecretKeeper
    from cluster.runtime.environment import Environment
    from cluster.runtime.layered_config import LayeredConfig
    from cluster.runtime.tls.keeper import TlsKeeper

logger = logging.getLogger(__name__)


class Reloading:
    """Knows what is in force. Event loop only."""

    def __init__(
        self, config: Config, layers: LayeredConfig, environment: Environment, secret: SecretKeeper, tls: TlsKeeper
    ) -> None:
        """`config`: what is in force at the start."""
        self.config = config
        self.layers = layers
        self._environment = environment
        self._secret = secret
        self._tls = tls
        self.changed: Signal[[Config]] = Signal()
        """Sent with what is to be in force from now on, once. Raises ConfigError if a part of the node refuses it."""

    def put_in_force(self, config: Config) -> None:
        """Everything that goes by one of the cluster's keys, or by one of RELOADABLE, goes by `config` from now on.
        Raises ConfigError, having changed nothing, if a part of the node refuses it."""
        was = self.config
        self.changed(config)
        self.config = config
        if config.log_output.level != was.log_output.level:  # else PUT /v1/log-level counts on
            logs.set_level(config.log_output.level)

    def reload(self) -> ReloadView:
        """Reads the configuration again. Raises ConfigError, having changed nothing, if it cannot be used."""
        read = self._environment.read_config
        if read is None:
            raise ConfigError(
                "this node has no configuration to read again",
                "it was started by a program, not from a file",
                "start it with raftmq serve --config FILE",
            )
        was = self._secret.state
        try:
            new = read()
            renewed = self._secret.reload()
            certified = self._tls.reload()
        except ConfigError as error:
            logger.error("the configuration cannot be used and stays as it was: %s", error)
            raise
        layers = self.layers
        before, waits = self.config, differences(layers.own, new)
        layers.set_own(merged(layers.own, new))
        self.put_in_force(layers.in_force())
        view = ReloadView(
            node=self.config.node.id,
            applied=[
                *([KeyChange(key=SECRET_KEY, before=was, after=self._secret.state)] if renewed else []),
                *([KeyChange(key=TLS_KEY, before="", after=self._tls.view)] if certified else []),
                *differences(before, self.config),
            ],
            needs_restart=[
                change for change in waits if change.key not in RELOADABLE and change.key not in CLUSTER_KEYS
            ],
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
