"""The peer transport of a node, with its secret; and what dials addresses before they are written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.members.addresses import probe_http
from cluster.members.moving import ASK_MS, FOUND_AT, Moves, Place
from cluster.members.service import MembersService
from cluster.peer.keyring import Keyring
from cluster.peer.links import heartbeat_net
from cluster.peer.probe import probe
from cluster.peer.transport import PLAIN_REFUSAL, PeerTransport
from cluster.repair.fetch import FetchError, Status
from cluster.repair.repairs import Repairs
from cluster.runtime.context import NodeContext
from cluster.runtime.tls.dialling import Dialling
from cluster.runtime.tls.keeper import TlsKeeper
from raftlog.types import NodeId


def transport_of(
    context: NodeContext,
    members: MembersService,
    keyring: Keyring,
    levels: dict[NodeId, int],
    tls: TlsKeeper,
    cluster_level: Callable[[], int],
) -> PeerTransport:
    """Not started. It follows `members`, and keeps in `levels` what peers announce."""
    config, environment = context.config, context.environment
    transport = PeerTransport(
        members.handshake(),
        members.peer_addresses(),
        (config.peer.bind, config.peer.port),
        int.from_bytes(environment.entropy(8)),
        members.own_address,
        heartbeat_net(config),
        keyring,
        environment.entropy,
        environment.level,
        levels,
        cluster_level,
        tls.peer_security(PLAIN_REFUSAL),
        tls.peer_dialling(),
    )
    tls.changed.add(transport.renew_certified)
    members.changed.add(transport.set_members)
    return transport


class _Prober:
    """Dials as this node. Implements `moving.Prober`."""

    def __init__(self, transport: PeerTransport, dialling: Dialling) -> None:
        """`dialling`: of HTTP APIs."""
        self._transport = transport
        self._dialling = dialling

    async def peer(self, place: Place) -> str:
        """Returns why the node is not at the peer address; "" if it is."""
        return await probe(self._transport, place.node, place.node_uuid, (place.host, place.port))

    async def http(self, place: Place) -> str:
        """Returns why the node's HTTP API is not at its address; "" if it is."""
        cluster_uuid = self._transport.roster.membership.cluster_uuid
        return await probe_http(place.node, place.node_uuid, cluster_uuid, place.admin, self._dialling)


def moves_of(members: MembersService, transport: PeerTransport, repairs: Repairs, dialling: Dialling) -> Moves:
    """Returns the service that asks the voters for a member at its new address, and answers when a leader asks."""

    async def ask(peer: NodeId, arguments: list[Any]) -> list[Any] | str:
        try:
            return (await repairs.client.fetch(peer, FOUND_AT, arguments, ASK_MS)).fields
        except FetchError as error:
            if error.status is Status.BAD:
                return f"it cannot look there ({error.remark}): does it run an earlier release?"
            return error.remark

    moves = Moves(members, ask, transport.connected, _Prober(transport, dialling))
    repairs.server.answerers[FOUND_AT] = moves.answer
    return moves
