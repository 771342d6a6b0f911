"""The node's configuration: one `raftmq.toml`, then RAFTMQ_SECTION__KEY variables, then flags; later sources win.

Every key, default and range is here. The type of a key also says whose the key is, and when a change takes effect
(`cluster.config.key_facts`). Values are checked when
they are loaded, relations between them in `cluster.config.cross_key_rules`, so a `Config` that exists can be used.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cluster.config.key_facts import CLUSTER, HOST, Unit, of_cluster, of_host
from cluster.config.ranges import within
from cluster.config.source import ConfigError, toml_value
from raftlog.types import FIRST_GROUP, GROUPS_MAX, NodeId

__all__ = ["Config", "ConfigError", "dump", "split_address"]

Port = Annotated[int, Meta(ge=1, le=65535)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Percent = Annotated[int, Meta(ge=1, le=100)]
NodeNumber = Annotated[int, Meta(ge=1, le=65535)]
NodeNumbers = Annotated[str, Meta(pattern=r"^([1-9][0-9]{0,4}(;[1-9][0-9]{0,4})*)?$")]
Text = Annotated[str, Meta(min_length=1)]
Uuid = Annotated[str, Meta(pattern=r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$")]


TlsMode = Literal["", "disabled", "permissive", "enforcing"]
"""The TLS mode of a port (RocketMQ's tls.server.mode): plain text, both, or TLS alone; "" means that of `tls.mode`."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of raftmq.toml."""


class NodeSection(_Section, frozen=True, kw_only=True):
    """The node's id and its data directory."""

    id: Annotated[NodeNumber, of_host(Unit.NONE)]
    data_dir: Annotated[Text, HOST]
    """The data directory; a relative path in the file is relative to the file's folder."""


class ClusterSection(_Section, frozen=True, kw_only=True):
    """The cluster's names, and the form of its routes. `id`, if given, must be the one in the data directory."""

    name: Annotated[Text, HOST] = "DefaultCluster"
    broker_name: Annotated[Text, HOST] = "raftmq"
    producer_aliases: Annotated[bool, CLUSTER] = True
    """True if routes also give producers one broker name per node, to which producers turn when a send fails."""
    early_routes: Annotated[bool, CLUSTER] = False
    """True if Java push consumers are made to ask for their routes when the leader has changed."""
    id: Annotated[Uuid, HOST] = ""
    group: Annotated[int, Meta(ge=1, le=GROUPS_MAX), of_host(Unit.NONE)] = FIRST_GROUP
    """The number of this node's Raft group in the cluster; every file and every frame carries it."""
    first_group: Annotated[tuple[str, ...], HOST] = ()
    """Peer addresses, "host:port", of members of group 1, where a node of another group learns of all groups."""
    registry: Annotated[tuple[str, ...], of_host(reload=True)] = ()
    """Peer addresses, "host:port", of the processes of the registry, in the order of their ids (docs/adr/0112)."""


class PeerNode(_Section, frozen=True, kw_only=True):
    """One member of the cluster, this node included, with the addresses at which others reach it."""

    id: Annotated[NodeNumber, of_host(Unit.NONE)]
    host: Annotated[Text, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)]
    heartbeat_host: Annotated[str, HOST] = ""
    heartbeat_port: Annotated[int, Meta(ge=0, le=65535), of_host(Unit.NONE)] = 0
    """The port for heartbeats, at `heartbeat_host`; "" and 0 stand for `host` and `port`."""
    admin: Annotated[str, HOST] = ""
    """The "host:port" of the member's HTTP API; "" if others cannot reach it."""
    listeners: Annotated[dict[str, str], HOST] = {}
    """The member's listeners: name -> advertised "host:port"."""

    @property
    def address(self) -> str:
        """The member's peer port, as "host:port"."""
        return join_address(self.host, self.port)


