"""The node's description of itself: `GET /v1/status`, its gauges, the connected members of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any

from cluster.admin.node_interface import Counted, KernelView, LoadStatus, MemberView, NodeStatus, PeerStatus, SecretView
from cluster.broker.groups.consumer_group import BROADCASTING
from cluster.broker.groups.group_members import Members
from cluster.members.checks import QuorumView, quorum_of
from cluster.replication.lag.follower_lag import end_of
from cluster.replication.metrics import Delays, HaMetrics
from cluster.retention.views import settings_of
from cluster.runtime.host.versions import versions
from raftlog.core.status import PeerStatus as RaftPeer
from raftlog.types import NodeId, Role
from raftmq_wire import kernel

if TYPE_CHECKING:
    from cluster.node.assembly import Assembly

_ROLES: dict[Role, Any] = {role: role.name.lower() for role in Role}


def status(node: Assembly) -> NodeStatus:
    """Returns the current status."""
    raft = node.raw.status()
    now_ms = node.serving.services.monotonic_ms()
    return NodeStatus(
        node=node.node_id,
        group=node.config.cluster.group,
        uuid=str(node.storage.directory.identity.node_uuid),
        cluster=node.config.cluster.name,
        cluster_id=str(node.storage.directory.identity.cluster_uuid),
        broker=node.serving.services.routes.own.name,
        role=_ROLES[raft.role],
        member=node.peers.membership.own_role,
        term=raft.term,
        leader=raft.leader_id or None,
        writes_open=node.serving.services.writes_open(),
        commit_index=raft.commit_index,
        applied_index=raft.applied_index,
        last_index=raft.last_index,
        behind=raft.behind,
        stopping=node.stopping,
        drained=node.peers.changes.drained,
        maintenance=node.peers.changes.maintained,
        failpoints=node.failpoints.enabled,
        failure=str(node.failure) if node.failure else None,
        alarms=node.alarms.all(),
        peers=[_peer(node, peer, now_ms) for peer in raft.peers],
        sync_ms=_rounded(node.peers.syncs.own_ms),
        quorum=quorum(node),
        load=_load(node),
        recovery=node.storage.recovery.status(node.storage.checkpointer.run),
        install=node.integrity.installs.view(),
        limits=_numbers(node.config.limits),
        links=node.peers.links.view(),
        modes=node.serving.modes.view(),
        disk=node.serving.disk.view(),
        retention=settings_of(node.config.retention),
        versions=versions(),
        kernel=KernelView(kernel.NAME, kernel.VERSION, kernel.WHY),
        secret=_secret(node),
        uptime_ms=now_ms - node.started_ms,
    )


def _peer(node: Assembly, peer: RaftPeer, now_ms: int) -> PeerStatus:
    lag, course = node.peers.lag.of(peer, now_ms), node.peers.lag.forecast_of(peer.node_id)
    return PeerStatus(
        node=peer.node_id,
        match_index=peer.match_index,
        lag_entries=peer.lag,
        lag_bytes=lag.size_bytes,
        lag_ms=lag.age_ms,
        sync_ms=_rounded(node.peers.syncs.of(peer.node_id)),
        lag_bytes_per_s=course.bytes_per_s if course else None,
        caught_up_in_s=course.caught_up_in_s if course else None,
        snapshot_in_s=course.snapshot_in_s if course else None,
        connected=node.peers.transport.connected(peer.node_id),
    )


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 2)


def quorum(node: Assembly) -> QuorumView:
    """Returns the quorum of the voters in force. This node counts as present, and so does each voter with a connection
    to it that is not silent. The connection to a node that hangs stays open for as long as
    ha.housekeeping_interval_ms."""

    def is_here(voter: int) -> bool:
        peer = NodeId(voter)
        return voter == node.node_id or (node.peers.transport.connected(peer) and not node.peers.links.is_silent(peer))

    return quorum_of(node.peers.membership.in_force.voter_ids, is_here, node.config.cluster.group)


def broadcasts(known: Members, group: str) -> bool:
    """Returns True if connected consumers of a group read by broadcasting."""
    found = known.consumers.get(group)
    return found is not None and len(found.members) > 0 and found.message_model == BROADCASTING


def members(known: Members, group: str, now_ms: int) -> list[MemberView]:
    """Returns the consumers of a group that are connected to this node, by client id; one with several connections is
    listed for each."""
    found = known.consumers.get(group)
    listed = sorted(found.values(), key=lambda each: (each.client_id, each.since_ms)) if found is not None else []
    return [
        MemberView(
            client_id=member.client_id,
            address="{}:{}".format(*member.connection.peer_address),
            language=member.language,
            version=member.version,
            silent_ms=now_ms - member.last_seen_ms,
        )
        for member in listed
    ]


def _secret(node: Assembly) -> SecretView:
    secret = node.peers.secret
    return SecretView(state=secret.state, key=secret.keyring.newest.hex(), waiting_for=[int(n) for n in secret.missing])


def _numbers(section: object) -> dict[str, int]:
    names: Iterable[str] = section.__struct_fields__  # type: ignore[attr-defined]
    return {name: value for name in names if isinstance(value := getattr(section, name), int)}


def _load(node: Assembly) -> LoadStatus:
    """Returns the load by clients."""
    limit = node.serving.proposals.flow.limit
    return LoadStatus(
        connections=len(node.serving.remoting.router.connections),
        long_polls=node.serving.broker.pulls.long_polls.count,
        inflight_bytes=node.serving.proposals.gate.bytes,
        client_inflight_bytes=node.serving.proposals.gate.clients.bytes,
        admission_bytes=limit.house_bytes if limit.rate else 0,
        decided_bytes_per_second=int(limit.rate),
        overloaded=limit.overloaded,
    )


def counted(node: Assembly) -> Counted:
    """Returns the counters for the history of the last hour."""
    traffic, given, appends = node.meters.traffic, node.serving.broker.deliveries, node.meters.appends
    return Counted(
        messages_in=traffic.messages_taken,
        messages_out=given.messages_given,
        bytes_in=traffic.bytes_taken,
        bytes_out=given.bytes_given,
        commits=traffic.commit_seconds.counts,
        commit_bounds_s=traffic.commit_seconds.bounds,
        appends=appends.counts,
        append_bounds_s=appends.bounds,
        loop_lag_s=node.meters.loop_lag.lag_s,
        refused=node.meters.requests.refusals,
    )


def show_ha(node: Assembly, ha: HaMetrics) -> None:
    """Sets the gauges of replication and storage, in bytes and seconds."""
    log, raft, now_ms = node.storage.directory.log, node.raw.status(), node.serving.services.monotonic_ms()
    peers = [_peer(node, peer, now_ms) for peer in raft.peers]
    end = log.tail.end_position
    ha.show(
        end_position=end,
        slaves={peer.node: end - peer.lag_bytes for peer in peers},
        delays={peer.node: _delays(peer) for peer in peers},
        connections=sum(node.peers.transport.connected(peer) for peer in node.peers.transport.roster.peers()),
        sent_bytes=node.peers.transport.entry_bytes,
        storage=(
            end - log.first_position,
            end - end_of(log, raft.persisted_index),
            end - end_of(log, raft.applied_index),
        ),
    )


def _delays(peer: PeerStatus) -> Delays:
    snapshot_in_s = inf if peer.snapshot_in_s is None else peer.snapshot_in_s
    return Delays(peer.lag_ms / 1000, None if peer.sync_ms is None else peer.sync_ms / 1000, snapshot_in_s)
