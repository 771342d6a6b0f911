"""Keeps the membership in force, for all parts of this node: the transport, the routes and the HTTP API.

The newest MEMBERSHIP entry in the log is in force as soon as it is appended (Raft thesis 4.1). A removed node is told
so only when its removal is committed, because an entry that is truncated later has removed no node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from cluster.config.local_layout import node_object
from cluster.members.addresses import MemberAddresses, addresses_of, peer_addresses
from cluster.peer.allowed_peers import LEVEL, REMOVED, Addresses, HostAndPort, Refusal, RemovedMember
from cluster.peer.allowed_peers import Membership as Handshake
from cluster.runtime.alarms import Alarms
from cluster.runtime.context import NodeContext
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.findings import Code
from cluster.runtime.listeners import Signal
from cluster.runtime.service_lifecycle import Part
from raftlog.membership import UNSAFE_RECOVER, Membership
from raftlog.storage.files.identity import Identity
from raftlog.types import NodeId
from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)

ALARM = Code("removed", "critical", "raftmq node list")
HOLD = "removed"
TOO_OLD = Code("level_too_low", "critical", "raftmq upgrade plan")


class MembersService:
    """The membership in force. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        identity: Identity,
        first_ids: Iterable[NodeId] = (),
        levels: Mapping[NodeId, int] = MappingProxyType({}),
    ) -> None:
        """`first_ids` are the voters of GENESIS. `levels`: peer -> the level that it announced, while it is connected
        (`cluster.peer.transport_options.PeerLevels`)."""
        self._config = context.config
        self.identity = identity
        """The identity in this node's directory."""
        self._raw = context.raw
        self._alarms = context.alarms
        self._wake = context.wake
        self._metrics = MembersMetrics()
        self._first_ids = frozenset(first_ids)
        self._levels = levels
        self._addresses: dict[NodeId, MemberAddresses] = {}
        self._seen = (-1, False)
        self.changed: Signal[[Handshake, Addresses]] = Signal()
        """Sent with `handshake` and the members' addresses, whenever the membership changes or is committed."""
        self.removed: Signal[[]] = Signal()
        """Sent when this node learns that it was removed."""
        self.removed_since: int | None = None
        """Index of the entry that removed this node. None while the node is a member, or if it never was one."""
        self._look()

    def part(self) -> Part:
        """Returns the functions through which the node starts, informs and closes this service."""
        return Part(name="membership", tick=self.tick, metrics=(self._metrics,))

    # --- who and where -----------------------------------------------------------------------------------------------

    @property
    def in_force(self) -> Membership:
        """The membership of the newest MEMBERSHIP entry in this node's log; that of GENESIS if there is none."""
        return self._raw.membership

    def announced(self, node: NodeId) -> int | None:
        """Returns the highest level that another member announces; None while it is not connected, or if it announces
        none."""
        return self._levels.get(node) or None

    @property
    def is_committed(self) -> bool:
        """False while a change of the membership is in progress."""
        return self._raw.committed_membership_index >= self.in_force.index

    @property
    def taken_ids(self) -> list[int]:
        """Ids of present and former members that this node knows, ascending. They include those of GENESIS: a restored
        cluster, or a survivor that continues alone, does not list them as members."""
        members = self.in_force
        left = (voter.id for voter in members.removed)
        return sorted({*members.node_uuids, *left, *self._first_ids})

    @property
    def next_id(self) -> int:
        """The id for the next new node."""
        return self.taken_ids[-1] + 1

    @property
    def has_unread_event(self) -> bool:
        """True if the log has an event that an operator must acknowledge before the members can change again."""
        return self._alarms.raised(EVENT)

    @property
    def addresses(self) -> dict[NodeId, MemberAddresses]:
        """Node id -> addresses of the member, for members with known addresses."""
        return self._addresses

    def handshake(self) -> Handshake:
        """Returns the identities against which this node checks nodes that connect. It names no members while this node
        joins a cluster that continues another one, until this node receives the entry that says so. Before that, the
        ids in its log may belong to other nodes."""
        identity, members = self.identity, self.in_force
        counted = [each for each in self._raw.memberships_that_count if each.cluster_uuid == identity.cluster_uuid]
        known = {node: str(uuid) for each in counted for node, uuid in each.node_uuids.items()}
        removed = {voter.id: RemovedMember(str(voter.uuid), members.index) for voter in members.removed}
        return Handshake(
            str(identity.cluster_uuid),
            identity.group_id,
            identity.node_id,
            str(identity.node_uuid),
            known,
            removed if self.is_committed else {},
        )

    @property
    def own_address(self) -> HostAndPort:
        """The address at which this node listens for the others, from its own configuration."""
        own = self._config.peer_of(self.own_id)
        return own.host, own.port

    def peer_addresses(self) -> Addresses:
        """Returns the addresses at which the members listen for each other, from the log and from this node's
        configuration."""
        return peer_addresses(self._raw.memberships_that_count, self._config)

    def broker_addresses(self, listener: str) -> dict[NodeId, str]:
        """Returns voter -> the address that its listener of that name advertises. Removed nodes are left out, and
        learners too, because their rows may be far behind."""
        voters = self.in_force.voter_ids
        return {
            node: known.listeners[listener]
            for node, known in self._addresses.items()
            if node in voters and listener in known.listeners and not (self.is_removed and node == self.own_id)
        }

    def http_address(self, node: NodeId) -> str:
        """Returns the "host:port" of the node's HTTP API; "" if it is unknown."""
        known = self.addresses.get(node)
        return known.admin if known is not None else ""

    @property
    def own_id(self) -> NodeId:
        """Id of this node."""
        return self.identity.node_id

    @property
    def own_role(self) -> Literal["voter", "learner", "removed", "none"]:
        """The role of this node, as far as it knows."""
        if self.is_removed:
            return "removed"
        members, own = self.in_force, (self.own_id, self.identity.node_uuid)
        return "voter" if own in members.voters else "learner" if own in members.learners else "none"

    @property
    def is_removed(self) -> bool:
        """True if this node was removed from the cluster: it then serves only its operator."""
        return self.removed_since is not None

    # --- changes -----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Calls `on_members` if the membership has changed or was committed since the last call. Called several times a
        second."""
        if self._seen != (self.in_force.index, self.is_committed):
            self.on_members()

    def on_members(self) -> None:
        """Takes over the membership in force: its addresses, its metrics, and whether this node is a member. Then sends
        `changed`. Called when the membership has changed or was committed."""
        before = self._seen[0]
        self._look()
        members = self.in_force
        if members.index != before:
            logger.info(
                "members from entry %d on: voters %s, learners %s%s",
                members.index,
                members.voter_ids,
                members.learner_ids,
                f" ({members.detail})" if members.detail else "",
            )
        self.changed(self.handshake(), self.peer_addresses())

    def _look(self) -> None:
        members, own = self.in_force, self.own_id
        self._seen = (members.index, self.is_committed)
        self._addresses = addresses_of(members, self._config)
        if members.node_uuids.get(own) == self.identity.node_uuid:
            if self.removed_since is not None and members.index > self.removed_since:
                self._back()
        elif self.is_committed and (own, self.identity.node_uuid) in [tuple(voter) for voter in members.removed]:
            self._out(members.index)
        self._metrics.note(members, committed=self.is_committed, removed=self.is_removed)

    def refused(self, peer: NodeId, refusal: Refusal) -> None:
        """Handles a member's refusal to accept connections from this node (cluster.peer.allowed_peers)."""
        if refusal.kind == REMOVED:
            self._out(refusal.since)
        elif refusal.kind == LEVEL:
            self._alarms.raise_alarm(
                TOO_OLD, f"{node_object(self.identity.group_id, peer)} refuses this node: {refusal.reason}"
            )

    def _out(self, since: int) -> None:
        if self.removed_since is not None:
            return
        self.removed_since = since
        self._metrics.note(self.in_force, committed=self.is_committed, removed=True)
        self._raw.hold_campaigns(HOLD, True)
        self._alarms.raise_alarm(
            ALARM,
            f"this node was removed from the cluster at entry {since}: it serves no clients and does not vote. Stop "
            "it. To use the machine again, give it an empty data directory, then: raftmq node add",
            stops_service=True,
        )
        self.removed()
        self._wake()

    def _back(self) -> None:
        self.removed_since = None
        self._raw.hold_campaigns(HOLD, False)
        self._alarms.clear(ALARM)
        self._wake()


