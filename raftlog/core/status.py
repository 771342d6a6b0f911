"""A member's state as a value, for operators, metrics and tests."""

from __future__ import annotations

from typing import NamedTuple

from raftlog.core import eligibility
from raftlog.core.raft import Raft
from raftlog.types import NodeId, Role


class PeerStatus(NamedTuple):
    """The status of one follower, as the leader sees it."""

    node_id: NodeId
    match_index: int
    next_index: int
    state: str
    """The name of the leader's way of sending to the follower: PROBE, REPLICATE or SNAPSHOT."""
    recent_active: bool
    """True if the follower was heard since the last check-quorum."""
    lag: int
    """The number of entries of the leader's log that are not known to be on the follower's disk."""
    inflight_messages: int
    inflight_bytes: int
    fit: bool
    """True if the follower reported that it could lead: its log is intact, its state sound, its segments present."""
    caught_up: bool
    """True if the follower is live, all committed entries were sent to it, and its window has room."""
    held: bool = False
    """True if the follower waits for the leader's budget to read old entries from disk (`RawNode.catch_up_budget`)."""


class Status(NamedTuple):
    """The status of a member of the Raft group. `peers` is empty unless the member leads."""

    node_id: NodeId
    group_id: int
    role: Role
    term: int
    vote: NodeId
    leader_id: NodeId
    transferee: NodeId
    """Target of the current leadership transfer, 0 if there is none."""
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    first_index: int
    last_index: int
    persisted_index: int
    commit_index: int
    applied_index: int
    behind: int
    """The number of entries that a leader named as committed and that this member has not applied."""
    may_vote: bool
    may_campaign: bool
    peers: tuple[PeerStatus, ...]


def of(raft: Raft) -> Status:
    """Returns the present status of the member `raft`."""
    log = raft.log
    return Status(
        raft.id,
        raft.config.group_id,
        raft.role,
        raft.term,
        raft.vote,
        raft.leader_id,
        raft.transferee,
        raft.members.voters,
        raft.members.learners,
        log.first_index,
        log.tail.index,
        log.persisted_index,
        log.commit_index,
        log.applied_index,
        max(log.commit_index, raft.heard_commit_index) - log.applied_index,
        eligibility.may_vote(raft),
        eligibility.may_campaign(raft),
        _peers(raft) if raft.role is Role.LEADER else (),
    )


def _peers(raft: Raft) -> tuple[PeerStatus, ...]:
    last = raft.log.tail.index
    return tuple(
        PeerStatus(
            node,
            peer.match_index,
            peer.next_index,
            peer.state.name,
            peer.recent_active,
            last - peer.match_index,
            len(peer.inflights),
            peer.inflights.bytes,
            peer.fit,
            peer.caught_up(raft.log.commit_index),
            peer.held,
        )
        for node, peer in raft.members.peers.items()
    )
