"""Describes what the HTTP API can ask of its node (AdminPort and its parts), and the node's report about itself
(NodeStatus). This module has no logic."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec

from cluster.admin.figure_history import Samples
from cluster.config.local_layout import NodeName, name_of, node_object
from cluster.members.checks import QuorumView
from cluster.peer.links import LinkView
from cluster.repair.progress import InstallView
from cluster.replication.mode_assembly import ModesView
from cluster.retention.disk_space import DiskView
from cluster.runtime.alarms import Alarm, Alarms
from cluster.state.recovery_views import RecoveryStatus
from raftlog.types import FIRST_GROUP, NodeId

if TYPE_CHECKING:
    from cluster.admin.access import HttpAccess
    from cluster.backup.service import Backups
    from cluster.broker.evicted.evicted_key_search import EvictedPages
    from cluster.broker.evicted.evicted_time_search import EvictedBounds
    from cluster.broker.groups.offset_resets import OffsetResets
    from cluster.broker.message_queries import MessageQueries
    from cluster.broker.rights import Rights
    from cluster.broker.services import Services
    from cluster.broker.topic_sizes import TopicSizes
    from cluster.broker.watches.group_watch import GroupWatch
    from cluster.config.config import Config
    from cluster.config.ranges import OutOfRange
    from cluster.config.reload import KeyChange, ReloadView
    from cluster.members.address_change import Moves
    from cluster.members.changes import MemberChanges
    from cluster.members.cluster_level import Levels
    from cluster.members.service import MembersService
    from cluster.peer.links import Links
    from cluster.placement.registry_state import RegistryProcess
    from cluster.repair.consistency import Consistency
    from cluster.repair.repair_service import Repairs
    from cluster.replication.hot_spots import Window
    from cluster.replication.learnt_use import LearntUse
    from cluster.replication.paced_sends import PacedSends
    from cluster.retention.service import Retention
    from cluster.runtime.events import EventLog
    from cluster.runtime.failpoints.failpoints import FailpointSet
    from cluster.runtime.figures.service_metrics import ServiceMetrics
    from cluster.runtime.findings import Condition
    from cluster.runtime.tls.tls_maintenance import TlsMaintenance
    from cluster.state.scrub import Scrubber
    from cluster.tier.scrub.scrub_service import TierScrubs
    from cluster.tier.tier_service import Tier
    from statemachine.broker_state import BrokerState


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another member as the leader sees it."""

    node: int
    match_index: int
    """The highest log index that is known to be on the member's disk."""
    lag_entries: int
    """Number of entries by which it is behind the leader's log."""
    lag_bytes: int = 0
    """Number of bytes of the log by which it is behind the leader."""
    lag_ms: int = 0
    """Age in milliseconds of the oldest entry that it lacks; 0 if it lacks none."""
    sync_ms: float | None = None
    """Mean duration in milliseconds of a sync of its log in the last 10 s, as the member reports; None if it reports
    none."""
    lag_bytes_per_s: int | None = None
    """Bytes per second by which its lag grows; negative while it shrinks. None if it is too early to tell, or while the
    member fetches a snapshot."""
    caught_up_in_s: int | None = None
    """Seconds until its lag is gone at the present rate; None unless it shrinks."""
    snapshot_in_s: int | None = None
    """Seconds until the leader may delete log that the member lacks, at the present rate; None if that is not expected
    within 30 days."""
    connected: bool


class LoadStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The load of clients on this node."""

    connections: int
    long_polls: int
    inflight_bytes: int
    """Bytes of requests that this node holds, because their outcome is open or because another node has to answer
    them."""
    client_inflight_bytes: int
    """Bytes of the clients' requests, over all connections, that have not been answered."""
    admission_bytes: int = 0
    """The most bytes of undecided sends that this node takes in an overload; 0 if it has not measured that yet."""
    decided_bytes_per_second: int = 0
    """Bytes of sends per second that the log decides, as this node has measured. `admission_bytes` follows from
    this."""
    overloaded: bool = False
    """True while the node refuses sends because more arrive than the log can take."""


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the cluster's secret, which this node requires of peers that connect to its peer port. It contains
    no key."""

    state: Literal["none", "admitting", "changing", "required"] = "none"
    """`none`: the cluster has no secret. `admitting`: the node also accepts peers that prove no secret. `changing`: it
    also accepts peers that prove the older secret. `required`: it accepts only peers that prove the newest one."""
    key: str = ""
    """The id of the newest key, by which two secret files can be compared; "" without a secret."""
    waiting_for: list[int] = []
    """Ids of the members that have not proven the newest key to this node yet."""


class KernelView(msgspec.Struct, frozen=True):
    """The implementation of the hot path that this node runs: native code, or Python (`raftmq_wire.kernel`)."""

    name: Literal["native", "python"]
    version: int
    why: str
    """The reason why the Python code runs instead of the native code; "" if the native code runs."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/status`: the state of one node."""

    schema: Literal[1] = 1
    consistency: Literal["local"] = "local"
    node: int
    uuid: str = ""
    """The node's uuid from its data directory; "" if it has none yet."""
    group: int = FIRST_GROUP
    """The number of the node's group of brokers. All node ids in this answer are ids in that group."""
    cluster: str
    cluster_id: str
    broker: str
    role: Literal["follower", "pre_candidate", "candidate", "leader"]
    member: Literal["voter", "learner", "removed", "none"] = "voter"
    """The node's membership as far as it knows. `none`: it has not learnt yet that it was added."""
    term: int
    leader: int | None
    writes_open: bool
    """True if the node leads and has applied the first entry of its term, so that it accepts writes."""
    commit_index: int
    applied_index: int
    last_index: int
    behind: int = 0
    """Number of entries that a leader has named as committed and that this node has not applied yet."""
    durability: Literal["majority_fdatasync"] = "majority_fdatasync"
    """The condition under which a write is acknowledged."""
    stopping: bool = False
    """True while it stops and directs its clients to other nodes."""
    drained: bool = False
    """True if the node must not lead until its next start, or until an operator ends the drain."""
    maintenance: bool = False
    """True while the node is in maintenance by the log's state: it does not lead until the maintenance ends."""
    failpoints: bool = False
    """True if faults can be injected over HTTP ([failpoints] enabled)."""
    failure: str | None = None
    """The reason why the node no longer takes part in the cluster; None while it does."""
    alarms: list[Alarm] = []
    """Active alarms, oldest first."""
    peers: list[PeerStatus]
    """The other members; empty unless this node leads."""
    sync_ms: float | None = None
    """Mean duration in milliseconds of a sync of this node's log in the last 10 s; None if there was none."""
    quorum: QuorumView | None = None
    """The voters in force, and how many of them may fail."""
    links: list[LinkView] = []
    """This node's links to the other nodes."""
    secret: SecretView = SecretView()
    """The state of the secret that the nodes prove to each other."""
    load: LoadStatus
    recovery: RecoveryStatus
    install: InstallView = InstallView()
    """The progress of this node when it fetches what it lacks from another node: a snapshot, or older segments of the
    log."""
    limits: dict[str, int]
    """The section [limits] in force."""
    modes: ModesView | None = None
    """The condition under which sends are acknowledged, and how many acknowledged ones may be lost; None if it is not
    known."""
    disk: DiskView | None = None
    """The space on the data directory's file system; None if it is not known."""
    retention: dict[str, int | bool | str] = {}
    """The section [retention] in force on this node."""
    versions: dict[str, str]
    kernel: KernelView
    uptime_ms: int

    @property
    def object(self) -> str:
        """The name of the node in findings and errors, for example "node 2/1"."""
        return self.object_of(self.node)

    def object_of(self, node: int) -> str:
        """Returns the name of a node of this node's group in findings and errors, for example "node 2/1"."""
        return node_object(self.group, node)


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A connected consumer, as this node knows it from heartbeats."""

    client_id: str
    address: str
    language: str
    version: int
    silent_ms: int
    """Milliseconds since its last heartbeat."""


class Counted(NamedTuple):
    """Counters that have run since the node's start."""

    messages_in: int
    """Number of messages acknowledged by this node as the leader."""
    messages_out: int
    """Messages delivered to consumers."""
    bytes_in: int
    bytes_out: int
    commits: tuple[int, ...]
    """Number of entries in each bucket, by the time from their proposal to their answer."""
    commit_bounds_s: tuple[float, ...]
    """The upper bound of each bucket of `commits` in seconds, ascending. The last one is infinite."""
    appends: tuple[int, ...]
    """Number of writes to the log in each bucket, by their duration including the fdatasync."""
    append_bounds_s: tuple[float, ...]
    loop_lag_s: float
    """The longest delay in seconds of any timer of the event loop in the last 10 s."""
    refused: dict[str, int]
    """Reason -> number of requests that were refused before anything was proposed."""


