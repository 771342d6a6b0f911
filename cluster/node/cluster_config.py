"""The configuration of the cluster on one node: taken over when an entry changes it, and given its first values. And
which nodes are in maintenance, which the log says as well.

What is in force is this node's file with the cluster's values over it (docs/adr/0069). Until the cluster has values,
because it is new or a member does not know the command yet, each node goes by its file alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.config.cluster_keys import cluster_values
from cluster.config.reload import differences
from cluster.node.reloading import put_in_force
from cluster.replication.outcome import Outcome, ProposeResult
from statemachine.commands import SET_CONFIG, SETTINGS_LEVEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.node.own_port import OwnPort
    from statemachine.settings import Maintenance

logger = logging.getLogger(__name__)

AGAIN_MS = 1_000
"""After a member turned out not to know the command, or a proposal failed."""


class ClusterConfig:
    """Event loop only."""

    def __init__(self, node: OwnPort) -> None:
        self._node = node
        self._version = node.state.settings.version
        self._complete = not node.environment.gives_config
        self._maintenance = node.state.settings.maintenance
        node.changes.maintain(self._maintained())
        self._due_ms = 0
        self._proposed = False

    def on_applied(self) -> None:
        """A run of entries is applied: two comparisons while no configuration is in it."""
        settings = self._node.state.settings
        if settings.version != self._version:
            self._version = settings.version
            self._follow()
        if settings.maintenance is not self._maintenance:
            before, self._maintenance = self._maintenance, settings.maintenance
            self._maintain(before, settings.maintenance)

    def _maintain(self, before: Mapping[int, Maintenance], now: Mapping[int, Maintenance]) -> None:
        node = self._node
        for each in sorted(before.keys() ^ now.keys()):
            row = now.get(each)
            says = "maintenance has ended" if row is None else f"maintenance begins ({row.author}): {row.reason}"
            logger.info("node %d: %s", each, says)
            node.events.note("members", f"node {each}", says)
        node.changes.maintain(self._maintained())

    def _maintained(self) -> bool:
        """Whether this node must not lead for its maintenance. The only voter leads all the same: there is nobody else
        who could, or who could end the maintenance (a survivor of `raftmq unsafe-recover`)."""
        node = self._node
        return node.node_id in self._maintenance and set(node.membership.in_force.voter_ids) != {node.node_id}

    def _follow(self) -> None:
        node, config = self._node, self._node.layers.in_force()
        newest = next(node.state.settings.changes(before=self._version + 1, limit=1), None)
        who = f"version {self._version}, {newest.author}" if newest is not None else f"version {self._version}"
        for change in differences(node.config, config):
            says = f"{change.key} is {change.after} now, it was {change.before} ({who})"
            logger.info("configuration: %s", says)
            node.events.note("configuration", "cluster", says)
        put_in_force(node, config)

    def tick(self, now_ms: int) -> None:
        """Several times a second: cheap. The leader gives the cluster the keys that it has no value for."""
        self._node.changes.maintain(self._maintained())
        if self._complete or self._proposed or now_ms < self._due_ms or not self._node.services.writes_open():
            return
        node, settings = self._node, self._node.state.settings
        missing = {key: value for key, value in cluster_values(node.layers.own).items() if key not in settings.by_key}
        if not missing:
            self._complete = True
            return
        self._due_ms = now_ms + AGAIN_MS
        before = node.services.raising(SETTINGS_LEVEL)
        if not isinstance(before, list):
            return
        reason = "keys that this release knows" if settings.version else "the first configuration"
        author, log_ms = f"raftmq.toml of node {node.node_id}", node.services.log_time_ms()
        self._proposed = True
        node.services.propose([*before, [SET_CONFIG, settings.version, log_ms, author, reason, missing]], self._decided)

    def _decided(self, result: ProposeResult) -> None:
        self._proposed = False
        if result.outcome is Outcome.OK and not result.results[-1].ok:
            logger.warning("the cluster has no configuration of its own yet: %s", result.results[-1].value)
