"""Describes a node: makes its answer to `GET /v1/status`, its gauges, and the lists of connected consumers."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any

from cluster.admin.node_interface import Counted, KernelView, LoadStatus, MemberView, NodeStatus, PeerStatus, SecretView
from cluster.broker.groups.consumer_group import BROADCASTING
from cluster.broker.groups.group_members import Members
from cluster.members.checks import QuorumView, quorum_of
from cluster.replication.lag.follower_lag import end_of
from cluster.replication.metrics import HaMetrics, PeerDelays
from cluster.retention.views import settings_of
from cluster.runtime.host.versions import versions
from raftlog.core.status import PeerStatus as RaftPeer
from raftlog.types import NodeId, Role
from raftmq_wire import kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.broker.broker_metrics import DeliveryMetrics
    from cluster.config.config import Config
    from cluster.node.integrity import Integrity
    from cluster.node.meters import Meters
    from cluster.node.peers import Peers
    from cluster.node.serving import Serving
    from cluster.runtime.context import NodeContext
    from cluster.state.node_storage import NodeStorage

_ROLES: dict[Role, Any] = {role: role.name.lower() for role in Role}


class NodeView:
    """Describes one node as it is at the time of the call. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        peers: Peers,
        integrity: Integrity,
        serving: Serving,
        *,
        config: Callable[[], Config],
        failure: Callable[[], BaseException | None],
        stopping: Callable[[], bool],
        started_ms: int,
    ) -> None:
        """Keeps the arguments. `config` returns the configuration in force. `failure` returns the error because of
        which the node must stop; None without one. `started_ms` is a time of the monotonic clock."""
        self._raw, self._alarms, self._failpoints = context.raw, context.alarms, context.failpoints
        self._storage, self._peers, self._integrity, self._serving = storage, peers, integrity, serving
        self._config, self._failure, self._stopping, self._started_ms = config, failure, stopping, started_ms

    def status(self) -> NodeStatus:
        """Returns the current status."""
        raft, config = self._raw.status(), self._config()
        peers, serving, identity = self._peers, self._serving, self._storage.directory.identity
        now_ms, failure = serving.services.monotonic_ms(), self._failure()
        return NodeStatus(
            node=config.node_id,
            group=config.cluster.group,
            uuid=str(identity.node_uuid),
            cluster=config.cluster.name,
            cluster_id=str(identity.cluster_uuid),
            broker=serving.services.routes.own.name,
            role=_ROLES[raft.role],
            member=peers.membership.own_role,
            term=raft.term,
            leader=raft.leader_id or None,
            writes_open=serving.services.writes_open(),
            commit_index=raft.commit_index,
            applied_index=raft.applied_index,
            last_index=raft.last_index,
            behind=raft.behind,
            stopping=self._stopping(),
            drained=peers.changes.drained,
            maintenance=peers.changes.maintained,
            failpoints=self._failpoints.enabled,
            failure=str(failure) if failure else None,
            alarms=self._alarms.all(),
            peers=[_peer(peers, peer, now_ms) for peer in raft.peers],
            sync_ms=_rounded(peers.syncs.own_ms),
            quorum=self._quorum(config),
            load=_load(serving),
            recovery=self._storage.recovery.status(self._storage.checkpointer.run),
            install=self._integrity.installs.view(),
            limits=_numbers(config.limits),
            links=peers.links.view(),
            modes=serving.modes.view(),
            disk=serving.disk.view(),
            retention=settings_of(config.retention),
            versions=versions(),
            kernel=KernelView(kernel.NAME, kernel.VERSION, kernel.WHY),
            secret=_secret(peers),
            uptime_ms=now_ms - self._started_ms,
        )

    def _quorum(self, config: Config) -> QuorumView:
        """Returns the quorum of the voters in force. This node counts as present, and so does every voter that is
        connected to it and not silent. A connection alone is no proof: the connection of a node that hangs stays open
        for ha.housekeeping_interval_ms."""
        peers = self._peers

        def is_here(voter: int) -> bool:
            peer = NodeId(voter)
            return voter == config.node_id or (peers.transport.connected(peer) and not peers.links.is_silent(peer))

        return quorum_of(peers.membership.in_force.voter_ids, is_here, config.cluster.group)

    def show_ha(self, ha: HaMetrics) -> None:
        """Sets the gauges of replication and storage, in bytes and seconds."""
        log, raft, transport = self._storage.directory.log, self._raw.status(), self._peers.transport
        now_ms = self._serving.services.monotonic_ms()
        peers = [_peer(self._peers, peer, now_ms) for peer in raft.peers]
        end = log.tail.end_position
        ha.show(
            end_position=end,
            slaves={peer.node: end - peer.lag_bytes for peer in peers},
            delays={peer.node: _delays(peer) for peer in peers},
            connections=sum(transport.connected(peer) for peer in transport.roster.peers()),
            sent_bytes=transport.entry_bytes,
            storage=(
                end - log.first_position,
                end - end_of(log, raft.persisted_index),
                end - end_of(log, raft.applied_index),
            ),
        )


