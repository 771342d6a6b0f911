"""A node as its own modules see it: status, reload and stop. `admin.port.AdminPort` is what HTTP sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cluster.backup.service import Backups
    from cluster.broker.group_members import Members
    from cluster.broker.pulls import Pulls
    from cluster.broker.send_back import SendBacks
    from cluster.broker.sends import Sends
    from cluster.config.config import Config
    from cluster.config.reload import ReloadView
    from cluster.members.changes import MemberChanges
    from cluster.members.moving import Moves
    from cluster.members.service import MembersService
    from cluster.node.layered_config import LayeredConfig
    from cluster.node.metrics import NodeMetrics
    from cluster.node.rates import Rates
    from cluster.node.services import NodeServices
    from cluster.node.tier_wiring import TierAccess
    from cluster.peer.links import Links
    from cluster.peer.secret import SecretKeeper
    from cluster.peer.transport import PeerTransport
    from cluster.remoting.forward import Forwarder
    from cluster.remoting.frame import Frame
    from cluster.remoting.listeners import Listeners
    from cluster.remoting.router import Router
    from cluster.repair.consistency import Consistency
    from cluster.repair.installs import Installs
    from cluster.repair.repairs import Repairs
    from cluster.replication.modes import Modes
    from cluster.replication.proposals import Proposals
    from cluster.replication.raft_driver import RaftDriver
    from cluster.retention.disk_space import DiskSpace
    from cluster.retention.service import Retention
    from cluster.runtime.alarms import Alarms
    from cluster.runtime.environment import Environment
    from cluster.runtime.events import EventLog
    from cluster.runtime.failpoints import FailpointSet
    from cluster.state.node_storage import NodeStorage
    from cluster.state.scrub import Scrubber
    from cluster.tier.scrub.scrub_service import TierScrubs
    from cluster.tier.tier_service import Tier
    from raftlog.core.raw_node import RawNode
    from raftlog.types import NodeId
    from statemachine.broker_state import BrokerState


class OwnPort(Protocol):
    """See `node.Node`. Event loop only."""

    config: Config
    """What is in force."""
    layers: LayeredConfig
    environment: Environment
    state: BrokerState
    services: NodeServices
    alarms: Alarms
    events: EventLog
    failpoints: FailpointSet
    consistency: Consistency
    scrubber: Scrubber
    backups: Backups
    clients: Members
    membership: MembersService
    changes: MemberChanges
    moves: Moves
    links: Links
    repairs: Repairs
    retention: Retention
    tier: Tier
    tier_scrubs: TierScrubs | None
    node_id: NodeId
    storage: NodeStorage
    raw: RawNode
    driver: RaftDriver
    transport: PeerTransport
    secret: SecretKeeper
    proposals: Proposals
    sends: Sends[Frame]
    send_backs: SendBacks
    tier_access: TierAccess | None
    router: Router
    forwarder: Forwarder
    pulls: Pulls
    listeners: Listeners
    installs: Installs
    disk: DiskSpace
    modes: Modes
    rates: Rates
    started_ms: int
    failure: BaseException | None
    stopping: bool
    hurried: bool

    @property
    def metrics(self) -> NodeMetrics:
        """The node's metrics."""

    def reconfigure(self, config: Config) -> None:
        """This is in force from now on. For `cluster.node.reloading`."""

    def reload(self) -> ReloadView:
        """Reads the configuration again. Raises ConfigError, having changed nothing."""
