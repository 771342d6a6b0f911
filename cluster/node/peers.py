"""Makes the services of a node that know the other members of its group, and connect to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.members.changes import DiskLag, MemberChanges
from cluster.members.cluster_level import Levels
from cluster.members.service import MembersService
from cluster.peer import secret
from cluster.peer.links import links_of
from cluster.peer.secret import SecretKeeper
from cluster.peer.transport_options import PeerLevels
from cluster.repair.repair_service import transport_of
from cluster.replication.lag.follower_lag import FollowerLag
from cluster.runtime.service_lifecycle import Part, PartList
from cluster.runtime.tls.tls_maintenance import TlsMaintenance
from raftlog.types import NodeId

if TYPE_CHECKING:
    from cluster.peer.sync_times import SyncTimes
    from cluster.runtime.context import NodeContext
    from cluster.state.node_storage import NodeStorage


class Peers:
    """The membership, the connections to the other members, and what these members report. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        syncs: SyncTimes,
        groups_below: Callable[[int], list[str]],
    ) -> None:
        """Makes the services. `groups_below` is explained at `Levels`."""
        config, log, transfer = context.config, storage.directory.log, context.succession.transfer
        announced: dict[NodeId, int] = {}
        self.parts = parts = PartList()
        self.syncs = parts.of(syncs)
        self.membership = members = parts.of(
            MembersService(context, storage.directory.identity, (voter.id for voter in log.genesis.voters), announced)
        )
        self.tls = parts.of(TlsMaintenance(config, context.alarms, context.clock.wall_ms))
        keyring = secret.load(context.fs, config)
        told = PeerLevels(context.environment.level, announced, lambda: storage.state.level)
        self.transport = transport = transport_of(context, members, keyring, told, self.tls)
        self.levels = parts.of(Levels(context, storage.state, members, transport, groups_below))
        self.secret = parts.of(
            SecretKeeper(config, context.fs, context.alarms, lambda: members.in_force.node_uuids, transport)
        )
        self.links = parts.of(links_of(context, transport, transfer, syncs))
        parts.of(self.links.slow_turns)
        self.lag = parts.of(FollowerLag(context.raw, log, config.retention))
        parts.append(Part(name="disk lag", tick=DiskLag(context.raw, context.succession, config.cluster.group).tick))
        self.changes = parts.of(MemberChanges(context, members, transfer=transfer, slow_turns=self.links.slow_turns))