class Listener(_Section, frozen=True, kw_only=True):
    """One port for clients. Each listener serves every request code; its name decides which addresses routes
    contain."""

    name: Annotated[Text, HOST]
    bind: Annotated[Text, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)]
    advertised: Annotated[str, HOST] = ""
    """The "host:port" that clients are given; filled in by `load` if empty."""
    routes: Annotated[str, HOST] = ""
    """The name of the listener whose addresses the clients of this one are given; "" for its own."""
    tls: Annotated[TlsMode, HOST] = ""


class PeerSection(_Section, frozen=True, kw_only=True):
    """The port to which the other nodes connect, and another one for heartbeats if they have a network of their own."""

    bind: Annotated[Text, HOST] = "127.0.0.1"
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


class HaSection(_Section, frozen=True, kw_only=True):
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


class AdminSection(_Section, frozen=True, kw_only=True):
    """The port of the HTTP API."""

    bind: Annotated[Text, HOST] = "127.0.0.1"
    port: Annotated[Port, of_host(Unit.NONE)] = 9644
    allowed_hosts: Annotated[str, of_host(reload=True)] = ""
    """Further host names under which the HTTP API may be asked, separated by ";"; "*.example" for all below one."""
    tls: Annotated[TlsMode, HOST] = ""
    """The TLS mode of the HTTP API; it also decides how this node asks the APIs of the others."""


class TlsSection(_Section, frozen=True, kw_only=True):
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


class AuthSection(_Section, frozen=True, kw_only=True):
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


class RaftSection(_Section, frozen=True, kw_only=True):
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


class LogSection(_Section, frozen=True, kw_only=True):
    """The commit log on disk. `segment_size_bytes` counts only when a data directory is created."""

    segment_size_bytes: Annotated[int, Meta(ge=64 << 10, le=1 << 30), of_host(Unit.BYTES)] = 64 << 20
    idle_mark_ms: Annotated[Milliseconds, of_host(Unit.MS)] = 10
    page_cache_bytes_max: Annotated[int, Meta(ge=0, le=1 << 50), of_host(Unit.BYTES)] = 256 << 20
    """The bytes of the newest log that stay in the page cache; 0: the operating system decides."""
    slow_append_ms: Annotated[int, Meta(ge=0, le=60_000), of_host(Unit.MS)] = 250
    """The milliseconds above which an append is slow; more than 1 % of slow ones raise the alarm `disk_slow`. 0: never.
    """


