"""The checks of a leader before it proposes a membership change; a refusal names the command that would work.

Where safety depends on it, the core checks again (raftlog.core). The texts here are for an operator, who needs to know
which command to type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from cluster.errors import ExitCode, LocalError
from cluster.members.addresses import MemberAddresses
from cluster.members.quorum import SAFE_VOTERS, quorum_of, told
from cluster.runtime.succession import best
from raftlog.core.quorum import majority
from raftlog.core.status import PeerStatus
from raftlog.membership import Membership
from raftlog.types import NOBODY, NodeId

TRANSFER_LAG_MAX = 256
"""How many entries the target of a transfer may be behind: the leader accepts no writes until it has them."""


class Unconfirmed(LocalError):
    """Allowed only with an explicit confirmation. Nothing was proposed."""


class Group(NamedTuple):
    """The group as its leader sees it now."""

    leader: NodeId
    membership: Membership
    committed_index: int
    """Of the newest MEMBERSHIP entry that is committed; a newer one in force is a change under way."""
    peers: dict[NodeId, PeerStatus]
    live: frozenset[NodeId]
    """Those that the leader hears."""
    addresses: dict[NodeId, MemberAddresses]
    next_id: int
    """For a new node."""

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """Their ids, ascending."""
        return tuple(sorted(self.membership.voter_ids))

    def answers(self, node: NodeId) -> bool:
        """The leader hears it."""
        return node == self.leader or node in self.live

    def unfit_to_lead(self, node: NodeId) -> str:
        """Why this voter, another than the leader, could not lead at once; "" if it could."""
        peer = self.peers.get(node)
        if peer is None or node not in self.live:
            return "it does not answer"
        if not peer.fit:
            return "it is drained, or its log or rows are not whole (raftmq repair --plan)"
        if peer.state != "REPLICATE" or peer.lag > TRANSFER_LAG_MAX:
            return f"it is {peer.lag} entries behind, and at most {TRANSFER_LAG_MAX} are waited for"
        return ""


def start_again(node: NodeId) -> str:
    """What to type for a node that does not run: only a cluster of `raftmq up` has its processes beside the command."""
    return f"raftmq restart {node} (a node that raftmq up did not make: raftmq serve --config FILE on its machine)"


def refusal(what: str, why: str, fix: str) -> LocalError:
    """A refused change: nothing was proposed."""
    return LocalError(what, why, fix, ExitCode.REFUSED)


def settled(group: Group) -> None:
    """Raises LocalError while a change is in progress: two at once could make two majorities."""
    index = group.membership.index
    if index > group.committed_index:
        raise refusal(
            f"another membership change is in progress: {group.membership.detail or group.membership.reason}",
            f"its entry {index} is not committed yet, and the members change one at a time",
            "raftmq node list    (until it shows that the change is committed; then repeat the command)",
        )


def known(group: Group, node: NodeId) -> None:
    """Raises LocalError unless it is a member."""
    members = group.membership.node_uuids
    if node in members:
        return
    left = node in [voter.id for voter in group.membership.removed]
    raise refusal(
        f"there is no node {node}" + (" any more" if left else ""),
        f"the members are {names(members)}" + (f"; node {node} was removed" if left else ""),
        f"use one of {names(members)}; raftmq node list shows them",
    )


def add(group: Group, node: NodeId, uuid: UUID, addresses: MemberAddresses) -> bool:
    """False if exactly this node is a member there already. Raises LocalError."""
    membership = group.membership
    members = membership.node_uuids
    if members.get(node) == uuid and group.addresses.get(node) == addresses:
        return False
    fresh = f"raftmq node add    (the next free id is {group.next_id})"
    if node in members and members[node] != uuid:
        raise refusal(
            f"node {node} is a member already",
            f"it has the uuid {members[node]}, and the new directory {uuid}: an id names one disk for ever",
            f"{fresh}; to put the new node in its place: raftmq node replace {node}",
        )
    gone = dict(membership.removed).get(node)
    if gone not in (None, uuid):
        raise refusal(f"id {node} was another node's", f"it had the uuid {gone}; ids are not used twice", fresh)
    for other, known_uuid in members.items():
        if known_uuid == uuid and other != node:
            raise refusal(
                f"that data directory is node {other}'s",
                f"the uuid {uuid} belongs to node {other}; two nodes with one uuid would vote twice",
                "raftmq node add    (with a data directory that is empty)",
            )
    for other, there in group.addresses.items():
        if other != node and (there.host, there.port) == (addresses.host, addresses.port):
            raise refusal(
                f"node {other} listens at {addresses.host}:{addresses.port} already",
                "each node has a peer port of its own",
                "give the new node another [peer] port, and host and port in its own [[peers]] table",
            )
    settled(group)
    return True


def promote(group: Group, node: NodeId, caught_up: bool) -> None:
    """Raises LocalError unless it is a learner that may vote."""
    known(group, node)
    if node in group.voters:
        raise refusal(f"node {node} votes already", f"the voters are {names(group.voters)}", "raftmq node list")
    settled(group)
    peer = group.peers.get(node)
    if peer is None or node not in group.live:
        raise refusal(
            f"node {node} does not answer",
            "a voter that is not there makes majorities harder to reach",
            f"start it (raftmq serve --config FILE, or raftmq restart {node}), then raftmq node promote {node}",
        )
    if not peer.fit:
        raise refusal(
            f"node {node} is not fit to vote",
            "its log or its rows are not whole, or it is drained",
            f"raftmq repair --node {node}    (or raftmq node drain {node} --undo)",
        )
    if not caught_up:
        raise refusal(
            f"node {node} has not caught up",
            f"it is {peer.lag} entries behind; the leader promotes it when it has",
            f"raftmq node list    (until its lag is small; then raftmq node promote {node})",
        )


def remove(group: Group, node: NodeId, *, below_three: bool = True) -> None:
    """Raises LocalError if the rest could not go on, Unconfirmed if it would survive no failure and that was not said
    to be meant (`below_three`)."""
    known(group, node)
    if node not in group.voters:
        settled(group)
        return
    rest = [voter for voter in group.voters if voter != node]
    if not rest:
        raise refusal(
            f"node {node} is the only voter",
            "without it there is no cluster",
            "raftmq node add, wait until it votes, then repeat the command; to stop the cluster: raftmq down",
        )
    settled(group)
    alive = [voter for voter in rest if group.answers(voter)]
    if len(alive) >= majority(len(rest)):
        if len(rest) < SAFE_VOTERS and not below_three:
            raise _unconfirmed(group, node, rest)
        return
    dead = [voter for voter in rest if voter not in alive]
    raise refusal(
        f"without node {node} there would be no majority",
        f"of the voters {names(rest)} that are left only {names(alive) or 'none'} answers",
        f"{start_again(dead[0])}, then repeat the command    (if its disk is lost: raftmq node replace {dead[0]})",
    )


def _unconfirmed(group: Group, node: NodeId, rest: list[NodeId]) -> Unconfirmed:
    before, after = (quorum_of(voters, lambda voter: group.answers(NodeId(voter))) for voters in (group.voters, rest))
    return Unconfirmed(
        f"without node {node} no failure would be survived",
        f"now: {told(before)}. Afterwards: {told(after)}. Nothing was changed",
        f"raftmq node remove {node} --yes    (if that is intended; or raftmq node add first)",
        ExitCode.REFUSED,
    )


def transfer(group: Group, node: NodeId) -> None:
    """Raises LocalError unless it could lead at once."""
    known(group, node)
    if node == group.leader:
        return
    if node not in group.voters:
        raise refusal(
            f"node {node} is a learner",
            "only a voter can lead",
            f"raftmq node promote {node}    (when it has caught up; then repeat the command)",
        )
    why = group.unfit_to_lead(node)
    if not why:
        return
    rest = [voter for voter in group.voters if voter not in (node, group.leader)]
    others = [voter for voter in rest if not group.unfit_to_lead(voter)]
    raise refusal(
        f"node {node} cannot lead now",
        why,
        f"raftmq node transfer {others[0]}" if others else f"raftmq node list    (until node {node} is well again)",
    )


def successor(group: Group) -> NodeId:
    """The voter that should lead when the leader must not. Raises LocalError if nobody can."""
    to = best(group.peers.values(), group.voters, lambda peer: not group.unfit_to_lead(peer.node_id))
    if to != NOBODY:
        return to
    others = [voter for voter in group.voters if voter != group.leader]
    reasons = "; ".join(f"node {voter}: {group.unfit_to_lead(voter)}" for voter in others)
    raise refusal(
        f"no other node than {group.leader} can lead now",
        reasons or "it is the only voter",
        f"{start_again(others[0])}, then repeat the command" if others else "raftmq node add",
    )


def names(nodes: Iterable[NodeId]) -> str:
    """Ids in ascending order, for a text."""
    return ", ".join(map(str, sorted(nodes)))
