"""Makes the leader's checks before it proposes a membership change. An error names the command that would work.

The core (raftlog.core) repeats the checks on which safety depends. The checks here exist for their texts, which tell an
operator which command to type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from cluster.config.local_layout import NodeName, name_of, names_of
from cluster.members.addresses import MemberAddresses
from cluster.runtime.leader_handover import Slower, best, none_slower
from raftlog.core.state.quorum import majority
from raftlog.core.status import PeerStatus
from raftlog.membership import Membership
from raftlog.types import FIRST_GROUP, NOBODY, NodeId
from raftmq_wire.errors import ExitCode, LocalError

TRANSFER_LAG_MAX = 256
"""The most entries by which the target of a transfer may be behind. The leader accepts no writes until the target has
them."""


class Unconfirmed(LocalError):
    """Raised if a change needs an explicit confirmation. Nothing was proposed."""


class Group(NamedTuple):
    """The group as its leader sees it at one moment."""

    leader: NodeId
    membership: Membership
    committed_index: int
    """Index of the newest committed MEMBERSHIP entry. If a newer one is in force, a change is in progress."""
    peers: dict[NodeId, PeerStatus]
    live: frozenset[NodeId]
    """Ids of the nodes from which the leader receives messages."""
    addresses: dict[NodeId, MemberAddresses]
    next_id: int
    """The id for the next new node."""
    number: int = FIRST_GROUP
    """The number of the group of brokers."""

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """Ids of the voters, ascending."""
        return tuple(sorted(self.membership.voter_ids))

    def name(self, node: NodeId) -> NodeName:
        """Returns the name of a node, for a text or a command."""
        return name_of(self.number, node)

    def names(self, nodes: Iterable[NodeId]) -> str:
        """Formats nodes in ascending order of their ids for a text."""
        return names_of(self.number, nodes)

    def start_again(self, node: NodeId) -> str:
        """Returns the command that starts a stopped node."""
        return start_again(self.name(node))

    def answers(self, node: NodeId) -> bool:
        """Returns True if the node is the leader or the leader receives messages from it."""
        return node == self.leader or node in self.live

    def unfit_to_lead(self, node: NodeId) -> str:
        """Returns the reason why this voter, not the leader, could not lead at once; "" if it could."""
        peer = self.peers.get(node)
        if peer is None or node not in self.live:
            return "it does not answer"
        if not peer.fit:
            return "it is drained, or its log or rows are not whole (raftmq repair --plan)"
        if peer.state != "REPLICATE" or peer.lag > TRANSFER_LAG_MAX:
            return f"it is {peer.lag} entries behind, and at most {TRANSFER_LAG_MAX} are waited for"
        return ""


def start_again(node: NodeName) -> str:
    """Returns the command that starts a stopped node. Only in a cluster of `raftmq up` can the command itself start the
    process."""
    elsewhere = "raftmq serve --config FILE on its machine, or start its service, container or pod"
    return (
        f"raftmq restart {node}    (if its disk is lost: raftmq node replace {node}; a node that raftmq up did not "
        f"make: {elsewhere})"
    )


def refusal(what: str, why: str, fix: str) -> LocalError:
    """Makes the error for a refused change; nothing was proposed."""
    return LocalError(what, why, fix, ExitCode.REFUSED)


IN_PROGRESS = "another membership change is in progress"
"""The beginning of the refusal while another change is in progress. The command line waits and tries again."""


def settled(group: Group) -> None:
    """Raises LocalError while a change is in progress: with two changes at once, two majorities might have no node in
    common."""
    index = group.membership.index
    if index > group.committed_index:
        raise refusal(
            f"{IN_PROGRESS}: {group.membership.detail or group.membership.reason}",
            f"its entry {index} is not committed yet, and the members change one at a time",
            "raftmq node list    (until it shows that the change is committed; then repeat the command)",
        )


def known(group: Group, node: NodeId) -> None:
    """Raises LocalError if the node is no member."""
    name = group.name(node)
    members = group.membership.node_uuids
    if node in members:
        return
    left = node in [voter.id for voter in group.membership.removed]
    raise refusal(
        f"there is no node {name}" + (" any more" if left else ""),
        f"the members are {group.names(members)}" + (f"; node {name} was removed" if left else ""),
        f"use one of {group.names(members)}; raftmq node list shows them",
    )


def add(group: Group, node: NodeId, uuid: UUID, addresses: MemberAddresses) -> bool:
    """Returns True if the node may be added, or moved to these addresses; False if it is already a member with this
    uuid and these addresses. Raises LocalError if it may not."""
    name = group.name(node)
    membership = group.membership
    members = membership.node_uuids
    if members.get(node) == uuid and group.addresses.get(node) == addresses:
        return False
    fresh = f"raftmq node add    (the next free id is {group.next_id})"
    if node in members and members[node] != uuid:
        raise refusal(
            f"node {name} is a member already",
            f"it has the uuid {members[node]}, and the new directory {uuid}: an id names one disk for ever",
            f"{fresh}; to put the new node in its place: raftmq node replace {name}",
        )
    gone = dict(membership.removed).get(node)
    if gone not in (None, uuid):
        raise refusal(f"id {name} was another node's", f"it had the uuid {gone}; ids are not used twice", fresh)
    for other, known_uuid in members.items():
        if known_uuid == uuid and other != node:
            raise refusal(
                f"that data directory is node {group.name(other)}'s",
                f"the uuid {uuid} belongs to node {group.name(other)}; two nodes with one uuid would vote twice",
                "raftmq node add    (with a data directory that is empty)",
            )
    for other, there in group.addresses.items():
        # A member whose disk was lost may be replaced on the same machine. The leader gets no frames from it, and the
        # new member has its address.
        is_heard = other in group.live or other == group.leader
        if other != node and is_heard and (there.host, there.port) == (addresses.host, addresses.port):
            raise refusal(
                f"node {group.name(other)} listens at {addresses.host}:{addresses.port} already",
                "each node has a peer port of its own",
                "give the new node another [peer] port, and host and port in its own [[peers]] table",
            )
    settled(group)
    return True


def promote(group: Group, node: NodeId, caught_up: bool) -> None:
    """Raises LocalError unless the node is a learner that answers, is fit and has caught up. Raises LocalError too
    while another change is in progress."""
    name = group.name(node)
    known(group, node)
    if node in group.voters:
        raise refusal(f"node {name} votes already", f"the voters are {group.names(group.voters)}", "raftmq node list")
    settled(group)
    peer = group.peers.get(node)
    if peer is None or node not in group.live:
        raise refusal(
            f"node {name} does not answer",
            "a voter that is not there makes majorities harder to reach",
            f"start it (raftmq serve --config FILE, or raftmq restart {name}), then raftmq node promote {name}",
        )
    if not peer.fit:
        raise refusal(
            f"node {name} is not fit to vote",
            "its log or its rows are not whole, or it is drained",
            f"raftmq repair --node {name}    (or raftmq node drain {name} --undo)",
        )
    if not caught_up:
        raise refusal(
            f"node {name} has not caught up",
            f"it is {peer.lag} entries behind; the leader promotes it when it has",
            f"raftmq node list    (until its lag is small; then raftmq node promote {name})",
        )


def remove(group: Group, node: NodeId, *, below_three: bool = True) -> None:
    """Raises LocalError if the node is no member, if another change is in progress, or if the remaining voters would
    have no majority. Raises Unconfirmed if they would not survive a failure, unless `below_three` confirms that."""
    name = group.name(node)
    known(group, node)
    if node not in group.voters:
        settled(group)
        return
    rest = [voter for voter in group.voters if voter != node]
    if not rest:
        raise refusal(
            f"node {name} is the only voter",
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
        f"without node {name} there would be no majority",
        f"of the voters {group.names(rest)} that are left only {group.names(alive) or 'none'} answers",
        f"{group.start_again(dead[0])}, then repeat the command",
    )


def _unconfirmed(group: Group, node: NodeId, rest: list[NodeId]) -> Unconfirmed:
    name = group.name(node)
    before, after = (quorum_of(voters, lambda voter: group.answers(NodeId(voter))) for voters in (group.voters, rest))
    return Unconfirmed(
        f"without node {name} no failure would be survived",
        f"now: {told(before, group.number)}. Afterwards: {told(after, group.number)}. Nothing was changed",
        f"raftmq node remove {name} --yes    (if that is intended; or raftmq node add first)",
        ExitCode.REFUSED,
    )


def transfer(group: Group, node: NodeId) -> None:
    """Raises LocalError if the node could not lead at once."""
    name = group.name(node)
    known(group, node)
    if node == group.leader:
        return
    if node not in group.voters:
        raise refusal(
            f"node {name} is a learner",
            "only a voter can lead",
            f"raftmq node promote {name}    (when it has caught up; then repeat the command)",
        )
    why = group.unfit_to_lead(node)
    if not why:
        return
    rest = [voter for voter in group.voters if voter not in (node, group.leader)]
    others = [voter for voter in rest if not group.unfit_to_lead(voter)]
    raise refusal(
        f"node {name} cannot lead now",
        why,
        f"raftmq node transfer {group.name(others[0])}"
        if others
        else f"raftmq node list    (until node {name} is well again)",
    )


def successor(group: Group, slower: Slower = none_slower) -> NodeId:
    """Returns the voter that should lead if the present leader must not. A voter whose disk is `slower` is chosen only
    if no other voter can take over at once. Raises LocalError if no voter can lead."""
    to = best(group.peers.values(), group.voters, lambda peer: not group.unfit_to_lead(peer.node_id), slower)
    if to != NOBODY:
        return to
    others = [voter for voter in group.voters if voter != group.leader]
    reasons = "; ".join(f"node {group.name(voter)}: {group.unfit_to_lead(voter)}" for voter in others)
    raise refusal(
        f"no other node than {group.name(group.leader)} can lead now",
        reasons or "it is the only voter",
        f"{group.start_again(others[0])}, then repeat the command" if others else "raftmq node add",
    )


# The following functions decide if a node may be stopped. The leader, which knows what every node has, is asked before
# a drain, a restart or a removal.


class CanStopView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/members/{id}/can-stop`: says if the cluster still takes writes while that node is
    stopped."""

    node: int
    """The node that answers: the leader."""
    id: int
    allowed: bool
    reasons: list[str]
    """The reasons why the node must not be stopped; [] if it may be."""
    passes: bool
    """True if it helps to wait, because another node is catching up."""
    do_now: str
    """The command to type if the node must not be stopped; "" if it may be."""
    leads: bool
    """True if the node leads. It should be drained before it is stopped, so that no client waits for an election."""
    role: Literal["voter", "learner"]
    before: QuorumView
    after: QuorumView
    """The quorum while the node is stopped."""
    pending_upload_bytes: int = 0
    """Number of bytes of the sealed log that are not in the tier yet. The node may be stopped all the same, because the
    next leader continues the upload."""


