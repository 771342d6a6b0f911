"""/v1/health says if this node is healthy, and which problems the cluster has. /v1/health/live and /ready are for
probes, and /v1/findings is for the other nodes.

A probe acts on one node, so the status code reports on this node only. Problems of other nodes are in the body:
otherwise one full disk would make the probes restart every node.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.findings.finding import Finding, FindingsView, NodeReport
from cluster.admin.handler_request import Call, JsonAnswer
from cluster.admin.node_interface import AdminPort, NodeStatus
from cluster.admin.route import Route
from cluster.runtime.alarms import Alarm
from raftlog.types import FIRST_GROUP


class HealthView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/health`: 200 if this node is healthy, 503 if not."""

    node: int
    group: int = FIRST_GROUP
    """The group of brokers of the answering node. `findings` are about this group."""
    consistency: Literal["local"] = "local"
    applied_index: int
    healthy: bool
    reasons: list[str]
    """The reasons why the answering node is not healthy; [] if it is."""
    warnings: list[str]
    """Problems of which an operator should know, although this node serves its clients."""
    alarms: list[Alarm]
    """Active alarms of the answering node, oldest first. The texts of those with `stops_service` are also in
    `reasons`."""
    findings: list[Finding]
    """Findings of all nodes that answer: the worst first, then those without a known cause, then the oldest."""
    nodes: list[NodeReport]
    """The members, and if each has answered. The findings of a node that has not are missing."""


class LiveView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/health/live`: 200 if the node's event loop runs. Nothing else is checked."""

    node: int
    live: Literal[True] = True


class ReadyView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/health/ready`: 200 if clients should use this node, 503 if not."""

    node: int
    ready: bool
    reasons: list[str]
    """The reasons why the node is not ready; [] if it is."""


async def get_health(call: Call) -> JsonAnswer:
    """Says if this node is healthy, and which problems the whole cluster has."""
    await call.watch.ask_around()
    status = call.port.status()
    reasons = _reasons(status)
    view = HealthView(
        node=status.node,
        group=status.group,
        applied_index=status.applied_index,
        healthy=not reasons,
        reasons=reasons,
        warnings=_warnings(call.port, status),
        alarms=status.alarms,
        findings=call.watch.cluster(),
        nodes=call.watch.reports(),
    )
    return JsonAnswer(503 if reasons else 200, view)


async def get_live(call: Call) -> LiveView:
    """Answers as long as the process works: for a probe that restarts it."""
    return LiveView(node=call.port.config.node.id)


async def get_ready(call: Call) -> JsonAnswer:
    """Says if this node can serve clients now: for load balancers, and for probes that do not restart a node."""
    status = call.port.status()
    reasons = _reasons(status)
    if status.disk is not None and status.disk.parked:
        reasons.append(f"its log waits for disk space: {status.disk.parked}")
    elif status.disk is not None and status.disk.refusing and status.role == "leader":
        reasons.append("its disk is full: it refuses sends while it leads")
    if status.quorum is not None and status.quorum.survives < 0:
        reasons.append(status.quorum.finding)
    if status.recovery.replaying:
        reasons.append(f"it applies its log again, up to entry {status.recovery.replay_target}")
    reasons += _catching_up(status, call.port.config.health.follower_behind_entries)
    if status.leader is not None and not call.port.state.settings.version:
        # The first configuration also sets the level. Until then, commands of levels above 10 are refused.
        reasons.append("the cluster is new: its leader has not given it its first configuration yet")
    if call.port.config.cluster.group != FIRST_GROUP and not call.port.state.truth.copied:
        reasons.append(f"its group is new: it has no copy of topics, users and rules from group {FIRST_GROUP} yet")
    return JsonAnswer(503 if reasons else 200, ReadyView(node=status.node, ready=not reasons, reasons=reasons))


async def get_findings(call: Call) -> FindingsView:
    """Returns the findings that this node has made by itself. The other nodes ask for them."""
    return call.watch.own_view()


def _reasons(status: NodeStatus) -> list[str]:
    """Returns the reasons why the node is not healthy; [] if it is."""
    reasons = []
    if status.failure is not None:
        reasons.append(f"the node has stopped taking part: {status.failure}")
    if status.stopping:
        reasons.append("the node is stopping: its clients are being sent to other nodes")
    if status.leader is None:
        reasons.append(f"no leader is known in term {status.term}")
    elif status.role == "leader" and not status.writes_open:
        reasons.append(f"it leads term {status.term} and has not applied the first entry of that term yet")
    return reasons + [alarm.text for alarm in status.alarms if alarm.stops_service]


def _catching_up(status: NodeStatus, behind_entries: int) -> list[str]:
    """Returns at most one reason why the node is not up to date: clients should use another node, and no other node
    should be stopped yet. `behind_entries` is the number of entries that it may lack."""
    if status.install.stage in ("state", "log", "restart"):
        return ["it fetches a copy of the state and the log from another node"]
    if status.behind >= behind_entries:
        limit = f"health.follower_behind_entries = {behind_entries}"
        return [f"it catches up: {status.behind} committed entries are not applied here ({limit})"]
    return ["it is a learner: it does not count in a majority"] if status.member == "learner" else []


def _warnings(port: AdminPort, status: NodeStatus) -> list[str]:
    warnings = [f"{port.object_of(peer.node)} is not connected" for peer in status.peers if not peer.connected]
    warnings += [link.finding for link in status.links if link.finding]
    warnings += [status.quorum.finding] if status.quorum is not None and status.quorum.finding else []
    warnings += [
        f"failpoint {point.name} is {point.action}"
        for point in port.configuration.failpoints.states()
        if point.action != "off"
    ]
    return warnings + [alarm.text for alarm in status.alarms if not alarm.stops_service]


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/health", get_health, HealthView, route.page(), route_rights.CLUSTER_GET, statuses=(200, 503)),
    Route("GET", "/v1/health/live", get_live, LiveView, route.CONSTANT, route_rights.OPEN),
    Route("GET", "/v1/health/ready", get_ready, ReadyView, route.CONSTANT, route_rights.OPEN, statuses=(200, 503)),
    Route("GET", "/v1/findings", get_findings, FindingsView, route.page(), route_rights.CLUSTER_GET),
)
