"""Handles one message: first the rules about terms, then the handler of its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftlog.core import (
    append_entries,
    election,
    heartbeat,
    install_snapshot,
    message_plausibility,
    role_change_reasons,
    transfer,
)
from raftlog.core.raft import Raft
from raftlog.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raftlog.types import NOBODY, Role

_HANDLERS: dict[type, Callable[[Raft, Any], None]] = {
    RequestVote: election.on_request_vote,
    RequestVoteReply: election.on_request_vote_reply,
    AppendEntries: append_entries.on_append_entries,
    AppendEntriesReply: append_entries.on_append_entries_reply,
    Heartbeat: heartbeat.on_heartbeat,
    HeartbeatReply: heartbeat.on_heartbeat_reply,
    TimeoutNow: transfer.on_timeout_now,
    InstallSnapshot: install_snapshot.on_install_snapshot,
}
_REPLIES = (RequestVoteReply, AppendEntriesReply, HeartbeatReply)


def step(raft: Raft, message: Message) -> None:
    """Handles one message. Messages may be lost, repeated, reordered and late; every rule allows for that."""
    if message.term > raft.term:
        if not _enter_higher_term(raft, message):
            return
    elif message.term < raft.term:
        _answer_lower_term(raft, message)
        return
    _HANDLERS[type(message)](raft, message)


def _enter_higher_term(raft: Raft, message: Message) -> bool:
    """Adopts the higher term of a message. Returns False if the message must be dropped instead.

    "If RPC request or response contains term T > currentTerm: set currentTerm = T, convert to follower" (figure 2).

    Exceptions: with check-quorum, a member that hears a leader ignores campaigns other than that of a transfer's
    target, so that a returning or partitioned member cannot depose the leader (thesis 4.2.3). Pre-votes and their
    grants carry a term that no member is in yet. Replies of nodes that are not members are dropped.

    Raises ImplausibleMessageError if the term is too far ahead.
    """
    message_plausibility.check_term(raft, message.term)
    if isinstance(message, RequestVote):
        if raft.config.check_quorum and raft.hears_leader and not _is_handed_over(raft, message):
            return False
        if message.pre_vote:
            return True
    if isinstance(message, RequestVoteReply) and message.pre_vote and message.granted:
        return True
    if isinstance(message, _REPLIES) and message.from_id not in raft.members.current.node_uuids:
        return False  # this member sends requests to members only; replies of other nodes do not count
    leads = isinstance(message, AppendEntries | Heartbeat | TimeoutNow | InstallSnapshot)
    role_change_reasons.higher_term(raft, message.from_id, message.term)
    raft.become_follower(message.term, message.from_id if leads else NOBODY)
    return True


def _is_handed_over(raft: Raft, message: RequestVote) -> bool:
    """Returns True if the live leader may have asked for this campaign: the candidate says so, is a voter, and is in
    the term after the leader's (thesis 3.10).

    Any sender can claim that. A candidate that is not believed gets an answer once the leader is silent.
    """
    return message.transfer and message.term == raft.term + 1 and raft.members.is_voter(message.from_id)


def _answer_lower_term(raft: Raft, message: Message) -> None:
    """Answers a request of an older term with a refusal that carries the current term, so that its sender catches up
    (figure 2).

    Without these answers a member that returns in a higher term would be stuck: it ignores the leader, and pre-vote and
    check-quorum prevent it from deposing the leader.
    """
    to_id, term = message.from_id, raft.term
    if isinstance(message, RequestVote):
        raft.send(RequestVoteReply(raft.id, to_id, term, False, message.pre_vote, raft.wall_ms))
    elif isinstance(message, AppendEntries):
        raft.send(AppendEntriesReply(raft.id, to_id, term, True, message.prev.index, raft.log.tail.id))
    elif isinstance(message, Heartbeat):
        raft.send(HeartbeatReply(raft.id, to_id, term, 0, raft.wall_ms))
    elif isinstance(message, InstallSnapshot):
        raft.send(AppendEntriesReply(raft.id, to_id, term, True, message.last.index, raft.log.tail.id))


def tick(raft: Raft) -> None:
    """Advances time by one tick."""
    if raft.role is Role.LEADER:
        heartbeat.tick_leader(raft)
    else:
        election.tick(raft)
