"""The two layers of a node's configuration: its own file, and over it what the cluster has in its log."""

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
    """Knows what is in force; `cluster.members.reloading` puts it there."""

    def __init__(self, own: Config, settings: Settings, environment: Environment) -> None:
        """`own`: the node's file; `settings`: the cluster's, as this node has applied them."""
        self._settings = settings
        self._environment = environment
        self.held: list[Held] = []
        """Keys with a value outside their range, in the log or in this node's file, and the value that counts."""
        self.set_own(own)

    def set_own(self, own: Config) -> None:
        """The node's file, as it was read last. Raises ConfigError if it cannot be read again."""
        self.own = own
        """The node's file. Of the keys that belong to the cluster it gives the first values only."""
        self._written = self._environment.written_keys()

    def in_force(self) -> Config:
        """Raises ConfigError if this process cannot have it."""
        wanted = in_force(self.own, {key: setting.value for key, setting in self._settings.by_key.items()})
        config = self._environment.fit_config(wanted)
        self.held = [each for each in outside(wanted) if attrgetter(each.key)(config) == each.held]
        for each in self.held:
            logger.warning(
                "%s = %d is not in its range and is held at %d: raftmq config set, or correct the file", *each
            )
        return config

    def overruled(self) -> list[KeyChange]:
        """Keys of the cluster to which this node's file or variables give another value (`after`) than the cluster
        has (`before`), which counts."""
        known, told = self._settings.by_key, cluster_values(self.own)
        return [
            KeyChange(key=key, before=toml_value(known[key].value), after=toml_value(told[key]))
            for key in CLUSTER_KEYS
            if key in self._written and key in known and known[key].value != told[key]
        ]