class Exports(Protocol):
    """Makes the text of the node's metrics (implemented by `cluster.node.metrics`)."""

    def scraped(self, *more: ServiceMetrics) -> Generator[None, None, list[bytes]]:
        """Returns the metrics in Prometheus's text format, in parts. It yields between steps, and only one scrape may
        be in progress. `more` has further metrics, which services of the HTTP API keep."""


class Clients(Protocol):
    """Lists and closes the connections of clients to this node (implemented by `cluster.admin.client_list`)."""

    def view(self) -> Generator[None, None, tuple[int, list[ClientView]]]:
        """Returns (number of all connections, the busiest of them). Yields between steps."""

    def disconnect(self, address: str) -> bool:
        """Closes the connection of the client at that "ip:port"; returns False if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationPort:
    """Access to the node's configuration, its certificates, and its failpoints."""

    tls: TlsMaintenance
    failpoints: FailpointSet
    overruled: Callable[[], list[KeyChange]]
    """Returns the keys of the cluster for which this node's file gives another value (`after`), which is ignored."""
    held: Callable[[], list[OutOfRange]]
    """Returns the keys whose values are outside their ranges, each with the value that the node uses
    instead."""
    reload: Callable[[], ReloadView]
    """Reads the configuration files again. Raises ConfigError if they are invalid; nothing is changed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesPort:
    """Access to the members of the cluster, to changes of them, and to this node's links to them."""

    membership: MembersService
    changes: MemberChanges
    levels: Levels
    moves: Moves
    links: Links
    connected: Callable[[NodeId], bool]
    """Returns True if this node has a connection to the given one."""
    registry: Callable[[], list[RegistryProcess]]
    """Returns the processes of the registry, and which of them this node reaches."""
    transfer: Callable[[NodeId], None]
    """Starts a transfer of leadership to the given node. It succeeds when that node appears as the leader. Raises
    NotLeaderError, ValueError if it cannot start (`cluster.runtime.leader_handover.Succession.transfer`)."""
    genesis_payload: Callable[[], bytes]
    """Returns the payload of the first entry of the log, at index 0."""
    secret_keys: Callable[[], Sequence[bytes]]
    """Returns the keys of the cluster's secret, newest first; an empty sequence if the cluster has no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPort:
    """Access to the clients that this node serves, to their consumer groups, and to the messages that they may read."""

    rights: Rights
    """Decides who may read stored messages."""
    queries: MessageQueries
    resets: OffsetResets
    """Resets offsets, in the same way as for clients."""
    clients: Clients
    members: Callable[[str], list[MemberView]]
    """Returns the connected consumers of a group, once for each of their connections; [] if there are none."""
    member_count: Callable[[str], int]
    """Returns the number of connected consumers of a group."""
    broadcasts: Callable[[str], bool]
    """Returns True if connected consumers of the group read by broadcasting, and store their offsets themselves."""
    sharers: Callable[[str, str], list[str | None]]
    """Returns the client ids between which the queues of a topic are divided; the arguments are a group and a topic
    (`cluster.broker.groups.assignment`)."""
    group_watch: GroupWatch
    """Knows when each group last committed an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePort:
    """Access to the services that store, expire, tier, back up, compare and repair data."""

    topic_sizes: TopicSizes
    retention: Retention
    tier: Tier
    tier_scrubs: TierScrubs | None
    """Scrubs of the tier; None if no tier is configured."""
    evicted_bounds: EvictedBounds | None = None
    """Finds the offset of an evicted message by its store time; None if no tier is configured."""
    evicted_pages: EvictedPages | None = None
    backups: Backups
    repairs: Repairs
    consistency: Consistency
    scrubber: Scrubber


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsPort:
    """Access to the limits by which this node judges sends while it leads, and to their use."""

    paced: PacedSends
    """The sends that wait because of a quota, and the quotas in force while this node leads."""
    learnt: LearntUse
    """The topics with learnt limits, and their traffic while this node leads."""
    hot: Callable[[], Window]
    """Returns the topics, queues and keys with the most messages in the last window while this node leads."""
    grace_left_ms: Callable[[], int]
    """Returns the milliseconds for which this leader still takes sends from clients with old routes, though its group
    drains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPort:
    """Access to the alarms, findings, events and metrics of this node."""

    alarms: Alarms
    findings: Sequence[Callable[[], Iterable[Condition]]]
    """Functions that return the problems that the node's services see now. Alarms are not among them."""
    events: EventLog
    exporter: Exports
    counted: Callable[[], Counted]
    """Returns the node's counters, from which the history of the last hour is made."""
    samples: Samples = field(default_factory=Samples)
    """The figures of the last hour, for plots."""


