"""May this node be stopped? The leader, which knows every copy, is asked before a drain, a restart and a removal."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from cluster.members import checks
from cluster.members.checks import TRANSFER_LAG_MAX, Group
from cluster.members.quorum import QuorumView, quorum_of
from raftlog.core.quorum import majority
from raftlog.types import NodeId


class CanStopView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/members/{id}/can-stop`: whether writes go on while that node is stopped."""

    node: int
    """Who answers: the leader."""
    id: int
    allowed: bool
    reasons: list[str]
    """Why not; empty if it is allowed."""
    passes: bool
    """Waiting helps: a copy is catching up."""
    do_now: str
    """What to type if it is not allowed, "" if it is."""
    leads: bool
    """It leads: drain it first, so that no client waits for an election."""
    role: Literal["voter", "learner"]
    before: QuorumView
    after: QuorumView
    """While it is stopped."""
    pending_upload_bytes: int = 0
    """Sealed log that the tier does not hold yet. It stops nobody: whoever leads goes on with it."""


def can_stop(group: Group, node: NodeId, maintained: Collection[int] = ()) -> CanStopView:
    """`maintained`: nodes in maintenance, which may be stopped at any moment and so count as away. Raises LocalError if
    it is no member."""
    checks.known(group, node)
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
        before=quorum_of(group.voters, lambda voter: group.answers(NodeId(voter))),
        after=quorum_of(group.voters, lambda voter: voter != node and group.answers(NodeId(voter))),
    )


def _reasons(group: Group, node: NodeId, maintained: Collection[int]) -> tuple[list[str], bool, str]:
    """(why a voter that is here may not be stopped, whether waiting helps, what to type)."""
    need = majority(len(group.voters))
    rest = [voter for voter in group.voters if voter != node]
    if not rest:
        return [f"node {node} is the only voter: without it nothing is served"], False, "raftmq node add"
    here = [voter for voter in rest if group.answers(voter)]
    if len(here) < need:
        away = [voter for voter in rest if voter not in here]
        kept = [voter for voter in away if voter in maintained]
        if kept:
            why, do_now = f"node {checks.names(kept)} is in maintenance", f"raftmq node maintenance off {kept[0]}"
        else:
            why = f"node {checks.names(away)} is away already"
            do_now = checks.start_again(away[0]) if away else "raftmq node add"
        return [f"without node {node} there is no majority: {why}"], False, do_now
    complete = [voter for voter in here if _is_complete(group, voter)]
    if len(complete) >= need and (node != group.leader or any(not group.unfit_to_lead(v) for v in complete)):
        return [], False, ""
    behind = [voter for voter in here if voter not in complete] or complete
    why = "; ".join(f"node {voter}: {group.unfit_to_lead(voter)}" for voter in behind if voter != group.leader)
    text = f"node {node} has one of the few complete copies; {why or 'no other node could lead'}"
    return [text], True, "raftmq node list"


def _is_complete(group: Group, node: NodeId) -> bool:
    """It has, or will have in a moment, everything that the leader has."""
    if node == group.leader:
        return True
    peer = group.peers.get(node)
    return peer is not None and peer.state == "REPLICATE" and peer.lag <= TRANSFER_LAG_MAX
