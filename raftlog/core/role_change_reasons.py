"""The reasons for changes of role, in a few words for the log. No decision depends on them.

Each function sets `Raft.why` just before the transition, from the member's own knowledge: equal inputs give equal
words.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.core.raft import Raft
from raftlog.types import NOBODY, NodeId, Role

_SINCE = ", and no leader has been elected since"


def timed_out(raft: Raft) -> None:
    """Records as the reason that the election timeout passed."""
    if raft.role is not Role.FOLLOWER:
        raft.why = f"no majority answered within {raft.election_elapsed} ticks"
    elif raft.leader_id != NOBODY:
        raft.why = f"the leader, node {raft.leader_id}, was silent for {raft.election_elapsed} ticks"
    elif raft.why:
        raft.why = raft.why.removesuffix(_SINCE) + _SINCE
    else:
        raft.why = "no leader was heard since it started"


def leader_closed(raft: Raft, leader: NodeId) -> None:
    """Records as the reason that the leader's connection closed."""
    raft.why = f"the connection of the leader, node {leader}, closed"


def refused(raft: Raft) -> None:
    """Records as the reason that so many voters refused that the campaign cannot be won."""
    raft.why = f"a majority refused it ({_names(node for node, granted in raft.votes.items() if not granted)})"


def withdrew(raft: Raft, better: NodeId) -> None:
    """Records as the reason that the member withdrew for another pre-candidate, which has the longer log, or the larger
    id."""
    raft.why = f"it gave way to node {better}, which is a candidate too"


def handed_over(raft: Raft, leader: NodeId) -> None:
    """Records as the reason that the leader transferred leadership to the member (TimeoutNow)."""
    raft.why = f"node {leader} transferred leadership"


def higher_term(raft: Raft, node: NodeId, term: int) -> None:
    """Records as the reason that another node is in a later term."""
    raft.why = f"node {node} is in term {term}"


def quorum_unheard(raft: Raft) -> None:
    """Records as the reason that the leader received nothing from a majority (check-quorum)."""
    silent = [node for node, peer in raft.members.peers.items() if not peer.was_active and raft.members.is_voter(node)]
    ticks = raft.config.election_ticks
    raft.why = f"it did not hear from a majority of the voters within {ticks} ticks ({_names(silent)})"


def stood_aside(raft: Raft) -> None:
    """Records as the reason that the member must not campaign, and why."""
    if raft.holds:
        raft.why = f"it must not lead: {', '.join(sorted(raft.holds))}"
    elif raft.vote_withheld_since is not None:
        raft.why = "it must not lead: it lost the end of its log"
    else:
        raft.why = "it must not lead: it is not a voter"


def removed(raft: Raft) -> None:
    """Records as the reason that the member's own removal is committed."""
    raft.why = "it was removed from the cluster"


def resigned(raft: Raft) -> None:
    """Records as the reason that the node made its core resign."""
    raft.why = "it resigned"


def _names(nodes: Iterable[NodeId]) -> str:
    told = sorted(nodes)
    return f"node{'s' if len(told) > 1 else ''} {', '.join(map(str, told))}" if told else "none"