EVENT = Code("unsafe_recovered", "critical", "raftmq alarm list")


def watch_event(state: BrokerState, alarms: Alarms) -> None:
    """Raises the alarm about an unsafe recovery until an operator has acknowledged it in the log; then clears it."""
    members = state.membership
    if members is None or members.reason != UNSAFE_RECOVER or state.acknowledged >= members.index:
        alarms.clear(EVENT)
        return
    alarms.raise_alarm(
        EVENT,
        f"{members.detail}. Tell everyone who relies on the messages that may be lost; then: raftmq alarm ack {EVENT}. "
        "Only one copy is left: back it up and restore it to three nodes.",
    )


class MembersMetrics(ServiceMetrics):
    """The metrics of the membership, updated at each change."""

    def __init__(self) -> None:
        super().__init__()
        gauge = self.gauge
        self._members = gauge("raftmq_members", "Members in force, by role", ["role"])
        self._index = gauge(
            "raftmq_membership_index", "Index of the entry that defines the members in force; 0 for GENESIS"
        )
        self._pending = gauge("raftmq_membership_pending", "1 while a membership change is not committed")
        self._removed = gauge("raftmq_removed", "1 if this node was removed from the cluster")

    def note(self, members: Membership, *, committed: bool, removed: bool) -> None:
        """Shows the members in force."""
        self._members.labels("voter").set(len(members.voters))
        self._members.labels("learner").set(len(members.learners))
        self._index.set(members.index)
        self._pending.set(not committed)
        self._removed.set(removed)
