"""Decides which nodes may use the peer port: members and guests may, former members may not. Keeps the addresses of
members and guests.

A node that was away does not know which members joined in the meantime, but Raft requires it to accept entries of a
leader that is not in its configuration, and to answer that leader (thesis 4.1). A node of the same cluster with an
unknown id is therefore accepted as a **guest**, and dialled at the address in its handshake. An id is bound to one uuid
permanently: a node with a known id and another uuid is refused, and so is a former member.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cluster.config.local_layout import name_of, node_object
from raftlog.types import FIRST_GROUP, GROUPS_MAX, NOBODY, NodeId

HostAndPort = tuple[str, int]
"""Host (name or ip) and port."""
Addresses = Mapping[NodeId, tuple[HostAndPort, ...]]
"""The addresses at which each node may listen, best first. A dialler tries them in turn."""
NODE_ID_MAX = 65535
GUESTS_MAX = 16
"""The most unknown nodes at once. No membership change makes more, so more are a mistake."""
REMOVED = "removed"
SECRET = "secret"
LEVEL = "level"
BELOW = "below"


class RemovedMember(NamedTuple):
    """A member that was removed: its uuid, and the log index of the entry that removed it."""

    node_uuid: str
    since: int
    """Index of the entry that removed the member."""


class Membership(NamedTuple):
    """The identity of this node, and those of the members and former members. Handshakes are checked against them: a
    node of another cluster, or with another disk, is refused."""

    cluster_uuid: str
    group_id: int
    node_id: NodeId
    node_uuid: str
    members: dict[NodeId, str]
    """Node id -> node uuid of every member."""
    removed: dict[NodeId, RemovedMember] = {}  # noqa: RUF012 - a value, never changed
    """Node id -> member whose removal is committed."""


class Refusal(NamedTuple):
    """The reason why a handshake is refused."""

    reason: str
    """The explanation for the operator of the node that is refused."""
    kind: str = ""
    """REMOVED if the node was removed from the cluster, SECRET if it does not prove the cluster's secret, LEVEL if one
    of the two nodes does not know the level of the cluster, BELOW if the group has a level without other groups, else
    ""."""
    since: int = -1
    """Index of the entry that removed the node, -1 if the refusal has another reason."""


class Roster:
    """Keeps members, former members and guests, and decides which nodes may use the peer port: members and guests."""

    def __init__(self, membership: Membership, addresses: Addresses) -> None:
        """`addresses`: member id -> the addresses at which the member listens, as far as they are known."""
        self.membership = membership
        self._addresses: Addresses = {}
        self._guests: dict[NodeId, tuple[str, HostAndPort]] = {}
        """Node id -> (uuid, the address that its handshake gave)."""
        self.update(membership, addresses)

    def update(self, membership: Membership, addresses: Addresses) -> None:
        """Replaces the membership and the addresses. A guest that is now a former member, or a member with a known
        address, is no longer a guest."""
        self.membership = membership
        own = membership.node_id
        self._addresses = {p: a for p, a in addresses.items() if p in membership.members and p != own and a}
        known = self._addresses.keys() | membership.removed.keys()
        self._guests = {peer: guest for peer, guest in self._guests.items() if peer not in known}

    def object_of(self, peer: NodeId) -> str:
        """Returns the name of a node of this node's group in log lines and errors, for example "node 2/1"."""
        return node_object(self.membership.group_id, peer)

    def peers(self) -> list[NodeId]:
        """Returns the ids of all nodes to dial, members and guests, ascending."""
        return sorted(self._addresses.keys() | self._guests.keys())

    def addresses_of(self, peer: NodeId) -> tuple[HostAndPort, ...]:
        """Returns the addresses at which the node may listen, best first; empty if it is not to be dialled."""
        if peer in self._addresses:
            return self._addresses[peer]
        return (self._guests[peer][1],) if peer in self._guests else ()

    def is_guest(self, peer: NodeId) -> bool:
        """Returns True if the node is known only from its handshake."""
        return peer in self._guests

    def leave(self, peer: NodeId) -> None:
        """Removes a guest that disconnected; does nothing for a member."""
        self._guests.pop(peer, None)

    def is_not(self, peer: NodeId, who: list[Any]) -> str:
        """Returns the reason why the node that was dialled as `peer` is another node; "" if it is the right one. `who`
        is the identity that the dialled node gave: [cluster uuid, id, uuid]."""
        cluster, node_id, node_uuid = who
        me = self.membership
        if cluster != me.cluster_uuid:
            return f"at its address is cluster {cluster}, this is cluster {me.cluster_uuid}"
        if node_id != peer:
            return f"at its address is node {name_of(me.group_id, node_id)}: check [[peers]]"
        if peer not in me.members and peer in self._guests:
            known: str | None = self._guests[peer][0]
        else:
            known = me.members.get(peer)
        if known not in (None, node_uuid):
            return f"it comes with another disk (node uuid {node_uuid}, the cluster knows {known})"
        return ""

    def judge(self, header: list[Any], channels: tuple[str, ...], *, itself: bool = False) -> Refusal | None:
        """Returns the reason to refuse the handshake with this HELLO header; None if it is to be accepted. `channels`:
        the names of the acceptable channels. `itself`: True if the dialling node may be this very node."""
        cluster, group, node_id, node_uuid, to_id, channel = header[:6]
        me = self.membership
        if cluster != me.cluster_uuid or group != me.group_id:
            return Refusal(
                f"it belongs to cluster {cluster} group {group}, this is cluster {me.cluster_uuid} group {me.group_id}"
            )
        if to_id != me.node_id:
            asked, own = name_of(group, to_id), name_of(group, me.node_id)
            return Refusal(f"it looks for node {asked} at this address, which is node {own}: check [[peers]]")
        if channel not in channels:
            return Refusal(f"unknown channel {channel!r}")
        if type(node_id) is not int or type(node_uuid) is not str or not 1 <= node_id <= NODE_ID_MAX:
            return Refusal(f"node {name_of(group, node_id)} is no member of this cluster")
        if node_id == me.node_id and not (itself and node_uuid == me.node_uuid):
            return Refusal(f"node {name_of(group, node_id)} is this node: two configurations have the same node.id")
        return self._judge_identity(NodeId(node_id), node_uuid, header)

    def judge_group(self, header: list[Any], least: int = FIRST_GROUP) -> Refusal | None:
        """Returns the reason to refuse the handshake of a node of another group, None if it is to be accepted. The
        sender's node id is valid only in its own group, so the sender never becomes a peer in this group. Its address
        is not checked: this node takes it from the map of the groups. `least`: the lowest group number that is
        accepted."""
        cluster, group, node_id, node_uuid, to_id = header[:5]
        me = self.membership
        if cluster != me.cluster_uuid:
            return Refusal(f"it belongs to cluster {cluster!s:.36}, this is cluster {me.cluster_uuid}")
        if type(group) is not int or not least <= group <= GROUPS_MAX:
            return Refusal(f"a cluster has no group {group!s:.20}")
        if group == me.group_id:
            return Refusal(f"it belongs to group {group} as this node does: members of a group use other channels")
        if to_id not in (NOBODY, me.node_id):
            own = name_of(me.group_id, me.node_id)
            return Refusal(f"it looks for node {to_id!s:.20} at this address, which is node {own}")
        if type(node_id) is not int or type(node_uuid) is not str or not 1 <= node_id <= NODE_ID_MAX:
            return Refusal(f"node {node_id!s:.20} is no member of a group")
        return None

    def _judge_identity(self, node_id: NodeId, node_uuid: str, header: list[Any]) -> Refusal | None:
        me, name = self.membership, name_of(self.membership.group_id, node_id)
        known = me.members.get(node_id)
        if known == node_uuid:
            return None
        if known is not None:
            return Refusal(
                f"node {name} comes with another disk (node uuid {node_uuid}, the cluster knows {known}): its data "
                f"directory was replaced; bring the old one back, or let a new node take its place: raftmq node "
                f"replace {name}"
            )
        left = me.removed.get(node_id)
        if left is not None and left.node_uuid == node_uuid:
            return Refusal(
                f"node {name} was removed from this cluster at entry {left.since}; it may join again as a new node: "
                "raftmq node add",
                REMOVED,
                left.since,
            )
        if left is not None:
            return Refusal(f"id {name} was another node's, and ids are not used twice: raftmq node add gives it one")
        return self._judge_guest(node_id, node_uuid, header)

    def _judge_guest(self, node_id: NodeId, node_uuid: str, header: list[Any]) -> Refusal | None:
        guest, name = self._guests.get(node_id), name_of(self.membership.group_id, node_id)
        if guest is not None and guest[0] != node_uuid:
            return Refusal(f"two nodes say that they are node {name} (uuids {guest[0]} and {node_uuid})")
        if _address_in(header) is None:
            return Refusal(f"node {name} is no member of this cluster: raftmq node add --via http://HOST:PORT")
        if guest is None and len(self._guests) >= GUESTS_MAX:
            return Refusal(f"{GUESTS_MAX} nodes that are no members say hello already: {sorted(self._guests)}")
        return None

    def greet(self, header: list[Any]) -> bool:
        """Records an accepted handshake; returns True if the sender is no member and gave an address: it is now a
        guest, and this node must dial it."""
        peer, address = NodeId(header[2]), _address_in(header)
        if peer in self._addresses or address is None:
            return False
        self._guests[peer] = (header[3], address)
        return True


def _address_in(header: list[Any]) -> HostAndPort | None:
    """Returns the address that a handshake gives; None if there is no valid one."""
    if len(header) < 9:
        return None
    host, port = header[7], header[8]
    if type(host) is not str or not host or type(port) is not int or not 1 <= port <= 65535:
        return None
    return host, port
