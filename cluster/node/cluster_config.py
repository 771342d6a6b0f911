"""Applies the cluster's configuration to one node when a log entry changes it. The leader also proposes its first
values, and the level of a new cluster. It also tracks which nodes are in maintenance, as the log says.

The configuration in force is this node's file, with the cluster's values over it (docs/adr/0069). The cluster has no
values while it is new, or while a member does not know the command for them. Then each node uses only its file.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.config.cluster_keys import cluster_values
from cluster.config.local_layout import node_object
from cluster.config.reload import differences
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.service_lifecycle import Part
from raftlog.format_versions import BASELINE
from raftlog.types import FIRST_GROUP
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.cluster_wide.settings import SetConfig
from statemachine.commands import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.members.changes import MemberChanges
    from cluster.members.cluster_level import Levels
    from cluster.members.config_activation import Reloading
    from cluster.members.service import MembersService
    from cluster.node.services import NodeServices
    from cluster.runtime.context import NodeContext
    from statemachine.broker_state import BrokerState
    from statemachine.cluster_wide.settings import Maintenance

logger = logging.getLogger(__name__)

AGAIN_MS = 1_000
"""The least milliseconds between two proposals."""


class ClusterConfig:
    """Applies the cluster's configuration to one node. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        state: BrokerState,
        changes: MemberChanges,
        membership: MembersService,
        services: NodeServices,
        reloading: Reloading,
        levels: Levels,
    ) -> None:
        self._node_id, self._group = context.config.node.id, context.config.cluster.group
        self._events = context.events
        self._state = state
        self._changes = changes
        self._membership = membership
        self._services = services
        self._reloading = reloading
        self._levels = levels
        self._version = state.settings.version
        self._complete = not context.environment.gives_config
        self._maintenance = state.settings.maintenance
        changes.maintain(self._maintained())
        self._due_ms = 0
        self._proposed = False

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="configuration",
            tick=self.tick,
            applied=self.on_applied,
        )

    def on_applied(self, _: object) -> None:
        """Checks if a run of applied entries has changed the configuration, and then puts it in force. Without a
        change, it costs two comparisons."""
        settings = self._state.settings
        if settings.version != self._version:
            self._version = settings.version
            self._follow()
        if settings.maintenance is not self._maintenance:
            before, self._maintenance = self._maintenance, settings.maintenance
            self._maintain(before, settings.maintenance)

    def _maintain(self, before: Mapping[int, Maintenance], now: Mapping[int, Maintenance]) -> None:
        for each in sorted(before.keys() ^ now.keys()):
            row = now.get(each)
            says = "maintenance has ended" if row is None else f"maintenance begins ({row.author}): {row.reason}"
            about = node_object(self._group, each)
            logger.info("%s: %s", about, says)
            self._events.note("members", about, says)
        self._changes.maintain(self._maintained())

    def _maintained(self) -> bool:
        """Returns True if this node must not lead because it is in maintenance. False for an only voter, because no
        other node could lead or end the maintenance, as for a survivor of `raftmq unsafe-recover`."""
        own = self._node_id
        return own in self._maintenance and set(self._membership.in_force.voter_ids) != {own}

    def _follow(self) -> None:
        reloading = self._reloading
        config = reloading.layers.in_force()
        newest = next(self._state.settings.changes(before=self._version + 1, limit=1), None)
        who = f"version {self._version}, {newest.author}" if newest is not None else f"version {self._version}"
        for change in differences(reloading.config, config):
            says = f"{change.key} is {change.after} now, it was {change.before} ({who})"
            logger.info("configuration: %s", says)
            self._events.note("configuration", "cluster", says)
        reloading.put_in_force(config)

    def tick(self, now_ms: int) -> None:
        """If this node leads, proposes values for the cluster's keys that have none, and the level of a new cluster. A
        further group of brokers proposes only its level. Also updates whether this node may lead in maintenance. Called
        several times a second; it is cheap."""
        self._changes.maintain(self._maintained())
        if self._complete or self._proposed or now_ms < self._due_ms or not self._services.writes_open():
            return
        settings = self._state.settings
        is_new = not settings.version and self._state.level == BASELINE
        if self._group != FIRST_GROUP:  # a further group copies the values of the first group
            self._complete = not is_new
            if is_new:
                self._due_ms = now_ms + AGAIN_MS
                self._proposed = True
                self._services.propose([Finalize(self._levels.of_new_cluster())], self._decided)
            return
        missing = {
            key: value
            for key, value in cluster_values(self._reloading.layers.own).items()
            if key not in settings.by_key
        }
        if not missing:
            self._complete = True
            return
        self._due_ms = now_ms + AGAIN_MS
        reason = "keys that this release knows" if settings.version else "the first configuration"
        author, log_ms = f"raftmq.toml of {node_object(self._group, self._node_id)}", self._services.log_time_ms()
        self._proposed = True
        run: list[Command] = [SetConfig(settings.version, log_ms, author, reason, missing)]
        if is_new:
            run.insert(0, Finalize(self._levels.of_new_cluster()))
        self._services.propose(run, self._decided)

    def _decided(self, result: ProposeResult) -> None:
        self._proposed = False
        if result.outcome is Outcome.OK and not result.results[-1].ok:
            logger.warning("the cluster has no configuration of its own yet: %s", result.results[-1].value)
