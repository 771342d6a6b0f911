"""A node as its own modules see it: status, reload and stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cluster.admin.port import AdminPort

if TYPE_CHECKING:
    from cluster.broker.pulls import Pulls
    from cluster.config.config import Config
    from cluster.node.metrics import NodeMetrics
    from cluster.peer.secret import SecretKeeper
    from cluster.peer.transport import PeerTransport
    from cluster.remoting.forward import Forwarder
    from cluster.remoting.listeners import Listeners
    from cluster.remoting.router import Router
    from cluster.repair.installs import Installs
    from cluster.replication.modes import Modes
    from cluster.replication.proposals import Proposals
    from cluster.replication.raft_driver import RaftDriver
    from cluster.retention.disk_space import DiskSpace
    from cluster.runtime.environment import Environment
    from cluster.state.node_storage import NodeStorage
    from raftlog.core.raw_node import RawNode
    from raftlog.types import NodeId


class OwnPort(AdminPort, Protocol):
    """See `node.Node`. Event loop only."""

    environment: Environment
    node_id: NodeId
    storage: NodeStorage
    raw: RawNode
    driver: RaftDriver
    transport: PeerTransport
    secret: SecretKeeper
    proposals: Proposals
    router: Router
    forwarder: Forwarder
    pulls: Pulls
    listeners: Listeners
    installs: Installs
    disk: DiskSpace
    modes: Modes
    started_ms: int
    failure: BaseException | None
    stopping: bool
    hurried: bool

    @property
    def metrics(self) -> NodeMetrics:
        """The node's metrics."""

    def reconfigure(self, config: Config) -> None:
        """Puts this configuration in force."""