class LimitsSection(_Section, frozen=True, kw_only=True):
    """Limits of what one client and all clients may ask for; `profile` names a set of limits
    (cluster/config/cross_key_rules.py)."""

    profile: Annotated[Literal["rocketmq", "report-003"], HOST] = "rocketmq"
    message_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 10, 31 << 20)), of_cluster(Unit.BYTES)] = 4 << 20
    """The largest message in bytes. An entry of the log has up to 32 MiB (`raftlog.frame`): the message, and the rows
    and keys that belong to it."""
    properties_bytes_max: Annotated[int, Meta(ge=1, le=32767, extra=within(1 << 10, 32767)), of_cluster(Unit.BYTES)] = (
        32767
    )
    frame_bytes_max: Annotated[int, Meta(ge=1, extra=within(128 << 10, 48 << 20)), of_cluster(Unit.BYTES)] = 16 << 20
    """The largest remoting frame in bytes. A request is forwarded in one frame between nodes, and these have at most 64
    MiB (`cluster.peer.wire`)."""
    topic_length_max: Annotated[int, Meta(ge=1, le=256, extra=within(64, 256)), of_cluster(Unit.NONE)] = 127
    connection_inflight_bytes_max: Annotated[
        int, Meta(ge=1, extra=within(1 << 20, 1 << 30)), of_cluster(Unit.BYTES)
    ] = 64 << 20
    node_inflight_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 20, 2 << 30)), of_cluster(Unit.BYTES)] = (
        128 << 20
    )
    connection_unsent_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 20, 1 << 30)), of_cluster(Unit.BYTES)] = (
        16 << 20
    )
    node_unsent_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 20, 2 << 30)), of_cluster(Unit.BYTES)] = (
        128 << 20
    )
    stalled_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(1000, 600_000)), of_cluster(Unit.MS)] = 10_000
    batch_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 10, 24 << 20)), of_cluster(Unit.BYTES)] = 1 << 20
    batch_messages_max: Annotated[int, Meta(ge=1, extra=within(16, 65_536)), of_cluster(Unit.MESSAGES)] = 4096
    batches_inflight_max: Annotated[int, Meta(ge=1, extra=within(1, 64)), of_cluster(Unit.NONE)] = 4
    long_polls_max: Annotated[int, Meta(ge=1, extra=within(64, 1_000_000)), of_cluster(Unit.NONE)] = 100_000
    connection_long_polls_max: Annotated[int, Meta(ge=1, extra=within(16, 100_000)), of_cluster(Unit.NONE)] = 10_000
    filter_units_max: Annotated[int, Meta(ge=1_000, le=10_000_000), of_cluster(Unit.SLOW_MICROSECONDS)] = 100_000
    """The microseconds, on a slow core, that an SQL92 filter may take for one message with the longest properties."""
    connections_max: Annotated[int, Meta(ge=1, extra=within(16, 1_000_000)), of_cluster(Unit.NONE)] = 10_000
    topics_max: Annotated[int, Meta(ge=1, extra=within(64, 1_000_000)), of_cluster(Unit.NONE)] = 50_000
    queues_max: Annotated[int, Meta(ge=1, extra=within(64, 16_000_000)), of_cluster(Unit.NONE)] = 1_000_000
    groups_max: Annotated[int, Meta(ge=1, extra=within(64, 1_000_000)), of_cluster(Unit.NONE)] = 20_000


class SendSection(_Section, frozen=True, kw_only=True):
    """Time limits of a write. After `deadline_ms` an undecided write is answered as unknown; without a leader it is
    held, then refused."""

    deadline_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(100, 600_000)), of_cluster(Unit.MS)] = 3000
    leader_wait_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(10, 600_000)), of_cluster(Unit.MS)] = 2000


class FlowSection(_Section, frozen=True, kw_only=True):
    """Overload: more sends arrive at the leader than its log takes (`cluster.flow.admission_limit`)."""

    admission: Annotated[bool, of_host(reload=True)] = True
    house_ms: Annotated[int, Meta(ge=1, le=600_000, extra=within(10, 60_000)), of_host(Unit.MS, reload=True)] = 70
    """The time that sends spend between their arrival and their commit in an overload: the rest is refused."""
    house_bytes_min: Annotated[int, Meta(ge=1, extra=within(1 << 10, 1 << 30)), of_host(Unit.BYTES, reload=True)] = (
        512 << 10
    )
    """The bytes of sends that are always taken, however slow the log is: some 400 sends of 1 KiB."""
    hold_ms: Annotated[int, Meta(ge=0, extra=within(0, 2_500)), of_host(Unit.MS, reload=True)] = 1_000
    """The time for which a send over a quota waits before it is refused: less than any client does (3 s)."""
    hold_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 16, 1 << 30)), of_host(Unit.BYTES, reload=True)] = (
        8 << 20
    )
    """The bytes that may wait so of one owner, and an eighth of what may of all."""


class ReplicationSection(_Section, frozen=True, kw_only=True):
    """Degradation: the level at which a leader answers sends while the majority is slow; and whether voters that no
    commit waits for get entries in batches. The same on every node."""

    degrade: Annotated[Literal["off", "leader"], of_host(reload=True)] = "off"
    """With "leader", sends of the default level are answered at level `leader` while the majority is slow and the
    leader is not (`cluster.replication.acks.slow_quorum`)."""
    degrade_ms: Annotated[int, Meta(ge=1, le=60_000, extra=within(10, 60_000)), of_host(Unit.MS, reload=True)] = 100
    """The time between the leader's disk and those of a majority from which on the majority is slow."""
    thrifty: Annotated[Literal["off", "on"], HOST] = "off"
    """With "on", a leader with few entries in flight sends them at once only to the quickest voters that a majority
    needs, and to the others a little later (`raftlog.core.held_appends`)."""


