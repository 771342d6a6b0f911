"""The sections about the node itself: its identity, its addresses and ports, their security, and its part in
consensus."""

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
"""The TLS mode of a port (RocketMQ's tls.server.mode). `disabled`: plain text only. `permissive`: both. `enforcing`:
TLS only. "" means the mode of `tls.mode`."""


class NodeSection(Section, frozen=True, kw_only=True):
    """The node's id and its data directory."""

    id: Annotated[NodeNumber, of_host(Unit.NONE)]
    data_dir: Annotated[NonEmptyText, HOST]
    """The data directory; a relative path in the file is relative to the file's folder."""


class ClusterSection(Section, frozen=True, kw_only=True):
    """The names of the cluster, and the form of its routes. If `id` is given, it must be the id in the data
    directory."""

    name: Annotated[NonEmptyText, HOST] = "DefaultCluster"
    broker_name: Annotated[NonEmptyText, HOST] = "raftmq"
    producer_aliases: Annotated[bool, CLUSTER] = True
    """True if routes also give producers one broker name per node, to which producers turn when a send fails."""
    early_routes: Annotated[bool, CLUSTER] = False
    """True if Java push consumers are made to ask for their routes when the leader has changed."""
    id: Annotated[ConfigUuid, HOST] = ""
    group: Annotated[int, Meta(ge=1, le=GROUPS_MAX), of_host(Unit.NONE)] = FIRST_GROUP
    """The number of this node's group of brokers. All files and frames of the group contain it."""
    first_group: Annotated[tuple[str, ...], HOST] = ()
    """Peer addresses, "host:port", of members of group 1. A node of another group learns of all groups from them."""
    registry: Annotated[tuple[str, ...], of_host(reload=True)] = ()
    """Peer addresses, "host:port", of the processes of the registry, in the order of their ids (docs/adr/0112)."""


class PeerNode(Section, frozen=True, kw_only=True):
    """One member of the cluster, this node included, with the addresses at which others reach it."""

    id: Annotated[NodeNumber, of_host(Unit.NONE)]
    host: Annotated[NonEmptyText, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)]
    heartbeat_host: Annotated[str, HOST] = ""
    heartbeat_port: Annotated[int, Meta(ge=0, le=65535), of_host(Unit.NONE)] = 0
    """The port for heartbeats at `heartbeat_host`. If they are 0 and "", `port` and `host` are used."""
    admin: Annotated[str, HOST] = ""
    """The "host:port" of the member's HTTP API; "" if others cannot reach it."""
    listeners: Annotated[dict[str, str], HOST] = msgspec.field(default_factory=dict)
    """The member's listeners: name -> advertised "host:port"."""

    @property
    def address(self) -> str:
        """The member's peer port, as "host:port"."""
        return join_address(self.host, self.port)


class Listener(Section, frozen=True, kw_only=True):
    """A port for clients. Each listener accepts every request code. Its name decides which addresses its clients get in
    routes."""

    name: Annotated[NonEmptyText, HOST]
    bind: Annotated[NonEmptyText, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)]
    advertised: Annotated[str, HOST] = ""
    """The "host:port" that clients get in routes; if it is "", `load` fills it in."""
    routes: Annotated[str, HOST] = ""
    """Name of another listener whose addresses the clients of this one get; "" for this one's own."""
    tls: Annotated[TlsMode, HOST] = ""


class PeerSection(Section, frozen=True, kw_only=True):
    """The port to which the other nodes connect, and an additional one for heartbeats on a separate network."""

    bind: Annotated[NonEmptyText, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)] = 10912
    heartbeat_bind: Annotated[str, HOST] = ""
    heartbeat_port: Annotated[int, Meta(ge=0, le=65535), of_host(Unit.NONE)] = 0
    secret_file: Annotated[str, HOST] = ""
    """The file with the secret of the cluster; "" for SECRET in the data directory."""
    tls: Annotated[TlsMode, HOST] = ""
    """The TLS mode of connections between nodes, including those for heartbeats. It also decides how this node connects
    to others."""

    @property
    def heartbeat(self) -> tuple[str, int] | None:
        """The additional (address, port) at which the node listens for heartbeats; None if it uses only the peer
        port."""
        if not self.heartbeat_bind and not self.heartbeat_port:
            return None
        return self.heartbeat_bind or self.bind, self.heartbeat_port or self.port


