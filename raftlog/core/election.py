"""Handles elections: pre-vote, RequestVote and their replies (Raft paper 5.2, 5.4.1; thesis 9.6 for pre-vote).

Terms in pre-votes: the request and a *granted* reply carry the term in which the sender would campaign, so that an
answer to an older attempt is recognised; a refusal carries the voter's own term. Requests and grants change no node's
term.

When two followers detect at the same moment that the leader has failed, both pre-votes succeed and the votes split.
Therefore a pre-candidate that receives a request of a better one (longer log, then larger id) withdraws. Withdrawing is
always safe, and lasts until the next election timeout.
"""

from __future__ import annotations

from raftlog.core import eligibility, replication, role_change_reasons
from raftlog.core.raft import Raft
from raftlog.core.state.log_time import voter_offset_ms
from raftlog.frame import make_entry
from raftlog.messages import RequestVote, RequestVoteReply
from raftlog.types import NOBODY, EntryType, NodeId, Role

_STAGGER_TICKS = 3

# -- timers


def tick(raft: Raft) -> None:
    """Advances the timers of a member that does not lead by one tick. Starts an election after the election timeout;
    during a campaign, asks for missing votes again in each heartbeat interval."""
    raft.election_elapsed += 1
    if raft.election_elapsed >= raft.election_timeout:
        role_change_reasons.timed_out(raft)
        start(raft)
        return
    if raft.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
        raft.heartbeat_elapsed += 1
        if raft.heartbeat_elapsed >= raft.config.heartbeat_ticks:
            raft.heartbeat_elapsed = 0
            _ask_votes(raft)


def on_peer_closed(raft: Raft, peer: NodeId) -> None:
    """Handles that the connection from `peer` closed. If `peer` led, the member does not wait for the election timeout,
    which is for partitions.

    The pre-vote starts after a random delay of a few ticks. If the leader is alive, its next message stops the
    pre-vote, and followers that still hear the leader do not answer it.

    A leader counts the peer as dead until it hears from it again: removing another voter at that moment could leave no
    majority (membership_change.py). Check-quorum continues to use the time of the last message.
    """
    if raft.role is Role.LEADER and (progress := raft.members.peers.get(peer)) is not None:
        progress.gone = True
    if raft.role is not Role.FOLLOWER or peer == NOBODY or raft.leader_id != peer:
        return
    raft.leader_id = NOBODY
    role_change_reasons.leader_closed(raft, peer)
    stagger = raft.rng.randrange(_STAGGER_TICKS)
    raft.election_elapsed = max(raft.election_elapsed, raft.election_timeout - stagger)
    if stagger == 0:
        start(raft)


def has_quorum_contact(raft: Raft) -> bool:
    """Returns True if this leader has received messages from a majority of voters since the last call (check-quorum,
    thesis 6.2)."""
    return raft.members.active_voters() >= raft.members.quorum


# -- campaigning


def start(raft: Raft) -> None:
    """Starts an election after the election timeout: with a pre-vote, or with a campaign at once if pre-votes are off.
    A member that must not campaign stands aside instead (`eligibility.stand_aside`)."""
    if not eligibility.may_campaign(raft):
        eligibility.stand_aside(raft)
    elif raft.config.pre_vote:
        _pre_campaign(raft)
    else:
        campaign(raft, transfer=False)


def _pre_campaign(raft: Raft) -> None:
    raft.become_pre_candidate()
    if raft.members.is_own_voter:
        raft.votes[raft.id] = True
    if not _count(raft):
        _ask_votes(raft)


def campaign(raft: Raft, *, transfer: bool) -> None:
    """Starts a new term as a candidate. The request and the node's own vote are sent only when term and vote are on
    disk."""
    raft.become_candidate()
    raft.transfer = transfer
    raft.asked_ms = raft.monotonic_ms
    raft.send_after_persist(RequestVoteReply(raft.id, raft.id, raft.term, True, False, raft.wall_ms))
    _ask_votes(raft)