class TopicsSection(_Section, frozen=True, kw_only=True):
    """The treatment of topics that nobody created, and of those that one group of brokers is too few for."""

    auto_create: Annotated[bool, CLUSTER] = True
    default_queues: Annotated[int, Meta(ge=1, le=1024), of_cluster(Unit.NONE)] = 8
    spread: Annotated[Literal["off", "auto"], CLUSTER] = "off"
    """With "auto", a topic without order that keeps the leader of a group busy gets queues in all groups by itself."""
    gather_after_ms: Annotated[int, Meta(ge=1_000, le=604_800_000), of_cluster(Unit.MS)] = 600_000
    """The time for which such a topic has to be calm before it takes messages in the groups from before alone."""


class TimerSection(_Section, frozen=True, kw_only=True):
    """Scheduled messages, which are delivered later."""

    delay_levels: Annotated[Text, CLUSTER] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """RocketMQ's messageDelayLevel: the delays of levels 1, 2, ..., with the units s, m, h, d."""
    max_delay_ms: Annotated[int, Meta(ge=1, le=31_536_000_000), of_cluster(Unit.MS)] = 259_200_000
    """The longest delay, in milliseconds, of a message that names its own delivery time."""


class IndexSection(_Section, frozen=True, kw_only=True):
    """The message index: with `enabled`, a leader writes the keys of messages into it (RocketMQ: messageIndexEnable);
    with `files`, a node keeps an index file beside each closed segment."""

    enabled: Annotated[bool, CLUSTER] = True
    files: Annotated[bool, HOST] = False


class OffsetsSection(_Section, frozen=True, kw_only=True):
    """Oneway commits of consumer offsets. They enter the log at the latest after `flush_ms`."""

    flush_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            extra=within(1, 10_000, usual=(1, 1000), why="a change of the leader forgets what consumers committed"),
        ),
        of_cluster(Unit.MS),
    ] = 100


class DedupSection(_Section, frozen=True, kw_only=True):
    """The log time for which a producer session and its unique keys are remembered."""

    session_hours: Annotated[int, Meta(ge=1, le=8760), of_cluster(Unit.HOURS)] = 24


_SOON = "transactions are rolled back before their producers could answer"


class TransactionSection(_Section, frozen=True, kw_only=True):
    """The times at which producers are asked about half messages whose transaction nobody has ended (RocketMQ:
    transactionTimeOut and others)."""

    timeout_ms: Annotated[
        int,
        Meta(ge=1, le=86_400_000, extra=within(100, 86_400_000, usual=(1000, 86_400_000), why=_SOON)),
        of_cluster(Unit.MS),
    ] = 6000
    check_interval_ms: Annotated[
        int,
        Meta(ge=1, le=86_400_000, extra=within(100, 86_400_000, usual=(1000, 86_400_000), why=_SOON)),
        of_cluster(Unit.MS),
    ] = 30_000
    check_max: Annotated[
        int, Meta(ge=1, le=1000, extra=within(1, 1000, usual=(3, 1000), why=_SOON)), of_cluster(Unit.NONE)
    ] = 15


class WritesSection(_Section, frozen=True, kw_only=True):
    """Spark's staged writes: messages that are stored before they are committed."""

    expire_ms: Annotated[int, Meta(ge=60_000, le=30 * 86_400_000), of_cluster(Unit.MS)] = 86_400_000
    """The milliseconds of log time after which an attempt that nobody committed, and for which nothing more was staged,
    is discarded."""


