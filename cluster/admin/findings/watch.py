"""Looks by the clock and on request: this node's findings, and those of the whole cluster."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cluster.admin.findings.around import Around, shared_settings
from cluster.admin.findings.finding import Finding, FindingsView, NodeReport
from cluster.admin.findings.group_watch import GroupWatch
from cluster.admin.findings.memory import Memory
from cluster.admin.findings.merge import merged
from cluster.admin.findings.rules import own_conditions
from cluster.admin.port import AdminPort
from cluster.config.local_layout import is_local

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
ASK_EVERY_LOOKS: Final = 5
"""The other nodes are asked at every fifth look, and at every one while some do not answer."""


class FindingsWatch:
    """The findings of one node, and what it knows of the others'. Event loop only."""

    def __init__(self, port: AdminPort) -> None:
        self._port = port
        self._local = is_local(port.config.node.data_dir)
        self._memory = Memory(port.config.node.id, self._tell, local=self._local)
        self._around = Around(port)
        self.groups = GroupWatch(port)
        self._own: list[Finding] = []
        self.scraping = asyncio.Lock()
        """Held while the metrics are made, in steps: who scrapes meanwhile waits."""

    async def close(self) -> None:
        """Ends what is under way."""
        await self._around.close()

    async def run(self) -> None:
        """Looks again and again until it is cancelled: a finding's `since` does not depend on who asks."""
        looks = 0
        while True:
            try:
                if looks % ASK_EVERY_LOOKS == 0 or self._around.doubts:
                    await self._around.refresh()
                self.look()
            except Exception:  # a defect in a rule must not end the watch
                logger.exception("the findings could not be determined")
            looks += 1
            await asyncio.sleep(LOOK_EVERY_S)

    def _tell(self, finding: Finding, begins: bool) -> None:
        says = f"{finding.code}: {finding.says}" if begins else f"{finding.code} has ended"
        self._port.events.note("finding", finding.object, says, finding.severity if begins else "info")

    def look(self) -> list[Finding]:
        """This node's findings at this moment."""
        port, wall_ms = self._port, self._port.wall_ms()
        monotonic_ms = int(1000 * asyncio.get_running_loop().time())
        conditions = [
            *own_conditions(port, port.status(), wall_ms),
            *self.groups.look(monotonic_ms),
            *self._around.conditions(),
        ]
        self._own = self._memory.note(conditions, wall_ms, monotonic_ms)
        return self._own

    def own_view(self) -> FindingsView:
        """What the other nodes ask for."""
        status = self._port.status()
        return FindingsView(
            node=self._port.config.node.id,
            wall_ms=self._port.wall_ms(),
            settings=shared_settings(self._port),
            findings=self.look(),
            disk_used_percent=0.0 if status.disk is None else status.disk.used_percent,
            connections=status.load.connections,
            leader=status.leader,
        )

    def nodes(self) -> dict[int, FindingsView]:
        """What this node says, and what each other one said last."""
        return {self._port.config.node.id: self.own_view(), **self._around.views()}

    async def ask_around(self) -> None:
        """Brings what is known of the others up to date, within a short time."""
        await self._around.refresh()

    def cluster(self) -> list[Finding]:
        """The findings of all nodes, as last heard."""
        own, others = self._port.config.node.id, self._around.views()
        views = {own: self.look()} | {node: view.findings for node, view in others.items()}
        leaders = {own: self._port.status().leader} | {node: view.leader for node, view in others.items()}
        maintained = self._port.state.settings.maintenance
        return merged(views, self._port.membership.in_force.node_uuids, maintained, leaders, local=self._local)

    def reports(self) -> list[NodeReport]:
        """Which members answer."""
        own = NodeReport(node=self._port.config.node.id, answers=True, age_ms=0)
        return sorted([own, *self._around.reports()], key=lambda report: report.node)
