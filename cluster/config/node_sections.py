"""The sections that make a node: its identity, its addresses and ports, their security, and its part in consensus."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cluster.config.address import join_address
from cluster.config.key_facts import CLUSTER, HOST, Unit, of_cluster, of_host
from cluster.config.ranges import within
from cluster.config.section import ConfigUuid, NodeNumber, NodeNumbers, NonEmptyText, Port, Section
from raftlog.types import FIRST_GROUP, GROUPS_MAX

TlsMode = Literal["", "disabled", "permissive", "enforcing"]
"""The TLS mode of a port (RocketMQ's tls.server.mode): plain text, both, or TLS alone; "" means that of `tls.mode`."""


class NodeSection(Section, frozen=True, kw_only=True):
    """The node's id and its data directory."""

    id: Annotated[NodeNumber, of_host(Unit.NONE)]
    data_dir: Annotated[NonEmptyText, HOST]
    """The data directory; a relative path in the file is relative to the file's folder."""


class ClusterSection(Section, frozen=True, kw_only=True):
    """The cluster's names, and the form of its routes. `id`, if given, must be the one in the data directory."""

    name: Annotated[NonEmptyText, HOST] = "DefaultCluster"
    broker_name: Annotated[NonEmptyText, HOST] = "raftmq"
    producer_aliases: Annotated[bool, CLUSTER] = True
    """True if routes also give producers one broker name per node, to which producers turn when a send fails."""
    early_routes: Annotated[bool, CLUSTER] = False
    """True if Java push consumers are made to ask for their routes when the leader has changed."""
    id: Annotated[ConfigUuid, HOST] = ""
    group: Annotated[int, Meta(ge=1, le=GROUPS_MAX), of_host(Unit.NONE)] = FIRST_GROUP
    """The number of this node's Raft group in the cluster; every file and every frame carries it."""
    first_group: Annotated[tuple[str, ...], HOST] = ()
    """Peer addresses, "host:port", of members of group 1, where a node of another group learns of all groups."""
    registry: Annotated[tuple[str, ...], of_host(reload=True)] = ()
    """Peer addresses, "host:port", of the processes of the registry, in the order of their ids (docs/adr/0112)."""


class PeerNode(Section, frozen=True, kw_only=True):
    """One member of the cluster, this node included, with the addresses at which others reach it."""

    id: Annotated[NodeNumber, of_host(Unit.NONE)]
    host: Annotated[NonEmptyText, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)]
    heartbeat_host: Annotated[str, HOST] = ""
    heartbeat_port: Annotated[int, Meta(ge=0, le=65535), of_host(Unit.NONE)] = 0
    """The port for heartbeats, at `heartbeat_host`; "" and 0 stand for `host` and `port`."""
    admin: Annotated[str, HOST] = ""
    """The "host:port" of the member's HTTP API; "" if others cannot reach it."""
    listeners: Annotated[dict[str, str], HOST] = msgspec.field(default_factory=dict)
    """The member's listeners: name -> advertised "host:port"."""

    @property
    def address(self) -> str:
        """The member's peer port, as "host:port"."""
        return join_address(self.host, self.port)


class Listener(Section, frozen=True, kw_only=True):
    """One port for clients. Each listener serves every request code; its name decides which addresses routes
    contain."""

    name: Annotated[NonEmptyText, HOST]
    bind: Annotated[NonEmptyText, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)]
    advertised: Annotated[str, HOST] = ""
    """The "host:port" that clients are given; filled in by `load` if empty."""
    routes: Annotated[str, HOST] = ""
    """The name of the listener whose addresses the clients of this one are given; "" for its own."""
    tls: Annotated[TlsMode, HOST] = ""


class PeerSection(Section, frozen=True, kw_only=True):
    """The port to which the other nodes connect, and another one for heartbeats if they have a network of their own."""

    bind: Annotated[NonEmptyText, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)] = 10912
    heartbeat_bind: Annotated[str, HOST] = ""
    heartbeat_port: Annotated[int, Meta(ge=0, le=65535), of_host(Unit.NONE)] = 0
    secret_file: Annotated[str, HOST] = ""
    """The file with the secret of the cluster; "" for SECRET in the data directory."""
    tls: Annotated[TlsMode, HOST] = ""
    """The TLS mode of connections between nodes, those for heartbeats too; it also decides how this node dials others.
    """

    @property
    def heartbeat(self) -> tuple[str, int] | None:
        """The additional (address, port) at which the node listens for heartbeats; None: only at the peer port."""
        if not self.heartbeat_bind and not self.heartbeat_port:
            return None
        return self.heartbeat_bind or self.bind, self.heartbeat_port or self.port


