"""Defines the node's configuration. Values come from `raftmq.toml`, then from RAFTMQ_SECTION__KEY variables, then from
flags; a later source overrides an earlier one.

Every key, its default and its range are in the sections: in `node_sections`, `service_sections`, `storage_sections`,
and in this module for those of observation. The type of a key also says if it belongs to the cluster or to a host, and
when a change takes effect (`cluster.config.key_facts`). Values are checked when they are loaded, and relations between
them in `cluster.config.cross_key_rules`. Therefore every `Config` that exists can be used.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cluster.config.key_facts import HOST, Unit, of_cluster, of_host
from cluster.config.node_sections import (
    AdminSection,
    AuthSection,
    ClusterSection,
    HaSection,
    Listener,
    NodeSection,
    PeerNode,
    PeerSection,
    RaftSection,
    TlsMode,
    TlsSection,
)
from cluster.config.ranges import within
from cluster.config.section import Milliseconds, Percent, Section
from cluster.config.service_sections import (
    DedupSection,
    FlowSection,
    IndexSection,
    LimitsSection,
    ModesSection,
    OffsetsSection,
    ReplicationSection,
    SendSection,
    TimerSection,
    TopicsSection,
    TransactionSection,
    WritesSection,
)
from cluster.config.source import ConfigError, toml_value
from cluster.config.storage_sections import (
    BackupSection,
    ConsistencySection,
    LogSection,
    RepairSection,
    RetentionSection,
    TierSection,
)
from raftlog.types import NodeId

__all__ = ["Config", "ConfigError", "dump"]


class HealthSection(Section, frozen=True, kw_only=True):
    """Thresholds beyond which a state of the cluster is reported as a finding (docs/runbooks.md)."""

    follower_behind_entries: Annotated[int, Meta(ge=1, extra=within(1, 1 << 40)), of_cluster(Unit.ENTRIES)] = 10_000
    follower_behind_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 30_000
    clock_off_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 500
    group_idle_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 600_000
    """Milliseconds after which a consumer group with unread messages and without consumers is reported."""
    queue_stuck_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 300_000
    """Milliseconds after which a queue is reported in which a group with consumers has unread messages and commits
    nothing."""
    tier_stuck_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 60_000
    """Milliseconds after which uploads to the tier that fail are reported."""
    connections_percent: Annotated[Percent, of_cluster(Unit.PERCENT)] = 90
    """Percentage of limits.connections_max from which the number of connections is reported."""
    crash_loop_starts: Annotated[int, Meta(ge=2, le=100), of_cluster(Unit.NONE)] = 3
    crash_loop_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 600_000


class UpgradeSection(Section, frozen=True, kw_only=True):
    """The rule by which the leader finishes an upgrade (docs/upgrade.md)."""

    finalize_after_ms: Annotated[
        int, Meta(ge=0, extra=within(1_000, 30 * 86_400_000, zero=True)), of_cluster(Unit.MS)
    ] = 0
    """Milliseconds after which the leader finalizes an upgrade by itself, once every voter and learner announces the
    new level. 0: never."""


class FailpointsSection(Section, frozen=True, kw_only=True):
    """Permission to inject faults over HTTP. For tests only."""

    enabled: Annotated[bool, HOST] = False


class LogOutputSection(Section, frozen=True, kw_only=True):
    """The node's own log, written for its operator."""

    level: Annotated[Literal["debug", "info", "warning", "error"], of_host(reload=True)] = "info"
    format: Annotated[Literal["text", "json"], HOST] = "text"
    slow_request_ms: Annotated[int, Meta(ge=0, le=600_000), of_host(Unit.MS)] = 500
    """Milliseconds. A request that takes longer from its arrival to its answer gets a line in the log. 0: no request
    does."""
    file_bytes_max: Annotated[int, Meta(ge=64 << 10, le=1 << 40), of_host(Unit.BYTES)] = 32 << 20
    """Bytes of node.log, under `raftmq up`, above which a new file is begun."""
    files: Annotated[int, Meta(ge=2, le=1_000), of_host(Unit.NONE)] = 8
    """Number of files node.log, node.log.1, ... that are kept, including the present one."""


