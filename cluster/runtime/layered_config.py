"""The two layers of a node's configuration: its own file, and above it the cluster's configuration in the log."""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import TYPE_CHECKING

from cluster.config.cluster_keys import CLUSTER_KEYS, cluster_values, in_force
from cluster.config.ranges import Held, outside
from cluster.config.reload import KeyChange
from cluster.config.source import toml_value

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.runtime.environment import Environment
    from statemachine.settings import Settings

logger = logging.getLogger(__name__)


class LayeredConfig:
    """Knows the configuration in force; `cluster.members.reloading` applies it."""

    def __init__(self, own: Config, settings: Settings, environment: Environment) -> None:
        """`own`: the node's file; `settings`: the cluster's, as this node has applied them."""
        self._settings = settings
        self._environment = environment
        self.held: list[Held] = []
        """Keys whose value, in the log or in this node's file, is outside their range, with the value that counts
        instead."""
        self.set_own(own)

    def set_own(self, own: Config) -> None:
        """Takes the node's file as it was last read. Raises ConfigError if it cannot be read again."""
        self.own = own
        """The node's file. For keys that belong to the cluster it gives only the first values."""
        self._written = self._environment.written_keys()

    def in_force(self) -> Config:
        """Returns the configuration in force. Raises ConfigError if this process cannot have it."""
        wanted = in_force(self.own, {key: setting.value for key, setting in self._settings.by_key.items()})
        config = self._environment.fit_config(wanted)
        self.held = [each for each in outside(wanted) if attrgetter(each.key)(config) == each.held]
        for each in self.held:
            logger.warning(
                "%s = %d is not in its range and is held at %d: raftmq config set, or correct the file", *each
            )
        return config

    def overruled(self) -> list[KeyChange]:
        """Returns the keys of the cluster for which this node's file or variables have another value (`after`) than the
        cluster (`before`). The cluster's value counts."""
        known, told = self._settings.by_key, cluster_values(self.own)
        return [
            KeyChange(key=key, before=toml_value(known[key].value), after=toml_value(told[key]))
            for key in CLUSTER_KEYS
            if key in self._written and key in known and known[key].value != told[key]
        ]