class HaSection(Section, frozen=True, kw_only=True):
    """Timing of connections to nodes and clients, RocketMQ's three keys among it, and the bytes that a peer that
    catches up may take."""

    send_heartbeat_interval_ms: Annotated[
        int, Meta(ge=1, le=86_400_000, extra=within(50, 60_000)), of_host(Unit.MS, reload=True)
    ] = 1000
    housekeeping_interval_ms: Annotated[
        int, Meta(ge=1, le=86_400_000, extra=within(100, 3_600_000)), of_host(Unit.MS, reload=True)
    ] = 20_000
    client_heartbeat_timeout_ms: Annotated[
        int, Meta(ge=1, le=86_400_000, extra=within(100, 3_600_000)), of_host(Unit.MS, reload=True)
    ] = 30_000
    catch_up_bytes_per_second: Annotated[
        int, Meta(ge=0, extra=within(64 << 10, 1 << 40, zero=True)), of_host(Unit.BYTES_PER_SECOND, reload=True)
    ] = 32 << 20


class AdminSection(Section, frozen=True, kw_only=True):
    """The port of the HTTP API."""

    bind: Annotated[NonEmptyText, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)] = 9644
    allowed_hosts: Annotated[str, of_host(reload=True)] = ""
    """Further host names under which the HTTP API may be asked, separated by ";"; "*.example" for all below one."""
    tls: Annotated[TlsMode, HOST] = ""
    """The TLS mode of the HTTP API; it also decides how this node asks the APIs of the others."""


class TlsSection(Section, frozen=True, kw_only=True):
    """The TLS mode of every port that has none of its own, and the files that TLS needs. They are read again while the
    node runs; a relative path in the file is relative to the file's folder."""

    mode: Annotated[Literal["disabled", "permissive", "enforcing"], HOST] = "disabled"
    cert_file: Annotated[str, HOST] = ""
    """PEM file with the certificate of this node, and those between it and its CA."""
    key_file: Annotated[str, HOST] = ""
    """PEM file with the private key of the node's certificate, not encrypted."""
    ca_file: Annotated[str, HOST] = ""
    """PEM file with the CAs of the certificates of other nodes and of clients; two of them while one replaces the
    other."""
    client_certificates: Annotated[Literal["none", "optional", "required"], HOST] = "none"
    """The demand for client certificates of a CA in `ca_file`: with "optional" or "required", clients, those of the
    HTTP API too, may or must show one. Nodes always must."""


class AuthSection(Section, frozen=True, kw_only=True):
    """Access control on this node. The users' names and rules, and the mode in which requests are judged, are in the
    log."""

    key_file: Annotated[str, of_host(reload=True)] = ""
    """The file with the key that encrypts users' secrets; "" if there are no users."""
    first_user_file: Annotated[str, HOST] = ""
    """The file with name and secret of the first Super (a user who may do everything), for a cluster that never had a
    user; "" for none."""
    stale_ms_max: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(1000, 600_000)), of_host(Unit.MS)] = 10_000
    """The milliseconds after which a node that has heard no leader stops judging requests."""
    copy_ms_max: Annotated[int, Meta(ge=0, extra=within(5_000, 600_000, zero=True)), of_cluster(Unit.MS)] = 0
    """The milliseconds after which a node of another group than the first stops judging requests, if no leader of the
    first group has confirmed its copy of users and rules; 0: never."""
    admin_needs_tls: Annotated[bool, HOST] = False
    """True if the clients' ports refuse administrators' requests without TLS, in every mode."""


class RaftSection(Section, frozen=True, kw_only=True):
    """Timing and limits of consensus. Timeouts are multiples of one tick; an election timeout is drawn from
    [election_ticks, 2x)."""

    tick_ms: Annotated[int, Meta(ge=1, le=10_000, extra=within(10, 1000)), of_host(Unit.MS)] = 50
    heartbeat_ticks: Annotated[int, Meta(ge=1, extra=within(1, 50)), of_host(Unit.TICKS)] = 2
    election_ticks: Annotated[int, Meta(ge=1, extra=within(3, 100)), of_host(Unit.TICKS)] = 10
    inflight_bytes_max: Annotated[int, Meta(ge=1, extra=within(64 << 10, 1 << 30)), of_host(Unit.BYTES)] = 8 << 20
    append_bytes_max: Annotated[int, Meta(ge=1, extra=within(16 << 10, 32 << 20)), of_host(Unit.BYTES)] = 1 << 20
    preferred_leaders: Annotated[NodeNumbers, CLUSTER] = ""
    """Ids of the nodes that should lead, best first; equal on every node."""
    preferred_lag_entries: Annotated[int, Meta(ge=0, le=1_000_000), of_cluster(Unit.ENTRIES)] = 64
    """The most entries that a preferred node may lag to be handed leadership."""