class RequestWaits(NamedTuple):
    """The longest times in seconds for which a request waits for a step of its node."""

    opens_s: float = 2.0
    """The wait of a newly elected leader, until the first entry of its term is applied."""
    trimmed_s: float = 3.0
    """The wait until a proposed TRIM is applied."""
    here_s: float = 5.0
    """The wait of a follower, until it has applied the change of a token that the leader has made for it."""
    retired_s: float = 5.0
    """The wait for the first group to retire this node's group, whose log is closed."""
    transfer_min_s: float = 2.0
    """The lower bound of the longest wait until the target of a transfer leads, which otherwise follows from the
    election timeout (`election_wait_s`)."""


WAITS: Final = RequestWaits()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminPort:
    """The node as the HTTP API sees it. The node's assembly makes it. All its functions run on the node's event
    loop."""

    current_config: Callable[[], Config]
    state: BrokerState
    access: HttpAccess
    services: Services
    wall_ms: Callable[[], int]
    """Returns the node's wall clock, milliseconds since the Unix epoch."""
    status: Callable[[], NodeStatus]
    """Returns the node's status. It is cheap enough to be called for each scrape of the metrics."""
    configuration: ConfigurationPort
    nodes: NodesPort
    served: ServedPort
    storage: StoragePort
    limits: LimitsPort
    observed: ObservedPort
    waits: RequestWaits = WAITS

    @property
    def config(self) -> Config:
        """The configuration in force. A reload replaces the object, so it must not be kept."""
        return self.current_config()

    @property
    def object(self) -> str:
        """The name of this node in findings, events and errors, for example "node 2/1"."""
        return self.object_of(self.config.node.id)

    def object_of(self, node: int) -> str:
        """Returns the name of a node of this node's group in findings, events and errors."""
        return node_object(self.config.cluster.group, node)

    def name_of(self, node: int) -> NodeName:
        """Returns the name of a node of this node's group: its id in the first group, in group 2 a text such as
        "2/1"."""
        return name_of(self.config.cluster.group, node)


class ClientGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group to which a client belongs according to its heartbeats."""

    name: str
    role: Literal["producer", "consumer"]
    client_id: str


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """One connection of a client."""

    address: str
    """The client's "ip:port". It identifies the connection on this node."""
    listener: str
    since: str
    """The time when it connected: RFC 3339, UTC."""
    language: str
    """The client's language; "" until its first heartbeat."""
    version: int
    """RocketMQ's number of the client's version; 0 until the client's first heartbeat."""
    groups: list[ClientGroup]
    received_bytes: int
    """Bytes received from the client since it connected."""
    sent_bytes: int
    """Bytes sent to the client since it connected."""
    received_bytes_per_s: float
    """Received bytes per second in the last second or more, or since the client connected."""
    sent_bytes_per_s: float
    unsent_bytes: int
    """Bytes of answers that were passed to the transport and that it could not send yet."""
    inflight_bytes: int
    """Bytes of the client's requests that have not been answered."""
