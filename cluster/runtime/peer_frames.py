"""Frames between nodes, as the parts of a node see them: their kinds, and the links that carry them.

A part lists the kinds that it takes (`cluster.runtime.service_lifecycle.Part`), and sends its own through `PeerLinks`.
`cluster.peer.wire` has the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from raftlog.types import NodeId


class Kind(IntEnum):
    """The kind of a frame. Values are on the wire: never renumber."""

    HELLO = 0
    """[cluster uuid, group, node id, node uuid, id of the node addressed, channel, incarnation, own host, own port],
    then nonce and [key ids] (`cluster.peer.handshake`; both empty without a secret), the highest level
    that the node knows (`statemachine.levels.LEVEL`), and that of the cluster in its applied state"""
    REFUSED = 1
    """[reason as text, one of "removed", "secret", "level" and "", index of the entry that removed the node or -1]"""
    FORWARD = 2
    """A client's request (`cluster.remoting.forward.forward_frame.decode_forward`); or, from level 13 of the cluster
    on, [number of the request] alone: the client is gone, and nobody waits for an answer"""
    FORWARD_REPLY = 3
    FETCH = 4
    FETCHED = 5
    WANT_WRITTEN = 6
    """[]: asks the peer to report writes for a while (`cluster.replication.acks.write_reports`)"""
    WRITTEN = 7
    """[term, index]: entries up to this index were handed to the operating system"""
    PING = 8
    """[channel, number, ms between two PINGs of the sender, ids of the nodes that the sender does not reach, or nil if
    it does not lead, whether it is leaving, its slow turns]: answered on the same channel (`cluster.peer.links`)"""
    PONG = 9
    """[channel, number of the PING]"""
    CHALLENGE = 10
    """[nonce, key id]"""
    PROOF = 11
    """[the dialler's proof]"""
    WELCOME = 12
    """[cluster uuid, node id, node uuid, the acceptor's proof]"""
    RELAY = 13
    """A request for a client that is connected to the addressed node (`cluster.broker.groups.relay_frame`). An unknown
    kind ends the connection"""
    RELAY_REPLY = 14
    REQUEST_VOTE = 16
    REQUEST_VOTE_REPLY = 17
    APPEND_ENTRIES = 18
    APPEND_ENTRIES_REPLY = 19
    HEARTBEAT = 20
    HEARTBEAT_REPLY = 21
    TIMEOUT_NOW = 22
    INSTALL_SNAPSHOT = 23
    WHO_WAITS = 24
    """A question about the client that waits for a reply (`cluster.broker.groups.requester_frames`). Only from level 13
    on, because an unknown kind ends the connection"""
    WAITS = 25
    READ_INDEX = 26
    """[number]: asks the leader up to which index the log must be applied to answer linearizably
    (`cluster.peer.confirmed_index`). Only from level 13 on, because an unknown kind ends the connection"""
    READ_INDEX_REPLY = 27
    """[number of the question, index; -1: this node does not lead]"""
    GROUPS = 28
    """[], payload: what the sender knows of the groups of the cluster (`cluster.placement.group_map`). Only on the
    channel `group`, between nodes of different groups, where no other kind but those in GROUP_KINDS passes"""
    TRUTH = 29
    """[number, version, level of the asking group]: asks the leader of the first group what changed after that version
    in the truth, the rows that all groups share (`cluster.truth.truth_frames`). Only on the channel `group`"""
    TRUTH_REPLY = 30
    """[number of the question, version that the asking group has once it has copied the rows, True if there are more
    rows], payload: rows. A version of -1 means that this node cannot answer, mostly because it does not lead"""
    ACT = 31
    """[number, author], payload: commands that change the truth (`cluster.truth.truth_acts`). Only on the channel
    `group`"""
    ACT_REPLY = 32
    """[number of the act, outcome, version of the truth that has it, remark], payload: results"""
    MEMBERS = 33
    """[number, consumer group]: asks a node of another group of brokers of which members it has heard
    (`cluster.broker.groups.other_members`). Only on the channel `group`"""
    MEMBERS_REPLY = 34
    """[number of the question, False if the ids are too many to be sent], payload: all client ids, or none"""
    PLACES = 35
    """[], payload: which groups have some of the topics (`cluster.truth.places_told`). Only on the channel `group`, and
    only to a process of the registry"""
    REGISTRY_STATE = 36
    """The state of the process of the registry that sends it (`cluster.placement.registry_state`). Only on the channel
    `group`"""
    DEMANDS = 37
    """[], payload: what is asked for under each quota (`cluster.placement.quota_exchange`). Between nodes of a group,
    and on the channel `group`. Only while there are quotas, that is from level 16 on, because an unknown kind ends the
    connection"""


NODE_KINDS = frozenset(
    {
        *range(Kind.FORWARD, Kind.PONG + 1),
        *(Kind.RELAY, Kind.RELAY_REPLY),
        *range(Kind.WHO_WAITS, Kind.READ_INDEX_REPLY + 1),
        Kind.DEMANDS,
    }
)
"""Kinds that the node handles itself; every other kind is a Raft message."""
GROUP_KINDS = frozenset(range(Kind.GROUPS, Kind.DEMANDS + 1))
"""Kinds of the channel `group` (docs/adr/0108)."""
REGISTRY_KINDS = frozenset({Kind.GROUPS, Kind.REGISTRY_STATE})
"""Kinds that a process of the registry may send. Such a process knows the secret, but is no node (docs/adr/0112)."""


class WireError(ValueError):
    """The bytes are no valid frame between nodes; the connection is closed."""


class PeerLinks(Protocol):
    """The connections between nodes (`cluster.peer.transport.PeerTransport`). Event loop only."""

    def send_frame(self, peer: NodeId, kind: Kind, header: list[Any], payload: bytes) -> bool:
        """Sends a frame. Returns False if the peer cannot be reached now."""

    def connected(self, peer: NodeId) -> bool:
        """Returns True if a frame could be sent to the peer now."""

    def connected_members(self) -> list[NodeId]:
        """Returns the ids of the members that have a connection to this node, ascending."""

    def reaches_all(self) -> bool:
        """Returns True if every other member has a connection to this node."""

    def request_ids(self) -> Iterator[int]:
        """Yields numbers for requests to peers. Two runs of this node never use the same ones."""
