"""Transfers leadership by TimeoutNow (thesis 3.10).

The leader stops taking proposals, waits until the target has its whole log on disk, and tells it to campaign at once.
If the target does not take over within an election timeout, the leader continues as before.
"""

from __future__ import annotations

from raftlog.core import election, eligibility, replication, role_change_reasons
from raftlog.core.raft import Raft
from raftlog.errors import NotLeaderError
from raftlog.messages import TimeoutNow
from raftlog.types import NOBODY, NodeId, Role


def start(raft: Raft, target: NodeId) -> None:
    """Begins a transfer. A second call with another target replaces the first; the leader itself as target cancels it.

    Raises NotLeaderError, or ValueError if `target` is not a voter or reported that it is not fit to lead.
    """
    if raft.role is not Role.LEADER:
        raise NotLeaderError(f"node {raft.id} is {raft.role.name} in term {raft.term}; leader: {raft.leader_id}")
    if not raft.members.is_voter(target):
        raise ValueError(
            f"node {target} is no voter of group {raft.config.group_id}: choose from {raft.members.voters}"
        )
    if target != raft.id and not raft.members.peers[target].fit:
        raise ValueError(
            f"node {target} says that it is not fit to lead (its log has gaps or is being repaired, or it is drained): "
            "choose another, or wait until it is"
        )
    if target == raft.transferee:
        return
    raft.transfer_elapsed = 0
    raft.transferee = NOBODY if target == raft.id else target
    if raft.transferee != NOBODY:
        replication.fill_window(raft, target, raft.members.peers[target])
        hand_over_if_caught_up(raft)


def hand_over_if_caught_up(raft: Raft) -> None:
    """Sends TimeoutNow to the target of the transfer, if there is one, once it is fit and its disk has the whole log.
    Repeated messages are harmless, because the target's term has moved on."""
    target = raft.transferee
    if target == NOBODY:
        return
    progress = raft.members.peers[target]
    if progress.fit and progress.match_index == raft.log.tail.index:
        raft.send(TimeoutNow(raft.id, target, raft.term))


def tick(raft: Raft) -> None:
    """Counts one tick; gives up the transfer after an election timeout."""
    if raft.transferee == NOBODY:
        return
    raft.transfer_elapsed += 1
    if raft.transfer_elapsed >= raft.config.election_ticks:
        raft.transferee = NOBODY


def on_timeout_now(raft: Raft, message: TimeoutNow) -> None:
    """Handles TimeoutNow: campaigns at once and without a pre-vote, because the leader itself asked for it. Ignores the
    message unless this member follows the sender and may campaign."""
    if raft.role is Role.FOLLOWER and raft.leader_id == message.from_id and eligibility.may_campaign(raft):
        role_change_reasons.handed_over(raft, message.from_id)
        election.campaign(raft, transfer=True)
