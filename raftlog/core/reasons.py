"""Why a member changes its role, in a few words for whoever reads its log. Nothing depends on them.

Each is noted in `Raft.why` just before the transition, from what the member itself knows: the same inputs give the same
words.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.core.raft import Raft
from raftlog.types import NOBODY, NodeId, Role

_SINCE = ", and nobody has led since"


def timed_out(raft: Raft) -> None:
    """The election timeout passed."""
    if raft.role is not Role.FOLLOWER:
        raft.why = f"no majority answered within {raft.election_elapsed} ticks"
    elif raft.leader_id != NOBODY:
        raft.why = f"node {raft.leader_id}, which leads, was silent for {raft.election_elapsed} ticks"
    elif raft.why:
        raft.why = raft.why.removesuffix(_SINCE) + _SINCE
    else:
        raft.why = "no leader was heard since it started"


def leader_closed(raft: Raft, leader: NodeId) -> None:
    """The leader's connection ended."""
    raft.why = f"the connection of node {leader}, which led, closed"


def refused(raft: Raft) -> None:
    """A campaign cannot be won any more."""
    raft.why = f"a majority refused it ({_names(node for node, granted in raft.votes.items() if not granted)})"


def withdrew(raft: Raft, better: NodeId) -> None:
    """Another pre-candidate has the longer log, or the larger id."""
    raft.why = f"it gave way to node {better}, which campaigns too"


def handed_over(raft: Raft, leader: NodeId) -> None:
    """The leader told it to campaign."""
    raft.why = f"node {leader} handed leadership over"


def higher_term(raft: Raft, node: NodeId, term: int) -> None:
    """Somebody is in a later term."""
    raft.why = f"node {node} is in term {term}"


def quorum_unheard(raft: Raft) -> None:
    """Check-quorum: a leader that a majority does not hear is none."""
    silent = [node for node, peer in raft.members.peers.items() if not peer.was_active and raft.members.is_voter(node)]
    raft.why = f"it did not hear a majority of the voters within {raft.config.election_ticks} ticks ({_names(silent)})"


def stood_aside(raft: Raft) -> None:
    """It is time to campaign, and it may not."""
    if raft.holds:
        raft.why = f"it may not lead: {', '.join(sorted(raft.holds))}"
    elif raft.vote_withheld_since is not None:
        raft.why = "it may not lead: it lost the end of its log"
    else:
        raft.why = "it may not lead: it is no voter"


def removed(raft: Raft) -> None:
    """Its own removal is committed."""
    raft.why = "it was removed from the cluster"


def resigned(raft: Raft) -> None:
    """The node told its core to give leadership up."""
    raft.why = "it gave leadership up"


def _names(nodes: Iterable[NodeId]) -> str:
    told = sorted(nodes)
    return f"node{'s' if len(told) > 1 else ''} {', '.join(map(str, told))}" if told else "nobody"
