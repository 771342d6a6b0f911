"""/v1/health, /v1/status, /metrics: the state of this node."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cluster.admin.call import Answer, Call, Raw
from cluster.admin.port import NodeStatus
from cluster.runtime.alarms import Alarm

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Of the metrics."""


class HealthView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/health`: 200 if healthy, 503 if not."""

    node: int
    consistency: Literal["local"] = "local"
    applied_index: int
    healthy: bool
    reasons: list[str]
    """Why it is not healthy."""
    warnings: list[str]
    """Problems that an operator should know although clients are served."""
    alarms: list[Alarm]
    """Active alarms, oldest first; those with `stops_service` are among the reasons, the others are warnings."""


async def get_health(call: Call) -> Answer:
    """Whether this node serves clients, and if not, why."""
    status = call.port.status()
    reasons = []
    if status.failure is not None:
        reasons.append(f"the node has stopped taking part: {status.failure}")
    if status.stopping:
        reasons.append("the node is stopping: its clients are being sent to other nodes")
    if status.leader is None:
        reasons.append(f"no leader is known in term {status.term}")
    elif status.role == "leader" and not status.writes_open:
        reasons.append(f"it leads term {status.term} and has not applied the first entry of that term yet")
    warnings = [f"node {peer.node} is not connected" for peer in status.peers if not peer.connected]
    warnings += [link.finding for link in status.links if link.finding]
    warnings += [status.quorum.finding] if status.quorum is not None and status.quorum.finding else []
    warnings += [
        f"failpoint {point.name} is {point.action}" for point in call.port.failpoints.states() if point.action != "off"
    ]
    reasons += [alarm.text for alarm in status.alarms if alarm.stops_service]
    warnings += [alarm.text for alarm in status.alarms if not alarm.stops_service]
    view = HealthView(
        node=status.node,
        applied_index=status.applied_index,
        healthy=not reasons,
        reasons=reasons,
        warnings=warnings,
        alarms=status.alarms,
    )
    return Answer(503 if reasons else 200, view)


async def get_status(call: Call) -> NodeStatus:
    """Role, term, leader, indexes, peers, recovery, limits."""
    return call.port.status()


async def get_metrics(call: Call) -> Raw:
    """Metrics in Prometheus's text format."""
    port = call.port
    return Raw(CONTENT_TYPE, port.metrics.scraped(port.status(), port.state, port.backups.age_s))
