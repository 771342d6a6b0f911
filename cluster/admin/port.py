"""What the HTTP API asks of the node, and how the node describes itself. No logic: the seam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from cluster.members.quorum import QuorumView
from cluster.peer.links import LinkView
from cluster.repair.progress import InstallView
from cluster.replication.modes import ModesView
from cluster.retention.disk_space import DiskView
from cluster.runtime.alarms import Alarm, Alarms
from cluster.state.recovery_views import RecoveryStatus
from raftlog.types import NodeId

if TYPE_CHECKING:
    from cluster.backup.service import Backups
    from cluster.broker.services import Services
    from cluster.config.config import Config
    from cluster.config.reload import ReloadView
    from cluster.members.changes import MemberChanges
    from cluster.members.service import MembersService
    from cluster.peer.links import Links
    from cluster.repair.consistency import Consistency
    from cluster.repair.repairs import Repairs
    from cluster.retention.service import Retention
    from cluster.runtime.failpoints import FailpointSet
    from cluster.state.scrub import Scrubber
    from statemachine.broker_state import BrokerState


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another member as the leader sees it."""

    node: int
    match_index: int
    """Highest index known to be on its disk."""
    lag_entries: int
    """Entries it is behind the leader's log."""
    connected: bool


class LoadStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What clients hold open on this node."""

    connections: int
    long_polls: int
    inflight_bytes: int


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """What this node asks of those that connect to its peer port. No key is in it."""

    state: Literal["none", "admitting", "changing", "required"] = "none"
    """admitting: peers without a secret are let in too; changing: those with the older one; required: neither."""
    key: str = ""
    """What the newest key is called, so that two files can be compared; "" without one."""
    waiting_for: list[int] = []
    """Members that have not proven it to this node."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/status`: one node in its own words."""

    schema: Literal[1] = 1
    consistency: Literal["local"] = "local"
    node: int
    cluster: str
    cluster_id: str
    broker: str
    role: Literal["follower", "pre_candidate", "candidate", "leader"]
    member: Literal["voter", "learner", "removed", "none"] = "voter"
    """What it is in the cluster as far as it knows; `none`: it has not heard yet that it was added."""
    term: int
    leader: int | None
    writes_open: bool
    """It leads and has applied the no-op of its term."""
    commit_index: int
    applied_index: int
    last_index: int
    durability: Literal["majority_fdatasync"] = "majority_fdatasync"
    """When a write is acknowledged."""
    stopping: bool = False
    """It is told to stop, and sends its clients away."""
    drained: bool = False
    """It does not lead until its next start, or until it is told otherwise."""
    failure: str | None = None
    """Why the node has stopped taking part; None while it does."""
    alarms: list[Alarm] = []
    """What an operator must know now, oldest first."""
    peers: list[PeerStatus]
    """The other members; empty unless this node leads."""
    quorum: QuorumView | None = None
    """The voters in force, and how many of them may fail."""
    links: list[LinkView] = []
    """What this node's links to the others are doing."""
    secret: SecretView = SecretView()
    """How far this node is with the secret that nodes prove to each other."""
    load: LoadStatus
    recovery: RecoveryStatus
    install: InstallView = InstallView()
    """What this node fetches because its log is too far behind, or lacks older segments."""
    limits: dict[str, int]
    """The [limits] in use."""
    modes: ModesView | None = None
    """How sends are acknowledged, and what that may cost."""
    disk: DiskView | None = None
    """Room on the data directory's file system."""
    retention: dict[str, int | bool | str] = {}
    """[retention] as this node has it now."""
    versions: dict[str, str]
    uptime_ms: int


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer that is connected, as this node knows it from heartbeats."""

    client_id: str
    address: str
    language: str
    version: int
    silent_ms: int
    """Since its last heartbeat."""


class Figures(Protocol):
    """The node's figures for Prometheus (`cluster.node.metrics`)."""

    def scraped(self, status: NodeStatus, state: BrokerState, backup_age_s: float | None) -> bytes:
        """The exposition text, with what the status knows brought up to date first."""

    def topic_deleted(self, topic: str) -> None:
        """Forgets the topic's figures."""


class AdminPort(Protocol):
    """The node as the HTTP API sees it. Everything is called on the node's event loop."""

    config: Config
    state: BrokerState
    failpoints: FailpointSet
    alarms: Alarms
    repairs: Repairs
    consistency: Consistency
    scrubber: Scrubber
    backups: Backups
    links: Links
    retention: Retention
    membership: MembersService
    changes: MemberChanges

    @property
    def services(self) -> Services:
        """The node as the handlers of requests see it."""

    @property
    def metrics(self) -> Figures:
        """What the node counts."""

    def status(self) -> NodeStatus:
        """Where the node stands now. Cheap: also called for each scrape."""

    def connected(self, node: NodeId) -> bool:
        """True if something sent to that node now has a connection to travel on."""

    def genesis_payload(self) -> bytes:
        """The payload of the entry at index 0."""

    def transfer(self, to: NodeId) -> None:
        """Starts to hand leadership over; it shows in `leader_id`. Raises RaftLogError if it cannot start."""

    def reload(self) -> ReloadView:
        """Reads the configuration again. Raises ConfigError, having changed nothing."""

    def members(self, group: str) -> list[MemberView]:
        """Connected consumers of a group; [] if there are none or no such group."""