def can_stop(group: Group, node: NodeId, maintained: Collection[int] = ()) -> CanStopView:
    """Returns the answer to `GET /v1/members/{id}/can-stop` for one node. `maintained` are the nodes in maintenance.
    They count as stopped, because they may be stopped at any moment. Raises LocalError if the node is no member."""
    known(group, node)
    group = group._replace(live=group.live - {NodeId(each) for each in maintained if each != node})
    is_voter = node in group.voters
    reasons, passes, do_now = _reasons(group, node, maintained) if is_voter and group.answers(node) else ([], False, "")
    return CanStopView(
        node=group.leader,
        id=node,
        allowed=not reasons,
        reasons=reasons,
        passes=passes,
        do_now=do_now,
        leads=node == group.leader,
        role="voter" if is_voter else "learner",
        before=quorum_of(group.voters, lambda voter: group.answers(NodeId(voter)), group.number),
        after=quorum_of(group.voters, lambda voter: voter != node and group.answers(NodeId(voter)), group.number),
    )


def _reasons(group: Group, node: NodeId, maintained: Collection[int]) -> tuple[list[str], bool, str]:
    """Returns (reasons why a running voter must not be stopped, True if it helps to wait, the command to type)."""
    name = group.name(node)
    need = majority(len(group.voters))
    rest = [voter for voter in group.voters if voter != node]
    if not rest:
        return [f"node {name} is the only voter: without it nothing is served"], False, "raftmq node add"
    here = [voter for voter in rest if group.answers(voter)]
    if len(here) < need:
        away = [voter for voter in rest if voter not in here]
        kept = [voter for voter in away if voter in maintained]
        if kept:
            why = f"node {group.names(kept)} is in maintenance"
            do_now = f"raftmq node maintenance off {group.name(kept[0])}"
        else:
            why = f"node {group.names(away)} is away already"
            do_now = group.start_again(away[0]) if away else "raftmq node add"
        return [f"without node {name} there is no majority: {why}"], False, do_now
    complete = [voter for voter in here if _is_complete(group, voter)]
    if len(complete) >= need and (node != group.leader or any(not group.unfit_to_lead(v) for v in complete)):
        return [], False, ""
    behind = [voter for voter in here if voter not in complete] or complete
    others = [voter for voter in behind if voter != group.leader]
    why = "; ".join(f"node {group.name(voter)}: {group.unfit_to_lead(voter)}" for voter in others)
    text = f"node {name} has one of the few complete copies; {why or 'no other node could lead'}"
    return [text], True, "raftmq node list"


