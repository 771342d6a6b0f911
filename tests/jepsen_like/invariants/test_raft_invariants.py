"""The judges of the simulators judge: what each invariant forbids is noticed when it happens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.invariants.membership import MemberInvariants, check_own
from raftlog import membership as memberships
from raftlog.core.raw_node import RawNode
from raftlog.core.state.config import RaftConfig
from raftlog.errors import InvariantViolationError
from raftlog.frame import make_entry
from raftlog.messages import RequestVoteReply
from raftlog.types import NOBODY, EntryType, HardState, NodeId, Role
from tests.support.raft_group import Disk, Group, chain, members_of, raw_of

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
COMMITTED = chain([1, 1])


def committed_everywhere() -> Group:
    """Three followers of term 1 that have entries 1 and 2; node 1 knows that they are committed."""
    disks = {node: Disk(list(COMMITTED), HardState(1, NOBODY, 0)) for node in (ONE, TWO, THREE)}
    group = Group(lambda node: RaftConfig(node, 1), disks)
    group.nodes[ONE].raft.log.commit_to(2)
    group.observe(ONE)
    return group


def leader_of_term_4(disk: Disk) -> RawNode:
    """Node 3, elected although it must not be: votes are put into its hands."""
    raw = raw_of(disk, RaftConfig(THREE, 1, pre_vote=False))
    raw.campaign()
    for node in (TWO, THREE):
        raw.step(RequestVoteReply(node, THREE, 4, granted=True, pre_vote=False, clock_ms=0))
    assert raw.role is Role.LEADER
    return raw


@pytest.mark.parametrize(
    ("terms", "why"),
    [([1], "the entry is missing"), ([1, 2], "another entry is in its place"), ([1, 2, 3], "and more follows it")],
)
def test_a_leader_without_a_committed_entry_is_noticed(terms: list[int], why: str) -> None:
    group = committed_everywhere()
    usurper = leader_of_term_4(Disk(chain(terms), HardState(3, NOBODY, 0)))
    with pytest.raises(InvariantViolationError, match="leader completeness"):
        group.invariants.observe(usurper.raft, group.disks)


def test_a_leader_that_has_what_is_committed_is_none_the_worse_for_more() -> None:
    group = committed_everywhere()
    group.invariants.observe(leader_of_term_4(Disk(chain([1, 1, 2]), HardState(3, NOBODY, 0))).raft, group.disks)


def leader_among(voters: tuple[int, ...], learners: tuple[int, ...], *, since: int, committed: int) -> Any:
    """Node 3 leads; by its log these are the members in force, since an entry."""
    current = SimpleNamespace(voter_ids=voters, learner_ids=learners, index=since)
    peers = dict.fromkeys(sorted({*voters, *learners} - {THREE}))
    return SimpleNamespace(
        id=THREE,
        term=4,
        role=Role.LEADER,
        log=SimpleNamespace(commit_index=committed),
        members=SimpleNamespace(current=current, history=(current,), peers=peers),
    )


def test_a_leader_leads_on_until_its_removal_is_committed_and_no_longer() -> None:
    check_own(leader_among((1, 2, 3), (4,), since=5, committed=9))
    check_own(leader_among((1, 2), (), since=10, committed=9))
    for learners in ((), (3,)):
        with pytest.raises(InvariantViolationError, match="who is no voter by a committed entry does not lead"):
            check_own(leader_among((1, 2), learners, since=9, committed=9))


def test_a_leader_sends_its_log_to_all_members_and_nobody_else() -> None:
    for wrong in ((1,), (1, 2, 4)):
        raft = leader_among((1, 2, 3), (), since=5, committed=9)
        raft.members.peers = dict.fromkeys(wrong)
        with pytest.raises(InvariantViolationError, match="the log goes to the members in force"):
            check_own(raft)


def test_a_leader_that_changes_more_than_one_member_at_once_is_noticed() -> None:
    tail, old = Disk(chain([4])).tail, members_of((1, 2, 3))
    raft: Any = SimpleNamespace(
        id=ONE, term=4, role=Role.LEADER, members=SimpleNamespace(history=(old,)), term_start_index=1
    )
    judge = MemberInvariants({0: None, 1: None})
    for voters, fits in (((1, 2), True), ((1,), False), ((1, 2, 4), False), ((1, 2, 3, 4, 5), False)):
        payload = memberships.encode(members_of(voters))
        entry = make_entry(
            tail,
            term=4,
            entry_type=EntryType.MEMBERSHIP,
            payload=payload,
            timestamp_ms=1000,
            group_id=1,
            segment_size=1 << 30,
        )
        if fits:
            judge.note(raft, entry)
        else:
            with pytest.raises(InvariantViolationError, match="members change by one"):
                judge.note(raft, entry)