class BackupSection(_Section, frozen=True, kw_only=True):
    """Backups that this node makes of itself, at set times."""

    to: Annotated[str, HOST] = ""
    """The backups' target: an absolute path, or the URL of an object store (as tier.url); "" for none."""
    every_minutes: Annotated[int, Meta(ge=1, le=10_080), of_host(Unit.MINUTES)] = 60
    keep: Annotated[int, Meta(ge=1, le=100_000), of_host(Unit.NONE)] = 24
    roots: Annotated[str, of_host(reload=True)] = ""
    """Further targets below which backups requested over HTTP may go: absolute paths and URLs separated by ";"."""

    @property
    def allowed(self) -> tuple[str, ...]:
        """Every directory or URL at or below which backups may be written."""
        return tuple(each.strip() for each in (*self.roots.split(";"), self.to) if each.strip())


class RetentionSection(_Section, frozen=True, kw_only=True):
    """Retention of messages in the log, read or not. Whole segment files are removed, never the newest."""

    hours: Annotated[int, Meta(ge=0, le=876_000), of_cluster(Unit.HOURS)] = 72
    """The hours of log time for which messages are kept; 0: for ever."""
    ms: Annotated[
        int,
        Meta(
            ge=0,
            extra=within(
                1000, 1 << 50, usual=(60_000, 1 << 50), zero=True, why="messages go within a minute, consumed or not"
            ),
        ),
        of_cluster(Unit.MS),
    ] = 0
    """The milliseconds of log time for which messages are kept; unless it is 0, it replaces `hours`."""
    bytes_max: Annotated[int, Meta(ge=0, extra=within(64 << 10, 1 << 60, zero=True)), of_cluster(Unit.BYTES)] = 0
    """The bytes of log that are kept; 0: no limit."""
    protect_unconsumed: Annotated[bool, CLUSTER] = False
    """True if messages that a consumer group has not consumed are kept, whatever the other keys say."""
    delete_when: Annotated[str, CLUSTER] = "04"
    """The hours of the day, in the leader's local time, at which expired segments are removed ("04;16"); "" for any
    time."""
    every_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(50, 3_600_000)), of_cluster(Unit.MS)] = 10_000
    disk_max_used_percent: Annotated[Percent, of_cluster(Unit.PERCENT)] = 75
    """The use of the disk above which expired segments are removed at any hour."""
    disk_force_clean_percent: Annotated[Percent, of_cluster(Unit.PERCENT)] = 85
    """The use of the disk above which the oldest segments are removed although they have not expired."""
    disk_refuse_writes_percent: Annotated[
        int,
        Meta(ge=1, le=100, extra=within(1, 100, usual=(50, 100), why="writes are refused on a half empty disk")),
        of_cluster(Unit.PERCENT),
    ] = 90
    """The use of the disk above which writes are refused."""
    disk_rate_ms: Annotated[int, Meta(ge=1000, le=86_400_000), of_cluster(Unit.MS)] = 600_000
    """The milliseconds for which a disk's growth is observed before the node forecasts when it will be full; the
    observation covers at most six times as long."""
    delete_batch_files: Annotated[int, Meta(ge=1, le=1000), of_cluster(Unit.NONE)] = 10
    """The most segments that one TRIM removes."""
    delete_gap_ms: Annotated[int, Meta(ge=0, le=60_000), of_host(Unit.MS, reload=True)] = 100
    """The pause between the removal of one file and the next, in milliseconds."""

    @property
    def keep_ms(self) -> int:
        """Milliseconds for which messages are kept, unless their topic says otherwise; 0: for ever."""
        return self.ms or self.hours * 3_600_000

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours in `delete_when` as numbers; empty for any time. Raises ValueError."""
        words = [word.strip() for word in self.delete_when.split(";")] if self.delete_when.strip() else []
        hours = frozenset(int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= 2)
        if len(words) != len(hours) or not hours <= set(range(24)):
            raise ValueError(f'"{self.delete_when}" is not a list of distinct hours from 00 to 23')
        return hours


class TierSection(_Section, frozen=True, kw_only=True):
    """The tier: the object store to which sealed segments are uploaded, to be kept and read when the nodes have removed
    them. The same on every node."""

    url: Annotated[str, HOST] = ""
    """The store: "file:///path" or the URL of a bucket and a prefix in it; "" for none."""
    stop_grace_ms: Annotated[int, Meta(ge=0, le=86_400_000), of_cluster(Unit.MS)] = 60_000
    """The milliseconds for which `raftmq down` waits until all of the log is in the tier."""
    seal_after_ms: Annotated[
        int,
        Meta(
            ge=0,
            extra=within(
                60_000,
                604_800_000,
                usual=(600_000, 604_800_000),
                zero=True,
                why="a quiet cluster closes more than 50,000 segments a year, and each is a row of the state for as "
                "long as the tier keeps it",
            ),
        ),
        of_cluster(Unit.MS),
    ] = 3_600_000
    """The age of a message, in milliseconds of log time, at which its segment is closed and uploaded although it is not
    full; 0: only full segments are uploaded."""
    evict: Annotated[bool, CLUSTER] = False
    """True if the tier keeps the messages that retention removes from the nodes."""
    retention_hours: Annotated[int, Meta(ge=0, le=876_000), of_cluster(Unit.HOURS)] = 0
    """The hours of log time for which the tier keeps what has left the nodes; 0: for ever."""
    retention_ms: Annotated[int, Meta(ge=0, extra=within(1000, 1 << 50, zero=True)), of_cluster(Unit.MS)] = 0
    """The milliseconds of log time for which the tier keeps it; unless it is 0, it replaces `retention_hours`."""
    read: Annotated[Literal["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"], CLUSTER] = "NOT_IN_DISK"
    """The messages that pulls read from the tier: those that this node no longer has, also those further behind than
    `modes.access_message_in_memory_max_ratio`, or all that the tier has. RocketMQ's tieredStorageLevel."""
    bytes_max: Annotated[int, Meta(ge=0, extra=within(64 << 10, 1 << 60, zero=True)), of_cluster(Unit.BYTES)] = 0
    """The bytes of objects that the tier keeps; only objects whose messages have left the nodes are removed. 0: no
    limit."""
    delete_delay_ms: Annotated[int, Meta(ge=0, le=86_400_000), of_host(Unit.MS)] = 60_000
    """The milliseconds between the entry that announces the removal of objects and their removal: meanwhile readers
    end, or learn that the objects are gone."""
    endpoint: Annotated[str, HOST] = ""
    """The address of an S3-compatible store: http://host:port."""
    region: Annotated[str, HOST] = ""
    path_style: Annotated[bool, HOST] = True
    """True for object URLs of the form endpoint/bucket/name; False for bucket.endpoint/name."""
    ca_file: Annotated[str, HOST] = ""
    """PEM file with CAs that are trusted in addition to the system's."""
    encryption: Annotated[str, HOST] = ""
    """The server-side encryption of S3: AES256, aws:kms, aws:kms:dsse; "" for none."""
    encryption_key_id: Annotated[str, HOST] = ""
    credentials_file: Annotated[str, HOST] = ""
    """The file with the access keys of S3, in the format of ~/.aws/credentials, read again every minute so that the
    keys can be rotated; "" for those of the environment or the machine."""
    credentials_profile: Annotated[str, HOST] = "default"
    bytes_per_second: Annotated[
        int, Meta(ge=0, extra=within(64 << 10, 1 << 40, zero=True)), of_cluster(Unit.BYTES_PER_SECOND)
    ] = 0
    """The average rate of uploads in bytes per second; 0: no limit."""
    cache_bytes_max: Annotated[int, Meta(ge=0, extra=within(1 << 20, 1 << 60, zero=True)), of_host(Unit.BYTES)] = (
        1 << 30
    )
    """The bytes on this node's disk for a cache of what is read from the tier; 0: no cache."""
    cache_dir: Annotated[str, HOST] = ""
    """The folder of that cache; "" for `tier-cache` in the data directory."""
    state_every_ms: Annotated[int, Meta(ge=0, le=31_536_000_000), of_host(Unit.MS)] = 3_600_000
    """The interval, in milliseconds, at which the leader copies the state into the tier; 0: never."""
    scrub_every_hours: Annotated[int, Meta(ge=0, le=87_600), of_cluster(Unit.HOURS)] = 168
    """The interval, in hours, at which the leader reads the whole tier and repairs it; 0: only on request."""

    @property
    def keep_ms(self) -> int:
        """Milliseconds for which messages are kept in the tier; 0: for ever."""
        return self.retention_ms or self.retention_hours * 3_600_000

    @property
    def evicts(self) -> bool:
        """True if what retention takes from the nodes stays in the tier."""
        return self.evict and bool(self.url)


