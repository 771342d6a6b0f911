"""The peer transport of a node, with its secret."""

from __future__ import annotations

from cluster.members.service import MembersService
from cluster.peer.implausible import Implausible
from cluster.peer.links import heartbeat_net
from cluster.peer.secret import SecretKeeper
from cluster.peer.transport import PeerTransport
from cluster.replication.raft_driver import RaftDriver
from cluster.runtime.context import NodeContext
from statemachine.commands import LEVEL


def transport_of(
    context: NodeContext, members: MembersService, secret: SecretKeeper, driver: RaftDriver
) -> PeerTransport:
    """Not started. Attaches `members` and `secret`; messages that the core refuses close their connections."""
    config, environment = context.config, context.environment
    transport = PeerTransport(
        members.handshake(),
        members.peer_addresses(),
        (config.peer.bind, config.peer.port),
        int.from_bytes(environment.entropy(8)),
        members.own_address,
        heartbeat_net(config),
        secret.keyring,
        environment.entropy,
        LEVEL,
    )
    members.attach(transport)
    secret.attach(transport)
    driver.watch_implausible(Implausible(transport, context.alarms).note)
    return transport
