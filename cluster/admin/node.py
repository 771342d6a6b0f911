"""/v1/health, /v1/status, /metrics: the node in its own words."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.admin.call import Answer, Call, Raw
from cluster.admin.port import NodeStatus
from cluster.alarms import Alarm
from cluster.metrics import CONTENT_TYPE
from raftlog.types import NOBODY, NodeId, Role


class HealthView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/health`: 200 if healthy, 503 if not."""

    node: int
    consistency: Literal["local"] = "local"
    applied_index: int
    healthy: bool
    reasons: list[str]
    """Why it is not healthy."""
    warnings: list[str]
    """What an operator should know although clients are served."""
    alarms: list[Alarm]
    """What is raised now, oldest first; those with `stops_service` are among the reasons, the others warnings."""


async def get_health(call: Call) -> Answer:
    """Whether clients are served, and what stands in the way."""
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
    """Prometheus text; what the status knows is brought up to date first."""
    status, metrics, state = call.port.status(), call.port.metrics, call.port.state
    metrics.raft(
        term=status.term,
        role=Role[status.role.upper()],
        leader_id=NodeId(status.leader) if status.leader else NOBODY,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        last_index=status.last_index,
    )
    metrics.peers((NodeId(peer.node), peer.match_index, peer.lag_entries) for peer in status.peers)
    metrics.writes_open(status.writes_open)
    metrics.load(
        connections=status.load.connections,
        long_polls=status.load.long_polls,
        inflight_bytes=status.load.inflight_bytes,
    )
    metrics.catalog(topics=len(state.topics), groups=len(state.groups))
    metrics.group_lag.update(state, leads=status.writes_open)
    metrics.recovery.update(status.recovery)
    metrics.alarms(alarm.key for alarm in status.alarms)
    metrics.backup_age(call.port.backups.age_s)
    return Raw(CONTENT_TYPE, metrics.render())