class RepairSection(_Section, frozen=True, kw_only=True):
    """Limits of what this node sends to others that fetch what their disks lost."""

    bytes_per_second: Annotated[
        int, Meta(ge=1 << 20, extra=within(1 << 20, 1 << 40)), of_host(Unit.BYTES_PER_SECOND, reload=True)
    ] = 32 << 20


class ConsistencySection(_Section, frozen=True, kw_only=True):
    """The intervals at which replicas are compared, and at which each node reads its disk again to find damage (0:
    never)."""

    digest_every_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(1000, 3_600_000)), of_cluster(Unit.MS)] = (
        60_000
    )
    scrub_every_hours: Annotated[int, Meta(ge=0, le=8760), of_host(Unit.HOURS)] = 24
    scrub_bytes_per_second: Annotated[
        int, Meta(ge=64 << 10, extra=within(64 << 10, 1 << 40)), of_host(Unit.BYTES_PER_SECOND)
    ] = 16 << 20


class ModesSection(_Section, frozen=True, kw_only=True):
    """The modes: when a send is answered, and which nodes serve pulls; the names are RocketMQ's. Weak modes only answer
    earlier."""

    flush_disk_type: Annotated[Literal["SYNC_FLUSH", "ASYNC_FLUSH"], CLUSTER] = "SYNC_FLUSH"
    broker_role: Annotated[Literal["SYNC_MASTER", "ASYNC_MASTER"], CLUSTER] = "SYNC_MASTER"
    transient_store_pool_enable: Annotated[bool, CLUSTER] = False
    """True, with ASYNC_FLUSH: sends of level `leader` are answered from memory, before they are written."""
    all_timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(10, 600_000)), of_cluster(Unit.MS)] = 2000
    """The milliseconds that a send of level `all` waits for the last voter's disk once a majority has the message."""
    slave_read_enable: Annotated[bool, CLUSTER] = False
    """True if consumers that are far behind are sent to a follower."""
    access_message_in_memory_max_ratio: Annotated[int, Meta(ge=0, le=100), of_cluster(Unit.PERCENT)] = 40
    """The lag, in percent of the memory, above which a consumer's messages must be read from a disk, preferably a
    follower's."""


