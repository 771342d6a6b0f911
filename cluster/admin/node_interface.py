"""The node's interface for the HTTP API, and the node's description of itself. It has no logic."""

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
    """The highest index known to be on its disk."""
    lag_entries: int
    """Entries that it is behind the leader's log."""
    lag_bytes: int = 0
    """The same in bytes of the log."""
    lag_ms: int = 0
    """Age of the oldest entry that it lacks; 0 if it lacks none."""
    sync_ms: float | None = None
    """Mean time of a sync of its log in the last 10 s, as it reports it; None if it reports none."""
    lag_bytes_per_s: int | None = None
    """Bytes by which its lag grows in a second, negative while it shrinks; None if it is too early to tell, or while
    the follower fetches a snapshot."""
    caught_up_in_s: int | None = None
    """Seconds until its lag is gone; None unless it shrinks."""
    snapshot_in_s: int | None = None
    """Seconds until the leader may delete what it lacks, at this rate; None if that is not expected in 30 days."""
    connected: bool


class LoadStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The load of clients on this node."""

    connections: int
    long_polls: int
    inflight_bytes: int
    """Bytes of requests that this node holds: their outcome is open, or another node has to answer them."""
    client_inflight_bytes: int
    """Bytes of unanswered requests of all connections."""
    admission_bytes: int = 0
    """Bytes of undecided sends that this node takes in an overload; 0 if it has not learnt that."""
    decided_bytes_per_second: int = 0
    """The rate at which the log decides sends, from which that follows."""
    overloaded: bool = False
    """True while sends are refused because more arrive than the log takes."""


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """The proof that this node requires of peers that connect to its peer port. Contains no key."""

    state: Literal["none", "admitting", "changing", "required"] = "none"
    """`none`: the cluster has no secret; `admitting`: peers without a secret are accepted too; `changing`: those with
    the older one; `required`: neither."""
    key: str = ""
    """The id of the newest key, so that two files can be compared; "" without one."""
    waiting_for: list[int] = []
    """Members that have not proven the newest key to this node."""


class KernelView(msgspec.Struct, frozen=True):
    """The form of the hot path that this node runs: `raftmq_wire.kernel`."""

    name: Literal["native", "python"]
    version: int
    why: str
    """The reason why it is not the native one; empty if it is."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/status`: the state of one node."""

    schema: Literal[1] = 1
    consistency: Literal["local"] = "local"
    node: int
    uuid: str = ""
    """Node uuid in its data directory."""
    group: int = FIRST_GROUP
    """The number of its group of brokers; the ids of nodes here are of that group."""
    cluster: str
    cluster_id: str
    broker: str
    role: Literal["follower", "pre_candidate", "candidate", "leader"]
    member: Literal["voter", "learner", "removed", "none"] = "voter"
    """Its role in the cluster as far as it knows; `none`: it does not know yet that it was added."""
    term: int
    leader: int | None
    writes_open: bool
    """True if it leads and has applied the no-op of its term."""
    commit_index: int
    applied_index: int
    last_index: int
    behind: int = 0
    """Entries that a leader named as committed and that this node has not applied."""
    durability: Literal["majority_fdatasync"] = "majority_fdatasync"
    """The condition for acknowledging a write."""
    stopping: bool = False
    """True while it stops and directs its clients to other nodes."""
    drained: bool = False
    """True if it must not lead until its next start, or until the drain is lifted."""
    maintenance: bool = False
    """True while it is in maintenance according to the log: it leads nothing until that ends."""
    failpoints: bool = False
    """True if faults can be injected over HTTP: `[failpoints] enabled`."""
    failure: str | None = None
    """The reason why the node has stopped taking part; None while it does."""
    alarms: list[Alarm] = []
    """Active alarms, oldest first."""
    peers: list[PeerStatus]
    """The other members; empty unless this node leads."""
    sync_ms: float | None = None
    """Mean time of a sync of this node's log in the last 10 s; None if there was none."""
    quorum: QuorumView | None = None
    """The voters in force, and how many of them may fail."""
    links: list[LinkView] = []
    """This node's links to the others."""
    secret: SecretView = SecretView()
    """The state of the secret that nodes prove to each other."""
    load: LoadStatus
    recovery: RecoveryStatus
    install: InstallView = InstallView()
    """The progress of fetches for a log that is too far behind, or lacks older segments."""
    limits: dict[str, int]
    """The section [limits] in force."""
    modes: ModesView | None = None
    """The way in which sends are acknowledged, and how many may be lost."""
    disk: DiskView | None = None
    """Space on the data directory's file system."""
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
    """Counters of the node since its start."""

    messages_in: int
    """Acknowledged messages, on the leader."""
    messages_out: int
    """Messages delivered to consumers."""
    bytes_in: int
    bytes_out: int
    commits: tuple[int, ...]
    """Numbers of entries by the time from their proposal to their answer, one for each bucket."""
    commit_bounds_s: tuple[float, ...]
    """The upper bound of each bucket in seconds, ascending; the last one is infinite."""
    appends: tuple[int, ...]
    """Numbers of writes to the log by their duration, fdatasync included, one for each bucket."""
    append_bounds_s: tuple[float, ...]
    loop_lag_s: float
    """The longest delay in seconds of a timer on the event loop in the last 10 s."""
    refused: dict[str, int]
    """Reason -> requests refused before anything was proposed."""