class Config(Section, frozen=True, kw_only=True):
    """A checked configuration. `peers` contains this node too, and every listener has its advertised address."""

    node: NodeSection
    cluster: ClusterSection = ClusterSection()
    peers: tuple[PeerNode, ...] = ()
    listeners: tuple[Listener, ...] = ()
    peer: PeerSection = PeerSection()
    ha: HaSection = HaSection()
    admin: AdminSection = AdminSection()
    tls: TlsSection = TlsSection()
    auth: AuthSection = AuthSection()
    raft: RaftSection = RaftSection()
    log: LogSection = LogSection()
    limits: LimitsSection = LimitsSection()
    send: SendSection = SendSection()
    flow: FlowSection = FlowSection()
    replication: ReplicationSection = ReplicationSection()
    topics: TopicsSection = TopicsSection()
    timer: TimerSection = TimerSection()
    index: IndexSection = IndexSection()
    offsets: OffsetsSection = OffsetsSection()
    dedup: DedupSection = DedupSection()
    transaction: TransactionSection = TransactionSection()
    writes: WritesSection = WritesSection()
    backup: BackupSection = BackupSection()
    retention: RetentionSection = RetentionSection()
    tier: TierSection = TierSection()
    repair: RepairSection = RepairSection()
    consistency: ConsistencySection = ConsistencySection()
    modes: ModesSection = ModesSection()
    health: HealthSection = HealthSection()
    upgrade: UpgradeSection = UpgradeSection()
    failpoints: FailpointsSection = FailpointsSection()
    log_output: LogOutputSection = LogOutputSection()

    @property
    def node_id(self) -> NodeId:
        """The id of this node."""
        return NodeId(self.node.id)

    @property
    def voter_ids(self) -> tuple[NodeId, ...]:
        """The ids of all members, this node included, in ascending order."""
        return tuple(sorted(NodeId(peer.id) for peer in self.peers))

    def tls_mode(self, wanted: TlsMode) -> TlsMode:
        """Returns the TLS mode of a port. `wanted` is the port's own key; if it is "", `tls.mode` counts."""
        return wanted or self.tls.mode

    @property
    def speaks_tls(self) -> bool:
        """True if at least one port of this node accepts TLS."""
        wanted = [each.tls for each in self.listeners] + [self.peer.tls, self.admin.tls]
        return any(self.tls_mode(each) != "disabled" for each in wanted)

    def peer_of(self, node_id: int) -> PeerNode:
        """Returns the member with that id. Raises KeyError if `peers` has none."""
        for peer in self.peers:
            if peer.id == node_id:
                return peer
        raise KeyError(node_id)

    def routed_by(self, listener: str) -> str:
        """Returns the name of the listener whose addresses are given to clients of the listener `listener`: its
        `routes`, or its own name."""
        return next((each.routes for each in self.listeners if each.name == listener), "") or listener

    def broker_addresses(self, listener: str) -> dict[NodeId, str]:
        """Returns node id -> address that the listener of this name advertises on each node. Nodes without such a
        listener are left out."""
        return {NodeId(p.id): p.listeners[listener] for p in self.peers if listener in p.listeners}


def dump(config: Config) -> str:
    """Returns the whole configuration as TOML. `load` makes an equal Config of it if `data_dir` is absolute."""
    blocks: list[str] = []
    for section in msgspec.structs.fields(config):
        value = getattr(config, section.name)
        for item in value if isinstance(value, tuple) else (value,):
            header = f"[[{section.name}]]" if isinstance(value, tuple) else f"[{section.name}]"
            rows = [f"{f.name} = {toml_value(getattr(item, f.name))}" for f in msgspec.structs.fields(item)]
            blocks.append("\n".join([header, *rows]))
    return "\n\n".join(blocks) + "\n"
