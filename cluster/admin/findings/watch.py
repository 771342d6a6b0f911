"""Keeps the findings of this node and of the whole cluster up to date: once a second, and when a request asks for
them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cluster.admin.findings.catalogue import command_of, runbook_of
from cluster.admin.findings.finding import Finding, FindingsView, NodeReport
from cluster.admin.findings.merge import merged
from cluster.admin.findings.other_nodes import OtherNodes, shared_settings
from cluster.admin.findings.rules import own_conditions
from cluster.admin.node_interface import AdminPort
from cluster.config.local_layout import Place, has_no_identity, is_lost, name_of, node_object, place_of
from cluster.runtime.events import rfc3339
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.findings import Code, Condition
from raftlog.types import FIRST_GROUP

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
ASK_EVERY_LOOKS: Final = 5
"""Every fifth check also asks the other nodes. While some of them do not answer, every check does."""
DATA_LOST: Final = Code("data_lost", "critical", "raftmq node replace {n}")


class FindingsWatch:
    """Keeps the findings of this node, and the last known findings of the other nodes. Event loop only."""

    def __init__(self, port: AdminPort, look_every_s: float = LOOK_EVERY_S) -> None:
        """`look_every_s`: the seconds from one look to the next."""
        self._port, self._look_every_s = port, look_every_s
        self._place = place_of(port.config.node.data_dir)
        self._group = port.config.cluster.group
        self._memory = Memory(port.config.node.id, self._tell, self._place, self._group)
        self._around = OtherNodes(port)
        self._data = DataWatch(Path(port.config.node.data_dir), port.config.node.id, self._group)
        self._own: list[Finding] = []
        self.scraping = asyncio.Lock()
        """Held while one scrape makes the metrics in steps. Other scrapes wait for it."""
        self._metrics = FindingMetrics()

    async def close(self) -> None:
        """Cancels questions to other nodes that are in progress."""
        await self._around.close()

    async def run(self) -> None:
        """Checks every `look_every_s` seconds until it is cancelled. So a finding's `since` does not depend on when
        somebody asks."""
        looks = 0
        while True:
            try:
                if looks % ASK_EVERY_LOOKS == 0 or self._around.doubts:
                    await self._around.refresh()
                self._data.look(self._silent())
                self.look()
            except Exception:  # a defect in a rule must not end the watch
                logger.exception("the findings could not be determined")
            looks += 1
            await asyncio.sleep(self._look_every_s)

    def _tell(self, finding: Finding, begins: bool) -> None:
        says = f"{finding.code}: {finding.says}" if begins else f"{finding.code} has ended"
        self._port.observed.events.note("finding", finding.object, says, finding.severity if begins else "info")

    def look(self) -> list[Finding]:
        """Looks for problems now, and returns this node's findings. A finding that begins or ends becomes an event."""
        port, wall_ms = self._port, self._port.wall_ms()
        monotonic_ms = int(1000 * asyncio.get_running_loop().time())
        conditions = [
            *own_conditions(port, port.status(), wall_ms),
            *(condition for found in port.observed.findings for condition in found()),
            *self._around.conditions(),
            *self._data.conditions(),
        ]
        self._own = self._memory.note(conditions, wall_ms, monotonic_ms)
        return self._own

    def own_view(self) -> FindingsView:
        """Returns the answer to another node that asks for this node's findings."""
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
        """Returns node id -> its answer: this node's own, and the last answer of each other node that answered
        recently."""
        return {self._port.config.node.id: self.own_view(), **self._around.views()}

    async def ask_around(self) -> None:
        """Asks the other nodes for their findings unless that was done just now, and waits a short time for the
        answers."""
        await self._around.refresh()

    def cluster(self) -> list[Finding]:
        """Returns the findings of the whole cluster, merged from this node's present ones and the last answers of the
        others."""
        own, others = self._port.config.node.id, self._around.views()
        views = {own: self.look()} | {node: view.findings for node, view in others.items()}
        leaders = {own: self._port.status().leader} | {node: view.leader for node, view in others.items()}
        maintained = self._port.state.settings.maintenance
        members = self._port.nodes.membership.in_force.node_uuids
        return merged(views, members, maintained, leaders, self._place, self._data.lost, self._group)

    def metrics(self) -> FindingMetrics:
        """Returns the gauges of the cluster's findings, set to the present values."""
        self._metrics.show(self.cluster())
        return self._metrics

    def _silent(self) -> set[int]:
        """Returns the ids of members that did not answer recently and whose data directories are on this machine. Only
        the nodes of a cluster that `raftmq up` started are; elsewhere the set is empty."""
        if self._place != "up":
            return set()
        members = set[int](self._port.nodes.membership.in_force.node_uuids)
        return members - {self._port.config.node.id} - set(self._around.views())

    def reports(self) -> list[NodeReport]:
        """Returns a report on every member, by node id: if it answers, and how long ago it did."""
        own = NodeReport(node=self._port.config.node.id, answers=True, age_ms=0)
        return sorted([own, *self._around.reports()], key=lambda report: report.node)


