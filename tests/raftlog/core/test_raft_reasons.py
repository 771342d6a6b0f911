"""The reason why a member changed its role: told in a few words, the same for the same inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.core.raw_node import RawNode
from raftlog.messages import Heartbeat, RequestVote, RequestVoteReply, TimeoutNow
from raftlog.types import NOBODY, EntryId, HardState, NodeId, Role
from tests.support.raft_group import Disk, chain, raw_of

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def member() -> RawNode:
    """Node 3 of three, in term 2."""
    disk = Disk(chain([1]), HardState(2, NOBODY, 0))
    return raw_of(disk)


def follower() -> RawNode:
    """Node 1 leads it."""
    raw = member()
    raw.step(Heartbeat(ONE, THREE, 2, 0, 1))
    return raw


def tick_until(raw: RawNode, reached: Callable[[], bool]) -> None:
    for _ in range(100):
        if reached():
            return
        raw.tick()
        raw.ready()
    pytest.fail("it did not come to that")


def campaigns(raw: RawNode) -> bool:
    return raw.role is Role.PRE_CANDIDATE


def leader() -> RawNode:
    raw = follower()
    tick_until(raw, lambda: campaigns(raw))
    raw.step(RequestVoteReply(ONE, THREE, 3, True, True, 0))
    for node in (THREE, ONE):
        raw.step(RequestVoteReply(node, THREE, 3, True, False, 0))
    assert raw.role is Role.LEADER
    return raw


def test_who_leads_is_the_reason_to_follow() -> None:
    assert member().why == ""
    assert follower().why == "node 1 leads"


def test_a_silent_leader() -> None:
    raw = follower()
    ticks = raw.raft.election_timeout
    tick_until(raw, lambda: campaigns(raw))
    assert raw.why == f"the leader, node 1, was silent for {ticks} ticks"
    assert leader().why == raw.why, "it is still the reason when the campaign is won"


def test_a_leader_whose_connection_closed() -> None:
    raw = follower()
    raw.peer_closed(ONE)
    tick_until(raw, lambda: campaigns(raw))
    assert raw.why.startswith("the connection of the leader, node 1, closed")
    raw.step(RequestVoteReply(ONE, THREE, 2, False, True, 0))
    raw.step(RequestVoteReply(TWO, THREE, 2, False, True, 0))
    assert (raw.role, raw.why) == (Role.FOLLOWER, "a majority refused it (nodes 1, 2)")
    for _ in range(3):
        tick_until(raw, lambda: campaigns(raw))
        assert raw.why == "a majority refused it (nodes 1, 2), and no leader has been elected since"
        raw.raft.become_follower(raw.term, NOBODY)


def test_a_start_without_a_leader_and_a_campaign_without_an_answer() -> None:
    raw = member()
    tick_until(raw, lambda: campaigns(raw))
    assert raw.why == "no leader was heard since it started"
    ticks = raw.raft.election_timeout
    tick_until(raw, lambda: raw.why.startswith("no majority"))
    assert raw.why == f"no majority answered within {ticks} ticks"


def test_leadership_that_was_handed_over() -> None:
    raw = follower()
    raw.step(TimeoutNow(ONE, THREE, 2))
    assert (raw.role, raw.why) == (Role.CANDIDATE, "node 1 transferred leadership")


def test_a_higher_term() -> None:
    raw = leader()
    raw.step(RequestVote(TWO, THREE, 9, EntryId(0, 0), False, True))
    raw = member()
    raw.step(RequestVote(TWO, THREE, 9, EntryId(0, 0), False, False))
    assert (raw.term, raw.why) == (9, "node 2 is in term 9")
    raw.step(Heartbeat(ONE, THREE, 10, 0, 1))
    assert raw.why == "node 1 leads"


def test_a_leader_that_hears_no_majority() -> None:
    raw = leader()
    tick_until(raw, lambda: raw.role is Role.FOLLOWER)
    ticks = raw.raft.config.election_ticks
    assert raw.why == f"it did not hear from a majority of the voters within {ticks} ticks (nodes 1, 2)"


def test_a_member_that_may_not_lead_and_one_that_gave_up() -> None:
    raw = follower()
    raw.hold_campaigns("disk", True)
    tick_until(raw, lambda: raw.leader_id == NOBODY)
    assert raw.why == "it must not lead: disk"
    raw = leader()
    raw.resign()
    assert raw.why == "it resigned"


def test_who_gives_way_to_a_better_campaign() -> None:
    raw = follower()
    tick_until(raw, lambda: campaigns(raw))
    raw.step(RequestVote(TWO, THREE, 3, EntryId(2, 9), True, False))
    assert (raw.role, raw.why) == (Role.FOLLOWER, "it gave way to node 2, which is a candidate too")