class Exports(Protocol):
    """The node's metrics (`cluster.node.metrics`)."""

    def scraped(self, *more: ServiceMetrics) -> Generator[None, None, list[bytes]]:
        """Returns the exposition text in parts, made in steps. Only one scrape may be in progress. `more`: the metrics
        of services of the HTTP API."""


class Clients(Protocol):
    """The connections of clients to this node (`cluster.admin.client_list`)."""

    def view(self) -> Generator[None, None, tuple[int, list[ClientView]]]:
        """Returns (number of connections, the busiest of them), in steps."""

    def disconnect(self, address: str) -> bool:
        """Closes the connection of the client at that "ip:port"; returns False if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationPort:
    """The configuration of this node, its certificates, and the faults that may be injected."""

    tls: TlsMaintenance
    failpoints: FailpointSet
    overruled: Callable[[], list[KeyChange]]
    held: Callable[[], list[OutOfRange]]
    """Returns keys of the cluster for which this node's file gives another value (`after`), which is ignored."""
    reload: Callable[[], ReloadView]
    """Reads the configuration again. Raises ConfigError, having changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesPort:
    """The members of the cluster, changes of them, and the ways to them."""

    membership: MembersService
    changes: MemberChanges
    levels: Levels
    moves: Moves
    links: Links
    connected: Callable[[NodeId], bool]
    """Returns True if there is a connection to that node."""
    registry: Callable[[], list[RegistryProcess]]
    """Returns the processes of the registry, and which of them this node reaches."""
    transfer: Callable[[NodeId], None]
    """Starts a leadership transfer; its result shows in `leader_id`. Raises RaftLogError if it cannot start."""
    genesis_payload: Callable[[], bytes]
    """Returns the payload of the entry at index 0."""
    secret_keys: Callable[[], Sequence[bytes]]
    """Returns the keys that peers prove, newest first; none if the cluster has no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPort:
    """The clients that this node serves, their groups, and the reads that they ask for."""

    rights: Rights
    """Judges who may read what is stored."""
    queries: MessageQueries
    resets: OffsetResets
    """Resets of offsets, the same as those that clients ask for."""
    clients: Clients
    members: Callable[[str], list[MemberView]]
    """Returns the connected consumers of a group, one with several connections for each; [] if there are none."""
    member_count: Callable[[str], int]
    """Returns the number of connected consumers of a group."""
    broadcasts: Callable[[str], bool]
    """Returns True if connected consumers of a group read by broadcasting, and keep their places themselves."""
    sharers: Callable[[str, str], list[str | None]]
    """Returns the client ids among which a group divides a topic (`cluster.broker.groups.assignment`)."""
    group_watch: GroupWatch
    """Knows when groups last committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePort:
    """The services that keep, move, copy, compare and repair what is stored."""

    topic_sizes: TopicSizes
    retention: Retention
    tier: Tier
    tier_scrubs: TierScrubs | None
    """Scrubs of the tier; None if no tier is configured."""
    evicted_bounds: EvictedBounds | None = None
    """Finds offsets of evicted messages by their times; None if no tier is configured."""
    evicted_pages: EvictedPages | None = None
    backups: Backups
    repairs: Repairs
    consistency: Consistency
    scrubber: Scrubber


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsPort:
    """The limits by which this node judges sends while it leads, and what is near them."""

    paced: PacedSends
    """The sends that wait for their quota, and the quotas as this node judges by them while it leads."""
    learnt: LearntUse
    """The topics with learnt limits and what they get, while this node leads."""
    hot: Callable[[], Window]
    """Returns what got most of the messages of the last window, while this node leads."""
    grace_left_ms: Callable[[], int]
    """Returns the milliseconds for which this leader still takes sends though its group drains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPort:
    """The problems, events and figures of this node."""

    alarms: Alarms
    findings: Sequence[Callable[[], Iterable[Condition]]]
    """Return the problems that the services of the node see now, besides its alarms."""
    events: EventLog
    exporter: Exports
    counted: Callable[[], Counted]
    """Returns the counters for the history of the last hour."""
    samples: Samples = field(default_factory=Samples)
    """The figures of the last hour, for plots."""


