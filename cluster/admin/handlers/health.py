"""/v1/health: the health of this node, and the problems of the cluster; /live and /ready for probes; /v1/findings.

A probe acts on one node. The status code therefore reports only on this node, and problems elsewhere are in the body:
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
    """The answer to `GET /v1/health`: 200 if this node is healthy, 503 if not. `findings` are those of the whole
    cluster."""

    node: int
    group: int = FIRST_GROUP
    """The group of brokers of the node, about which the findings are."""
    consistency: Literal["local"] = "local"
    applied_index: int
    healthy: bool
    reasons: list[str]
    """The reasons why the node is not healthy."""
    warnings: list[str]
    """Problems that an operator should know although clients are served."""
    alarms: list[Alarm]
    """Active alarms, oldest first; those with `stops_service` are among the reasons, the others are warnings."""
    findings: list[Finding]
    """Findings of the whole cluster: the worst first, causes before their consequences."""
    nodes: list[NodeReport]
    """The members, and if they answer, so that their findings are included."""


class LiveView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/health/live`: the node's event loop runs; nothing else is checked."""

    node: int
    live: Literal[True] = True


class ReadyView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/health/ready`: 200 if clients should be sent to this node, 503 if not."""

    node: int
    ready: bool
    reasons: list[str]
    """The reasons why the node is not ready."""


async def get_health(call: Call) -> JsonAnswer:
    """Says if this node serves clients, and what is wrong with the cluster."""
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
    """Says if the process works at all: for a probe that restarts it."""
    return LiveView(node=call.port.config.node.id)


async def get_ready(call: Call) -> JsonAnswer:
    """Says if this node can serve clients now: for load balancers, and a probe that only takes it out of service."""
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
        # The level of a new cluster comes with it: commands of a higher level than 10 would be refused until then.
        reasons.append("the cluster is new: its leader has not given it its first configuration yet")
    if call.port.config.cluster.group != FIRST_GROUP and not call.port.state.truth.copied:
        reasons.append(f"its group is new: it has no copy of topics, users and rules from group {FIRST_GROUP} yet")
    return JsonAnswer(503 if reasons else 200, ReadyView(node=status.node, ready=not reasons, reasons=reasons))


async def get_findings(call: Call) -> FindingsView:
    """Findings of this node about itself, for which the other nodes ask."""
    return call.watch.own_view()


def _reasons(status: NodeStatus) -> list[str]:
    """Returns the reasons why the node is not healthy."""
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
    """Returns the reasons why another node should not be stopped yet, and clients should rather ask another one."""
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
