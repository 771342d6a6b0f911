"""The lies of a peer: each is refused before it changes anything, and the node goes on."""

from __future__ import annotations

import random

import pytest

from raftlog.core.message_plausibility import TERM_STEP_MAX
from raftlog.core.raw_node import RawNode
from raftlog.core.state.config import RaftConfig
from raftlog.errors import ImplausibleMessageError
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
from raftlog.types import NOBODY, EntryId, HardState, NodeId, Role
from tests.support.raft_group import Disk, chain, members_of
from tests.support.rows import each_row

ONE, TWO, THREE, GUEST = NodeId(1), NodeId(2), NodeId(3), NodeId(9)
HERE = chain([1, 1, 2])
"""The node's log; committed up to index 2."""
OTHER = chain([1, 1, 3, 3])
FORKED = chain([1, 3, 3])
FAR = 2 + TERM_STEP_MAX


def follower() -> RawNode:
    raw = RawNode(
        RaftConfig(ONE, 1),
        hard_state=HardState(2, NOBODY, 2),
        log=Disk(HERE, HardState(2, NOBODY, 2)),
        members=[members_of((1, 2, 3))],
        applied_index=0,
        rng=random.Random(1),
    )
    raw.ready()
    return raw


def leader() -> RawNode:
    raw = RawNode(
        RaftConfig(ONE, 1, pre_vote=False),
        hard_state=HardState(2, NOBODY, 2),
        log=Disk(HERE, HardState(2, NOBODY, 2)),
        members=[members_of((1, 2, 3))],
        applied_index=0,
        rng=random.Random(1),
    )
    raw.campaign()
    raw.step(RequestVoteReply(ONE, ONE, 3, True, False, 0))
    raw.step(RequestVoteReply(TWO, ONE, 3, True, False, 0))
    assert raw.role is Role.LEADER
    raw.ready()
    return raw


def state(raw: RawNode) -> tuple[object, ...]:
    terms = [raw.raft.log.terms.at(index) for index in range(raw.tail.index + 1)]
    return raw.raft.hard_state, raw.tail, raw.commit_index, raw.role, terms


LIES: dict[str, Message] = {
    "terms used up by a vote": RequestVote(TWO, ONE, FAR + 1, EntryId(2, 3), False, True),
    "terms used up by a pre-vote": RequestVote(TWO, ONE, FAR + 1, EntryId(2, 3), True, False),
    "terms used up by a refusal": RequestVoteReply(TWO, ONE, FAR + 1, False, False, 0),
    "terms used up by a heartbeat": Heartbeat(TWO, ONE, FAR + 1, 0, 0),
    "terms used up by an answer": HeartbeatReply(TWO, ONE, FAR + 1, 0, 0),
    "terms used up by a handover": TimeoutNow(TWO, ONE, FAR + 1),
    "a campaign of a log of its own term": RequestVote(TWO, ONE, 3, EntryId(3, 9), False, False),
    "a commit beyond the log": Heartbeat(TWO, ONE, 2, 1 << 40, 0),
    "a committed entry of another term": AppendEntries(TWO, ONE, 3, EntryId(2, 1), 2, ()),
    "entries that do not follow": AppendEntries(TWO, ONE, 3, EntryId(1, 1), 2, tuple(OTHER[3:])),
    "entries with a gap": AppendEntries(TWO, ONE, 3, EntryId(1, 1), 2, (OTHER[2], OTHER[4])),
    "entries of a later term": AppendEntries(TWO, ONE, 2, EntryId(1, 2), 2, tuple(OTHER[3:])),
    "entries of an earlier term": AppendEntries(TWO, ONE, 3, EntryId(3, 2), 2, (HERE[3],)),
    "a probe after a later term": AppendEntries(TWO, ONE, 3, EntryId(4, 9), 2, ()),
    "entries of another chain": AppendEntries(TWO, ONE, 3, EntryId(1, 2), 2, (FORKED[3],)),
    "entries that turn to another chain": AppendEntries(TWO, ONE, 3, EntryId(1, 2), 2, (OTHER[3], chain([3] * 4)[4])),
    "a snapshot from nowhere": InstallSnapshot(TWO, ONE, 3, 9, EntryId(2, 3)),
    "a snapshot of a later term": InstallSnapshot(TWO, ONE, 3, 9, EntryId(4, 8)),
    "a snapshot of the beginning": InstallSnapshot(TWO, ONE, 3, 0, EntryId(0, -1)),
    "a snapshot of another history": InstallSnapshot(TWO, ONE, 3, 3, EntryId(2, 2)),
    "a hint of a later term": AppendEntriesReply(TWO, ONE, 2, True, 3, EntryId(7, 3)),
}


@each_row("lie", LIES)
def test_a_lie_is_refused_and_changes_nothing_but_term_and_leader(lie: str) -> None:
    raw = follower()
    hard, *before = state(raw)
    with pytest.raises(ImplausibleMessageError) as refused:
        raw.step(LIES[lie])
    assert refused.value.peer == TWO
    now_hard, *now = state(raw)
    assert now == before
    assert now_hard in (hard, HardState(3, NOBODY, 2)), "the term of a message may count, and nothing else of it"
    raw.step(Heartbeat(TWO, ONE, 3, 2, 0))
    assert raw.leader_id == TWO


@each_row(
    "message",
    [
        Heartbeat(TWO, ONE, 3, 2, 0),
        AppendEntries(TWO, ONE, 3, EntryId(1, 2), 2, ()),
        InstallSnapshot(TWO, ONE, 3, 9, EntryId(2, 8)),
        AppendEntriesReply(TWO, ONE, 3, False, 99, EntryId(0, -1)),
        HeartbeatReply(TWO, ONE, 3, 99, 0),
    ],
)
def test_nobody_answers_a_leader_for_what_it_never_said_and_nobody_leads_beside_it(message: Message) -> None:
    raw = leader()
    before = state(raw)
    with pytest.raises(ImplausibleMessageError):
        raw.step(message)
    assert state(raw) == before


def test_a_node_that_was_away_for_a_million_terms_is_let_in_again() -> None:
    raw = follower()
    raw.step(Heartbeat(TWO, ONE, 1_000_002, 2, 0))
    assert (raw.term, raw.leader_id) == (1_000_002, TWO)


@pytest.mark.parametrize(
    ("sender", "term", "believed"),
    [(THREE, 3, True), (THREE, 4, False), (GUEST, 3, False)],
    ids=["a voter, the next term", "a later term", "a guest"],
)
def test_that_the_leader_asked_for_a_campaign_is_not_believed_of_everybody(
    sender: NodeId, term: int, believed: bool
) -> None:
    raw = follower()
    raw.step(Heartbeat(TWO, ONE, 2, 2, 0))
    raw.step(RequestVote(sender, ONE, term, EntryId(2, 3), False, True))
    assert raw.term == (term if believed else 2)
    assert raw.raft.vote == (sender if believed else NOBODY)


@pytest.mark.parametrize(
    "message",
    [
        HeartbeatReply(GUEST, ONE, 9, 0, 0),
        AppendEntriesReply(GUEST, ONE, 9, True, 3, EntryId(2, 3)),
        RequestVoteReply(GUEST, ONE, 9, False, False, 0),
    ],
)
def test_answers_of_who_was_never_asked_depose_nobody(message: Message) -> None:
    raw = leader()
    raw.step(message)
    assert (raw.role, raw.term) == (Role.LEADER, 3)
