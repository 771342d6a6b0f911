"""/v1/health, /v1/status, /metrics: the node in its own words; /v1/leader/transfer: handing leadership over."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec

from cluster.admin.call import Answer, Call, Raw
from cluster.admin.errors import ApiError, unknown_outcome
from cluster.admin.port import AdminPort, NodeStatus
from cluster.alarms import Alarm
from cluster.metrics import CONTENT_TYPE
from raftlog.errors import NotLeaderError, RaftLogError
from raftlog.types import NOBODY, NodeId, Role

TRANSFER_POLL_S = 0.01
TRANSFER_WAIT_S_MIN = 2.0


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


class TransferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/leader/transfer`."""

    to: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class TransferView(msgspec.Struct, frozen=True, kw_only=True):
    """Leadership is at `leader`; term and commit index as this node knows them right after."""

    node: int
    leader: int
    term: int
    index: int


async def get_health(call: Call) -> Answer:
    """Whether clients are served, and what stands in the way."""
    status = call.port.status()
    reasons = []
    if status.failure is not None:
        reasons.append(f"the node has stopped taking part: {status.failure}")
    if status.leader is None:
        reasons.append(f"no leader is known in term {status.term}")
    elif status.role == "leader" and not status.writes_open:
        reasons.append(f"it leads term {status.term} and has not applied the first entry of that term yet")
    warnings = [f"node {peer.node} is not connected" for peer in status.peers if not peer.connected]
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
    metrics.recovery.update(status.recovery)
    metrics.alarms(alarm.key for alarm in status.alarms)
    metrics.backup_age(call.port.backups.age_s)
    return Raw(CONTENT_TYPE, metrics.render())


async def transfer_leader(call: Call) -> TransferView:
    """Hands leadership to a member that has the whole log; answers when it leads."""
    wanted: TransferRequest = call.body
    members = call.port.config.voter_ids
    if wanted.to not in members:
        raise ApiError("bad_field", f"there is no node {wanted.to}", f"use one of {', '.join(map(str, members))}")
    if wanted.to != call.port.leader_id():
        await _transfer(call.port, NodeId(wanted.to))
    status = call.port.status()
    return TransferView(node=status.node, leader=wanted.to, term=status.term, index=status.commit_index)


async def _transfer(port: AdminPort, to: NodeId) -> None:
    try:
        port.transfer(to)
    except NotLeaderError:
        raise ApiError("not_leader", "this node does not lead any more", "ask again; nothing was changed") from None
    except RaftLogError as error:
        raise ApiError(
            "failed", f"the transfer cannot start: {error}", "try again when the node has caught up"
        ) from None
    raft = port.config.raft
    wait_s = max(TRANSFER_WAIT_S_MIN, 2 * raft.election_ticks * raft.tick_ms / 1000)
    try:
        async with asyncio.timeout(wait_s):
            while port.leader_id() != to:  # noqa: ASYNC110 - rare, and the node has no event for it
                await asyncio.sleep(TRANSFER_POLL_S)
    except TimeoutError:
        raise unknown_outcome(f"node {to} does not lead after {wait_s:.1f} s; the transfer may still happen") from None