class HealthSection(_Section, frozen=True, kw_only=True):
    """The thresholds at which a state of the cluster becomes a finding (docs/runbooks.md)."""

    follower_behind_entries: Annotated[int, Meta(ge=1, extra=within(1, 1 << 40)), of_cluster(Unit.ENTRIES)] = 10_000
    follower_behind_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 30_000
    clock_off_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 500
    group_idle_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 600_000
    """The milliseconds after which a group that has messages to consume and no consumers is a finding."""
    queue_stuck_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 300_000
    """The milliseconds after which a queue with messages for a group that has consumers, but commits nothing of the
    queue, is a finding."""
    tier_stuck_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 60_000
    """The milliseconds after which failing uploads to the tier are a finding."""
    connections_percent: Annotated[Percent, of_cluster(Unit.PERCENT)] = 90
    """The percentage of limits.connections_max from which the number of connections is a finding."""
    crash_loop_starts: Annotated[int, Meta(ge=2, le=100), of_cluster(Unit.NONE)] = 3
    crash_loop_ms: Annotated[Milliseconds, of_cluster(Unit.MS)] = 600_000


class UpgradeSection(_Section, frozen=True, kw_only=True):
    """The end of an upgrade (docs/upgrade.md)."""

    finalize_after_ms: Annotated[
        int, Meta(ge=0, extra=within(1_000, 30 * 86_400_000, zero=True)), of_cluster(Unit.MS)
    ] = 0
    """The milliseconds for which every voter and learner must have announced the new level before the leader finalizes
    the upgrade by itself; 0: never."""