class HaSection(Section, frozen=True, kw_only=True):
    """Timing of connections to nodes and clients, including three keys of RocketMQ, and the most bytes per second that
    are sent to a peer that catches up."""

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
    """Further host names under which the HTTP API may be asked, separated by ";". "*.example" stands for every name
    below "example"."""
    tls: Annotated[TlsMode, HOST] = ""
    """The TLS mode of the HTTP API; it also decides how this node asks the APIs of the others."""


class TlsSection(Section, frozen=True, kw_only=True):
    """The TLS mode of all ports that set none of their own, and the files for TLS. The files are read again while the
    node runs. A relative path is relative to the configuration file's folder."""

    mode: Annotated[Literal["disabled", "permissive", "enforcing"], HOST] = "disabled"
    cert_file: Annotated[str, HOST] = ""
    """PEM file with this node's certificate, and the certificates between it and its CA."""
    key_file: Annotated[str, HOST] = ""
    """PEM file with the private key of the node's certificate, not encrypted."""
    ca_file: Annotated[str, HOST] = ""
    """PEM file with the CAs of the certificates of other nodes and of clients. It has two CAs while one replaces the
    other."""
    client_certificates: Annotated[Literal["none", "optional", "required"], HOST] = "none"
    """Says if clients, including those of the HTTP API, must show a certificate of a CA in `ca_file`: "none": they need
    not and are not asked; "optional": they may; "required": they must. Nodes always must."""


class AuthSection(Section, frozen=True, kw_only=True):
    """Access control on this node. The names and rules of users, and the mode in which requests are judged, are not
    here but in the log."""

    key_file: Annotated[str, of_host(reload=True)] = ""
    """The file with the key that encrypts users' secrets; "" if there are no users."""
    first_user_file: Annotated[str, HOST] = ""
    """The file with name and secret of the first Super (a user who may do everything), for a cluster that never had a
    user; "" for none."""
    stale_ms_max: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(1000, 600_000)), of_host(Unit.MS)] = 10_000
    """Milliseconds without word from a leader after which the node stops judging requests."""
    copy_ms_max: Annotated[int, Meta(ge=0, extra=within(5_000, 600_000, zero=True)), of_cluster(Unit.MS)] = 0
    """Milliseconds after which a node of a further group stops judging requests, if no leader of the first group has
    confirmed that its copy of users and rules is complete. 0: never."""
    admin_needs_tls: Annotated[bool, HOST] = False
    """True if the clients' ports refuse administrators' requests without TLS, in every mode."""


class RaftSection(Section, frozen=True, kw_only=True):
    """Timing and limits of consensus. Timeouts are multiples of one tick. An election timeout is drawn at random: at
    least election_ticks, and less than twice as many."""

    tick_ms: Annotated[int, Meta(ge=1, le=10_000, extra=within(10, 1000)), of_host(Unit.MS)] = 50
    heartbeat_ticks: Annotated[int, Meta(ge=1, extra=within(1, 50)), of_host(Unit.TICKS)] = 2
    election_ticks: Annotated[int, Meta(ge=1, extra=within(3, 100)), of_host(Unit.TICKS)] = 10
    inflight_bytes_max: Annotated[int, Meta(ge=1, extra=within(64 << 10, 1 << 30)), of_host(Unit.BYTES)] = 8 << 20
    append_bytes_max: Annotated[int, Meta(ge=1, extra=within(16 << 10, 32 << 20)), of_host(Unit.BYTES)] = 1 << 20
    preferred_leaders: Annotated[NodeNumbers, CLUSTER] = ""
    """Ids of the nodes that should lead, the best first. It is the same on every node."""
    preferred_lag_entries: Annotated[int, Meta(ge=0, le=1_000_000), of_cluster(Unit.ENTRIES)] = 64
    """The most entries by which a preferred node may be behind when leadership is transferred to it."""