def _peer(peers: Peers, peer: RaftPeer, now_ms: int) -> PeerStatus:
    lag, course = peers.lag.of(peer, now_ms), peers.lag.forecast_of(peer.node_id)
    return PeerStatus(
        node=peer.node_id,
        match_index=peer.match_index,
        lag_entries=peer.lag,
        lag_bytes=lag.size_bytes,
        lag_ms=lag.age_ms,
        sync_ms=_rounded(peers.syncs.of(peer.node_id)),
        lag_bytes_per_s=course.bytes_per_s if course else None,
        caught_up_in_s=course.caught_up_in_s if course else None,
        snapshot_in_s=course.snapshot_in_s if course else None,
        connected=peers.transport.connected(peer.node_id),
    )


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 2)


def broadcasts(known: Members, group: str) -> bool:
    """Returns True if connected consumers of a group read by broadcasting."""
    found = known.consumers.get(group)
    return found is not None and len(found.members) > 0 and found.message_model == BROADCASTING


def members(known: Members, group: str, now_ms: int) -> list[MemberView]:
    """Returns the consumers of a group that are connected to this node, by client id. A consumer with several
    connections is listed once for each. `now_ms` is the present time, up to which each consumer's silence is
    measured."""
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


def _secret(peers: Peers) -> SecretView:
    secret = peers.secret
    return SecretView(state=secret.state, key=secret.keyring.newest.hex(), waiting_for=[int(n) for n in secret.missing])


def _numbers(section: object) -> dict[str, int]:
    names: Iterable[str] = section.__struct_fields__  # type: ignore[attr-defined]
    return {name: value for name in names if isinstance(value := getattr(section, name), int)}


def _load(serving: Serving) -> LoadStatus:
    """Returns the load of this node by clients."""
    limit = serving.proposals.flow.limit
    return LoadStatus(
        connections=len(serving.remoting.router.connections),
        long_polls=serving.broker.pulls.long_polls.count,
        inflight_bytes=serving.proposals.gate.bytes,
        client_inflight_bytes=serving.proposals.gate.clients.bytes,
        admission_bytes=limit.house_bytes if limit.rate else 0,
        decided_bytes_per_second=int(limit.rate),
        overloaded=limit.overloaded,
    )


def counted(meters: Meters, given: DeliveryMetrics) -> Counted:
    """Returns the counters from which the history of the last hour is made. `given` counts the messages delivered to
    consumers."""
    traffic, appends = meters.traffic, meters.appends
    return Counted(
        messages_in=traffic.messages_taken,
        messages_out=given.messages_given,
        bytes_in=traffic.bytes_taken,
        bytes_out=given.bytes_given,
        commits=traffic.commit_seconds.counts,
        commit_bounds_s=traffic.commit_seconds.bounds,
        appends=appends.counts,
        append_bounds_s=appends.bounds,
        loop_lag_s=meters.loop_lag.lag_s,
        refused=meters.requests.refusals,
    )


def _delays(peer: PeerStatus) -> PeerDelays:
    snapshot_in_s = inf if peer.snapshot_in_s is None else peer.snapshot_in_s
    return PeerDelays(peer.lag_ms / 1000, None if peer.sync_ms is None else peer.sync_ms / 1000, snapshot_in_s)
