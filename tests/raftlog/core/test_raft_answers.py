"""The answers to a campaign that count."""

from __future__ import annotations

from raftlog.core.raw_node import RawNode
from raftlog.messages import RequestVoteReply
from raftlog.types import NOBODY, HardState, NodeId, Role
from tests.support.raft_group import Disk, chain, raw_of

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def pre_candidate() -> RawNode:
    """Node 3 of five, in term 2, asks whether it would be elected in term 3."""
    disk = Disk(chain([1]), HardState(2, NOBODY, 0))
    raw = raw_of(disk, voters=(1, 2, 3, 4, 5))
    while raw.role is not Role.PRE_CANDIDATE:
        raw.tick()
        raw.ready()
    return raw


def test_a_pre_vote_for_another_term_does_not_count() -> None:
    raw = pre_candidate()
    for voter in (ONE, TWO):
        raw.step(RequestVoteReply(voter, THREE, 2, True, True, 0))
    assert raw.role is Role.PRE_CANDIDATE
    assert not {ONE, TWO} & raw.raft.votes.keys()
    for voter in (ONE, TWO):
        raw.step(RequestVoteReply(voter, THREE, 3, True, True, 0))
    assert (raw.role, raw.term) == (Role.CANDIDATE, 3)


def test_the_first_answer_of_a_voter_stands() -> None:
    raw = pre_candidate()
    for voter in (ONE, TWO):
        raw.step(RequestVoteReply(voter, THREE, 3, True, True, 0))
    raw.step(RequestVoteReply(ONE, THREE, 3, True, False, 0))
    raw.step(RequestVoteReply(TWO, THREE, 3, False, False, 0))
    raw.step(RequestVoteReply(ONE, THREE, 3, False, False, 0))
    raw.step(RequestVoteReply(TWO, THREE, 3, True, False, 0))
    assert (raw.raft.votes[ONE], raw.raft.votes[TWO]) == (True, False)