class FailpointsSection(_Section, frozen=True, kw_only=True):
    """Permission to inject faults over HTTP. For tests only."""

    enabled: Annotated[bool, HOST] = False


class LogOutputSection(_Section, frozen=True, kw_only=True):
    """The node's own log, written for its operator."""

    level: Annotated[Literal["debug", "info", "warning", "error"], of_host(reload=True)] = "info"
    format: Annotated[Literal["text", "json"], HOST] = "text"
    slow_request_ms: Annotated[int, Meta(ge=0, le=600_000), of_host(Unit.MS)] = 500
    """The milliseconds after its arrival above which the answer to a request gets a line in the log; 0: none does."""
    file_bytes_max: Annotated[int, Meta(ge=64 << 10, le=1 << 40), of_host(Unit.BYTES)] = 32 << 20
    """The bytes of a node's node.log, under `raftmq up`, above which a new file begins."""
    files: Annotated[int, Meta(ge=2, le=1_000), of_host(Unit.NONE)] = 8
    """The files node.log, node.log.1, ... that are kept, the present one included."""


class Config(_Section, frozen=True, kw_only=True):
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
        """Returns the TLS mode of a port whose own key is `wanted`: that, or `tls.mode` if it is ""."""
        return wanted or self.tls.mode

    @property
    def speaks_tls(self) -> bool:
        """True if at least one port of this node accepts TLS."""
        wanted = [each.tls for each in self.listeners] + [self.peer.tls, self.admin.tls]
        return any(self.tls_mode(each) != "disabled" for each in wanted)

    def peer_of(self, node_id: int) -> PeerNode:
        """Returns the member with that id. Raises KeyError."""
        for peer in self.peers:
            if peer.id == node_id:
                return peer
        raise KeyError(node_id)

    def routed_by(self, listener: str) -> str:
        """Returns the name of the listener whose addresses clients of that one are given."""
        return next((each.routes for each in self.listeners if each.name == listener), "") or listener

    def broker_addresses(self, listener: str) -> dict[NodeId, str]:
        """Returns node id -> address that the listener of this name advertises on each node; nodes without it are left
        out."""
        return {NodeId(p.id): p.listeners[listener] for p in self.peers if listener in p.listeners}


def dump(config: Config) -> str:
    """Returns the whole configuration as TOML, from which `load` makes an equal Config (with an absolute
    `data_dir`)."""
    blocks: list[str] = []
    for section in msgspec.structs.fields(config):
        value = getattr(config, section.name)
        for item in value if isinstance(value, tuple) else (value,):
            header = f"[[{section.name}]]" if isinstance(value, tuple) else f"[{section.name}]"
            rows = [f"{f.name} = {toml_value(getattr(item, f.name))}" for f in msgspec.structs.fields(item)]
            blocks.append("\n".join([header, *rows]))
    return "\n\n".join(blocks) + "\n"


def split_address(text: str) -> tuple[str, int]:
    """Takes "host:port" or "[v6]:port" apart: (host, port). Raises ValueError."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f'"{text}" is not host:port')
    if ":" in bare and bare == host:
        raise ValueError(f'"{text}" needs brackets around its IPv6 address: [{host}]:{port}')
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """Joins host and port to "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