def _is_complete(group: Group, node: NodeId) -> bool:
    """Returns True if the node has all entries of the leader, or will have them in a moment."""
    if node == group.leader:
        return True
    peer = group.peers.get(node)
    return peer is not None and peer.state == "REPLICATE" and peer.lag <= TRANSFER_LAG_MAX


SAFE_VOTERS = 3
"""The least number of voters with which a failure is survived."""


class QuorumView(msgspec.Struct, frozen=True, kw_only=True):
    """The voters in force, as the answering node sees them."""

    voters: list[int]
    majority: int
    away: list[int]
    """Ids of the voters to which this node has no connection, or from which it receives nothing."""
    survives: int
    """Number of voters that may still fail while the cluster takes writes; negative if too many have failed already."""
    finding: str = ""
    """A warning for the operator; "" if a failure of one more voter would be survived."""


def quorum_of(voters: Iterable[int], is_here: Callable[[int], bool], group: int = FIRST_GROUP) -> QuorumView:
    """Returns the view of a quorum. `is_here(voter)` returns True if the voter takes part now. `group` is the number of
    their group of brokers."""
    ids = sorted(voters)
    away = [voter for voter in ids if not is_here(voter)]
    need = majority(len(ids))
    survives = len(ids) - len(away) - need
    finding = _finding(ids, away, need, survives, group)
    return QuorumView(voters=ids, majority=need, away=away, survives=survives, finding=finding)