class FindingMetrics(ServiceMetrics):
    """Gauges with the number of the cluster's findings, as this node knows them."""

    def __init__(self) -> None:
        super().__init__()
        self._findings = self.gauge(
            "raftmq_findings", "Findings about the cluster, as this node knows them", ("code", "severity")
        )

    def show(self, found: Iterable[Finding]) -> None:
        """Sets the gauges to the numbers of these findings for each code and severity."""
        self._findings.clear()
        for each in found:
            self._findings.labels(each.code, each.severity).inc()


Tell = Callable[[Finding, bool], object]
"""A function that is called with a finding; the second argument is True when the finding begins, and False when it
ends."""


class _Seen(NamedTuple):
    since_ms: int
    """Wall clock in ms since 1970 since when the condition holds: the time when it was first seen, or an earlier time
    that the condition states."""
    monotonic_ms: int
    finding: Finding | None
    """The finding; None until the condition has held for its `hold_ms`."""


class Memory:
    """Remembers since when each condition of one node holds, and makes findings of those that have held long enough.
    Event loop only."""

    def __init__(
        self, node: int, tell: Tell = lambda finding, begins: None, place: Place = "up", group: int = FIRST_GROUP
    ) -> None:
        """Keeps the arguments. `tell` is called when a finding begins or ends. `place` says where the cluster runs.
        `group` is the node's group of brokers."""
        self._node = node
        self._name = name_of(group, node)
        self._place = place
        self._tell = tell
        self._seen: dict[tuple[str, str], _Seen] = {}

    def note(self, conditions: Iterable[Condition], wall_ms: int, monotonic_ms: int) -> list[Finding]:
        """Takes all conditions that hold now, and returns the findings of those that have held for their `hold_ms`. A
        known condition that is not among them has ended. `wall_ms` and `monotonic_ms` are the two clocks' present
        values."""
        now = {(each.code.finding, each.object): each for each in conditions}
        for key in [key for key in self._seen if key not in now]:
            ended = self._seen.pop(key).finding
            if ended is not None:
                self._tell(ended, False)
        for key, condition in now.items():
            seen = self._seen.get(key) or _Seen(wall_ms, monotonic_ms, None)
            if condition.since_ms is not None and condition.since_ms < seen.since_ms:
                seen = seen._replace(since_ms=condition.since_ms)
            if seen.finding is not None or monotonic_ms - seen.monotonic_ms >= condition.hold_ms:
                is_new = seen.finding is None
                seen = seen._replace(finding=self._finding(condition, seen.since_ms))
                if is_new and seen.finding is not None:
                    self._tell(seen.finding, True)
            self._seen[key] = seen
        return [seen.finding for seen in self._seen.values() if seen.finding is not None]

    def _finding(self, condition: Condition, since_ms: int) -> Finding:
        code = condition.code
        _, _, number = condition.object.rpartition(" ")
        about = number if condition.object.startswith("node ") else str(self._name)
        return Finding(
            code=code.finding,
            severity=condition.severity or code.severity,
            since=rfc3339(since_ms),
            object=condition.object,
            says=condition.says,
            do_now=condition.do_now or command_of(code, about, self._place),
            runbook=runbook_of(code.finding),
            seen_by=[self._node],
        )


class DataWatch:
    """Finds out if the data directory of this running node, or of a silent node on the same machine, was deleted or
    moved away. The running node has its files open, so it still acknowledges writes. They are lost when it ends, and it
    cannot start again.

    A directory counts as lost if its file IDENTITY is missing. Event loop only. Each check is one call on a thread. The
    next check waits for the end of the one before, however long the disk takes.
    """

    def __init__(
        self,
        directory: Path,
        node: int,
        group: int = FIRST_GROUP,
        lacks_identity: Callable[[Path], bool] = has_no_identity,
    ) -> None:
        """`lacks_identity` returns True if a data directory was lost. It may block."""
        self._directory, self._lacks_identity = directory, lacks_identity
        self._node = node
        self._object = node_object(group, node)
        self._look: asyncio.Future[frozenset[int]] | None = None
        self.lost: frozenset[int] = frozenset()
        """Ids of the nodes whose data directories were lost, by the last finished check: this node, or silent ones that
        it checked."""

    def look(self, silent: Collection[int] = ()) -> asyncio.Future[frozenset[int]]:
        """Keeps the result of the last check if it has finished, and then begins the next one. Returns the check in
        progress. `silent` has the ids of other nodes of the same local cluster whose directories are checked too."""
        if self._look is not None and not self._look.done():
            return self._look
        if self._look is not None and self._look.exception() is None:  # a failing disk is reported elsewhere
            self.lost = self._look.result()
        self._look = asyncio.get_running_loop().run_in_executor(None, self._lost_of, frozenset(silent))
        return self._look

    def _lost_of(self, silent: frozenset[int]) -> frozenset[int]:
        """Returns the ids of the nodes, among this one and the silent ones, that have lost their data directories. Runs
        on a thread. Raises OSError if this node's own directory cannot be examined."""
        own = {self._node} if self._lacks_identity(self._directory) else set[int]()
        return frozenset(own | {each for each in silent if is_lost(str(self._directory), each)})

    def conditions(self) -> Iterator[Condition]:
        """Yields a condition if this node's data directory was lost."""
        if self._node in self.lost:
            says = (
                f"{self._directory} was deleted or moved away while {self._object} runs: the node goes on with the "
                "files that it has open, but cannot start again; do not stop it before it is replaced"
            )
            yield Condition(DATA_LOST, self._object, says)
