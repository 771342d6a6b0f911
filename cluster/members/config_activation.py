"""Puts other settings in force on a running node: those of a file that is read again, or of a log entry."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING

from cluster.config.cluster_keys import CLUSTER_KEYS, cluster_values, in_force
from cluster.config.config import Config, ConfigError
from cluster.config.ranges import OutOfRange, outside
from cluster.config.reload import RELOADABLE, SECRET_KEY, TLS_KEY, KeyChange, ReloadView, differences, merged
from cluster.config.source import toml_value
from cluster.runtime import logs
from cluster.runtime.listeners import Signal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.config.config import Config
    from cluster.peer.secret import SecretKeeper
    from cluster.runtime.environment import Environment
    from cluster.runtime.tls.tls_maintenance import TlsMaintenance
    from statemachine.cluster_wide.settings import Settings


class LayeredConfig:
    """Computes the configuration in force: the one from this node's file, with the cluster's settings from the log over
    it."""

    def __init__(self, own: Config, settings: Settings, environment: Environment) -> None:
        """`own` is the configuration from this node's file; `settings` are the cluster's, as this node has applied
        them."""
        self._settings = settings
        self._environment = environment
        self.held: list[OutOfRange] = []
        """Keys whose values in the log or in this node's file are outside their ranges, each with the value that is
        used instead."""
        self.set_own(own)

    def set_own(self, own: Config) -> None:
        """Stores the configuration that was read from this node's file. Raises ConfigError if the file cannot be read
        again."""
        self._written = self._environment.written_keys()
        self.own = own
        """The configuration from this node's file. Its values of the cluster's keys only serve as the first values of a
        new cluster."""

    @contextmanager
    def trying(self, own: Config) -> Iterator[None]:
        """Provides a context in which `own` is the configuration from this node's file. If the context raises
        ConfigError, the former one is back afterwards."""
        was, written, held = self.own, self._written, self.held
        try:
            self.set_own(own)
            yield
        except ConfigError:
            self.own, self._written, self.held = was, written, held
            raise

    def in_force(self) -> Config:
        """Returns the configuration to put in force. Raises ConfigError if this process cannot use it."""
        wanted = in_force(self.own, {key: setting.value for key, setting in self._settings.by_key.items()})
        config = self._environment.fit_config(wanted)
        self.held = [each for each in outside(wanted) if attrgetter(each.key)(config) == each.held]
        for each in self.held:
            logger.warning(
                "%s = %d is not in its range and is held at %d: raftmq config set, or correct the file", *each
            )
        return config

    def overruled(self) -> list[KeyChange]:
        """Returns keys of the cluster for which this node's file or variables give another value (`after`) than the
        cluster's (`before`). The cluster's value is in force."""
        known, told = self._settings.by_key, cluster_values(self.own)
        return [
            KeyChange(key=key, before=toml_value(known[key].value), after=toml_value(told[key]))
            for key in CLUSTER_KEYS
            if key in self._written and key in known and known[key].value != told[key]
        ]


logger = logging.getLogger(__name__)


class Reloading:
    """Holds the configuration in force and replaces it. Event loop only."""

    def __init__(
        self, config: Config, layers: LayeredConfig, environment: Environment, secret: SecretKeeper, tls: TlsMaintenance
    ) -> None:
        """`config` is the configuration in force at the start."""
        self.config = config
        self.layers = layers
        self._environment = environment
        self._secret = secret
        self._tls = tls
        self.changed: Signal[[Config]] = Signal()
        """Sent with each configuration before it is put in force. A receiver that cannot use it raises ConfigError."""

    def put_in_force(self, config: Config) -> None:
        """Makes all parts of the node use `config`. Only keys of the cluster and those in RELOADABLE may differ from
        the present one. If a part refuses it, raises ConfigError, and nothing is changed."""
        was = self.config
        self.changed(config)
        self.config = config
        if config.log_output.level != was.log_output.level:  # if unchanged, the level set by PUT /v1/log-level stays
            logs.set_level(config.log_output.level)

    def reload(self) -> ReloadView:
        """Reads the configuration again and puts it in force. Raises ConfigError if it cannot be used; the
        configuration in force then stays."""
        read = self._environment.read_config
        if read is None:
            raise ConfigError(
                "this node has no configuration to read again",
                "it was started by a program, not from a file",
                "start it with raftmq serve --config FILE",
            )
        layers, was = self.layers, self._secret.state
        # Everything is read and checked first, so that a file that cannot be used changes nothing.
        try:
            new, keyring, certificates = read(), self._secret.read(), self._tls.read()
            before, waits = self.config, differences(layers.own, new)
            with layers.trying(merged(layers.own, new)):
                self.put_in_force(layers.in_force())
        except ConfigError as error:
            logger.error("the configuration cannot be used and stays as it was: %s", error)
            raise
        renewed, certified = self._secret.use(keyring), self._tls.use(certificates)
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