class RequestWaits(NamedTuple):
    """Limits how long a request waits for what its node does on the way, in seconds."""

    opens_s: float = 2.0
    """The wait for a node that has just been elected, until an entry of its term is applied."""
    trimmed_s: float = 3.0
    """The wait for a TRIM that is proposed, until it is applied."""
    here_s: float = 5.0
    """The wait of a node until it has applied the change of a token that the leader made for it."""
    retired_s: float = 5.0
    """The wait until the first group has retired this one, whose log is closed. It is told until it does."""
    transfer_min_s: float = 2.0
    """The shortest wait for the leader that a transfer makes."""


WAITS: Final = RequestWaits()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminPort:
    """The node as the HTTP API sees it; the node assembles it. Everything is called on the node's event loop."""

    current_config: Callable[[], Config]
    state: BrokerState
    access: HttpAccess
    services: Services
    wall_ms: Callable[[], int]
    """Returns the node's wall clock, milliseconds since the Unix epoch."""
    status: Callable[[], NodeStatus]
    """Returns the status. Cheap; also called for each scrape."""
    configuration: ConfigurationPort
    nodes: NodesPort
    served: ServedPort
    storage: StoragePort
    limits: LimitsPort
    observed: ObservedPort
    waits: RequestWaits = WAITS

    @property
    def config(self) -> Config:
        """The configuration in force; a reload replaces it."""
        return self.current_config()

    @property
    def object(self) -> str:
        """The name of this node in findings, events and errors, for example "node 2/1"."""
        return self.object_of(self.config.node.id)

    def object_of(self, node: int) -> str:
        """Returns the name of a node of this node's group in findings, events and errors."""
        return node_object(self.config.cluster.group, node)

    def name_of(self, node: int) -> NodeName:
        """Returns the name of a node of this node's group: its id in the first group, else "2/1"."""
        return name_of(self.config.cluster.group, node)


class ClientGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group to which a client belongs according to its heartbeats."""

    name: str
    role: Literal["producer", "consumer"]
    client_id: str


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """One connection of a client."""

    address: str
    """"ip:port", which identifies the connection on this node."""
    listener: str
    since: str
    """The time when it connected: RFC 3339, UTC."""
    language: str
    """The client's language; "" until its first heartbeat."""
    version: int
    """RocketMQ's number of the client's version; 0 until its first heartbeat."""
    groups: list[ClientGroup]
    received_bytes: int
    """Bytes received from the client since it connected."""
    sent_bytes: int
    """Bytes sent to the client since it connected."""
    received_bytes_per_s: float
    """Received bytes per second since the list was last read, or since the client connected."""
    sent_bytes_per_s: float
    unsent_bytes: int
    """Bytes of answers that the client has not read yet."""
    inflight_bytes: int
    """Bytes of its unanswered requests."""
