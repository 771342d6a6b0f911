"""The addresses of each member: from the log, else from this node's own [[peers]].

The members of GENESIS are known from the configuration only. A node that joins later gives its address when it is
added, and the log carries it to all nodes. An entry in the log is newer than any file, so it comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cluster.config.config import Config, PeerNode
from raftlog.membership import Address, Membership
from raftlog.types import NodeId


class MemberAddresses(NamedTuple):
    """The addresses of one member; a `PeerNode` without its id."""

    host: str
    port: int
    admin: str
    """The "host:port" of its HTTP API; "" if unknown."""
    listeners: Mapping[str, str]
    """Listener name -> advertised "host:port"."""

    def as_address(self, node: NodeId) -> Address:
        """As it stands in a MEMBERSHIP entry."""
        return Address(node, self.host, self.port, self.admin, tuple(sorted(self.listeners.items())))


def of_peer(peer: PeerNode) -> MemberAddresses:
    """What a [[peers]] table says."""
    return MemberAddresses(peer.host, peer.port, peer.admin, peer.listeners)


def peer_addresses(counted: Sequence[Membership], config: Config) -> dict[NodeId, tuple[tuple[str, int], ...]]:
    """Where each member of these memberships (ascending) may listen for the others: by the log, newest first, then by
    configuration."""
    configured = {NodeId(peer.id): (peer.host, peer.port) for peer in config.peers}
    found: dict[NodeId, list[tuple[str, int]]] = {}
    for membership in reversed(counted):
        for node in membership.node_uuids:
            logged = membership.address(node)
            found.setdefault(node, []).extend([(logged.host, logged.port)] if logged is not None else [])
    return {
        node: tuple(dict.fromkeys([*known, *([configured[node]] if node in configured else [])]))
        for node, known in found.items()
    }


def addresses_of(membership: Membership, config: Config) -> dict[NodeId, MemberAddresses]:
    """node id -> addresses of each voter and learner of whom any are known, in id order."""
    configured = {NodeId(peer.id): of_peer(peer) for peer in config.peers}
    logged = {
        each.id: MemberAddresses(each.host, each.port, each.admin, dict(each.listeners))
        for each in membership.addresses
    }
    known = configured | logged
    return {node: known[node] for node in sorted(membership.node_uuids) if node in known}