def _ask_votes(raft: Raft) -> None:
    """Sends RequestVote to every voter that has not answered; repeated each heartbeat interval (5.1: RPCs are
    retried)."""
    pre_vote = raft.role is Role.PRE_CANDIDATE
    term = raft.term + 1 if pre_vote else raft.term
    send = raft.send if pre_vote else raft.send_after_persist
    for node in raft.members.other_voters():
        if node not in raft.votes:
            send(RequestVote(raft.id, node, term, raft.log.tail.id, pre_vote, raft.transfer))


def on_request_vote_reply(raft: Raft, message: RequestVoteReply) -> None:
    """Counts a voter's answer to the current campaign, and notes the clock of a voter that granted. Only a voter's
    first answer counts."""
    if message.pre_vote:
        expected = Role.PRE_CANDIDATE
        current = message.term == raft.term + 1 if message.granted else True
    else:
        expected, current = Role.CANDIDATE, True
    if raft.role is not expected or not current or message.from_id in raft.votes:
        return
    if not raft.members.is_voter(message.from_id):
        return
    raft.votes[message.from_id] = message.granted
    if message.granted:
        own_ms = raft.wall_ms - raft.monotonic_ms
        raft.vote_clocks[message.from_id] = voter_offset_ms(message.clock_ms, raft.asked_ms, raft.monotonic_ms, own_ms)
    _count(raft)


def _count(raft: Raft) -> bool:
    """Counts the voters' answers so far. If they decide the campaign, changes the member's role and returns True;
    otherwise returns False."""
    granted = sum(raft.votes.values())
    quorum = raft.members.quorum
    if granted >= quorum:
        if raft.role is Role.PRE_CANDIDATE:
            campaign(raft, transfer=False)
        else:
            _win(raft)
        return True
    if len(raft.votes) - granted > len(raft.members.voters) - quorum:
        role_change_reasons.refused(raft)
        # A majority can no longer be reached. The term, and the node's vote for itself in it, remain.
        raft.become_follower(raft.term, NOBODY)
        return True
    return False


def _win(raft: Raft) -> None:
    clocks = dict(raft.vote_clocks)
    clocks[raft.id] = raft.wall_ms - raft.monotonic_ms
    raft.become_leader()
    raft.log_time.start(clocks.values(), raft.log.tail.timestamp_ms, raft.monotonic_ms)
    # "a leader ... commits a blank no-op entry into the log at the start of its term" (Raft paper 8)
    raft.log.append(
        make_entry(
            raft.log.tail,
            term=raft.term,
            entry_type=EntryType.NOOP,
            payload=b"",
            timestamp_ms=raft.log_time.now(raft.monotonic_ms),
            group_id=raft.config.group_id,
            segment_size=raft.config.segment_size,
        )
    )
    raft.term_start_index = raft.log.tail.index
    replication.broadcast(raft)


# -- voting


def on_request_vote(raft: Raft, message: RequestVote) -> None:
    """Grants or refuses a vote. `step.py` has already applied the rules about terms and about a live leader."""
    free = raft.vote == message.from_id or (raft.vote == NOBODY and raft.leader_id == NOBODY)
    # "If votedFor is null or candidateId, and candidate's log is at least as up-to-date, grant vote" (figure 2);
    # a pre-vote for a future term is not binding.
    may_vote = free or (message.pre_vote and message.term > raft.term)
    granted = may_vote and raft.log.is_up_to_date(message.last) and eligibility.may_vote(raft)
    if message.pre_vote:
        term = message.term if granted else raft.term
        raft.send(RequestVoteReply(raft.id, message.from_id, term, granted, True, raft.wall_ms))
        if granted:
            _withdraw_for(raft, message)
        return
    reply = RequestVoteReply(raft.id, message.from_id, raft.term, granted, False, raft.wall_ms)
    if not granted:
        raft.send(reply)
        return
    raft.vote = message.from_id
    raft.election_elapsed = 0
    raft.send_after_persist(reply)


def _withdraw_for(raft: Raft, message: RequestVote) -> None:
    if raft.role is Role.PRE_CANDIDATE and (message.last, message.from_id) > (raft.log.tail.id, raft.id):
        role_change_reasons.withdrew(raft, message.from_id)
        raft.become_follower(raft.term, NOBODY)