def _finding(ids: list[int], away: list[int], need: int, survives: int, group: int) -> str:
    if survives > 0 or not ids:
        return ""
    told, gone = names_of(group, ids), names_of(group, away) or "none"
    gone = (
        f"node {gone} of the voters {told} is away" if len(away) == 1 else f"nodes {gone} of the voters {told} are away"
    )
    if survives < 0:
        return f"no majority: {gone}, and writes need {need}"
    if not away:
        voters = f"node {told} is the only voter" if len(ids) == 1 else f"both voters, {told}, are needed"
        return f"no failure is survived: {voters}; with three voters one may fail: raftmq node add"
    return f"the next failure stops writes: {gone}"


def before_and_after(view: Mapping[str, Any], node: int) -> tuple[QuorumView, QuorumView]:
    """Returns (quorum now, quorum after the removal of `node`). `view` is the leader's answer to `GET /v1/members`."""
    members = {member["id"]: member for member in view["members"] if member["role"] == "voter"}

    def is_here(voter: int) -> bool:
        return voter == view["leader"] or members[voter]["live"] is not False

    return quorum_of(members, is_here), quorum_of(members.keys() - {node}, is_here)


def told(quorum: QuorumView, group: int = FIRST_GROUP) -> str:
    """Returns one line about a quorum: its voters, its majority, and how many failures it survives."""
    count = len(quorum.voters)
    away = f" ({names_of(group, quorum.away)} away)" if quorum.away else ""
    survived = {0: "no failure is survived", 1: "one failure is survived"}.get(
        quorum.survives, f"{quorum.survives} failures are survived" if quorum.survives > 0 else "no majority: no writes"
    )
    voters = names_of(group, quorum.voters) or "none"
    return f"voters {voters}{away}; {quorum.majority} of {count} are a majority; {survived}"
