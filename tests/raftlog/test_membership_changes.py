"""Members as values: what a change makes of them, what is refused, and which changes keep majorities in touch."""

from __future__ import annotations

from itertools import combinations, pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import MembershipError
from raftlog.membership import (
    ADD,
    ADDRESS,
    PROMOTE,
    REMOVE,
    REMOVED_KEPT,
    Address,
    Membership,
    decode_payload,
    encode,
    is_single_change,
    promoted,
    with_address,
    with_learner,
    without,
)
from raftlog.types import NodeId, Voter
from tests.support.rows import each_row


def voter(node: int, uuid: int = 0) -> Voter:
    return Voter(NodeId(node), UUID(int=uuid or node))


def address(node: int, host: str = "host") -> Address:
    return Address(NodeId(node), host, 9000, "admin:1", (("internal", f"{host}:2"),))


def members(*nodes: int) -> Membership:
    return Membership(UUID(int=99), tuple(map(voter, nodes)))


THREE = members(1, 2, 3)


def test_a_node_joins_becomes_a_voter_moves_and_leaves() -> None:
    learner = with_learner(THREE, voter(4), address(4), manual=True)
    assert (learner.voter_ids, learner.learner_ids, learner.manual, learner.reason) == ((1, 2, 3), (4,), (4,), ADD)
    four = promoted(learner, NodeId(4))
    assert (four.voter_ids, four.learners, four.manual, four.reason) == ((1, 2, 3, 4), (), (), PROMOTE)
    moved = with_address(four, address(4, "elsewhere"))
    assert (moved.addresses, moved.reason) == ((address(4, "elsewhere"),), ADDRESS)
    left = without(moved, NodeId(3))
    assert (left.voter_ids, left.removed, left.reason) == ((1, 2, 4), (voter(3),), REMOVE)
    assert without(left, NodeId(4)).addresses == ()
    steps = [THREE, learner, four, moved, left]
    assert all(is_single_change(*pair) for pair in pairwise(steps))
    assert not any(is_single_change(each, each) for each in steps), "nothing is no change"
    assert all(decode_payload(encode(each), 7) == each._replace(index=7) for each in steps)


@each_row(
    ("old", "joining", "at", "text"),
    [
        (THREE, voter(3), 3, "node 3 is a member already: nothing to add"),
        (THREE, voter(3, 77), 3, "ids are not given twice: add the new node as 4"),
        (without(THREE, NodeId(3)), voter(3, 77), 3, "ids are not given twice: add the new node as 4"),
        (THREE, voter(0, 77), 0, "give one positive id for both"),
        (THREE, voter(4), 5, "give one positive id for both"),
    ],
)
def test_who_cannot_join(old: Membership, joining: Voter, at: int, text: str) -> None:
    with pytest.raises(MembershipError, match=text):
        with_learner(old, joining, address(at))


def test_who_left_may_come_back_itself() -> None:
    back = with_learner(without(THREE, NodeId(3)), voter(3), address(3))
    assert (back.learner_ids, back.removed, back.highest_id) == ((3,), (), 3)


def test_what_else_is_refused_says_what_would_work() -> None:
    with pytest.raises(MembershipError, match="node 5 is no member: add it first"):
        promoted(THREE, NodeId(5))
    with pytest.raises(MembershipError, match="node 3 is a voter already"):
        promoted(THREE, NodeId(3))
    with pytest.raises(MembershipError, match="add another node and promote it first"):
        without(with_learner(members(1), voter(2), address(2)), NodeId(1))
    with pytest.raises(MembershipError, match="node 9 is no member; voters are"):
        without(THREE, NodeId(9))
    with pytest.raises(MembershipError, match=r"node 9 is no member; members are .*: add it first"):
        with_address(THREE, address(9))
    with pytest.raises(MembershipError, match="at host:9000 already: nothing to change"):
        with_address(with_address(THREE, address(1)), address(1))


def test_only_so_many_that_left_are_remembered() -> None:
    now = members(1)
    for node in range(2, REMOVED_KEPT + 4):
        now = without(with_learner(now, voter(node), address(node)), NodeId(node))
    assert [each.id for each in now.removed] == list(range(4, REMOVED_KEPT + 4))
    assert now.highest_id == REMOVED_KEPT + 3


def test_what_is_more_than_one_change() -> None:
    two_more = promoted(with_learner(THREE, voter(4), address(4)), NodeId(4))
    assert not is_single_change(THREE, without(two_more, NodeId(1)))
    assert not is_single_change(THREE, THREE._replace(cluster_uuid=UUID(int=5), voters=THREE.voters[:2]))
    assert not is_single_change(THREE, THREE._replace(voters=(*THREE.voters[:2], voter(3, 77)))), "another node as 3"
    assert not is_single_change(THREE, with_address(with_address(THREE, address(1)), address(2)))


nodes = st.sets(st.integers(1, 6), min_size=1)


@given(nodes, nodes)
def test_majorities_meet_across_a_single_change(old: set[int], new: set[int]) -> None:
    def majorities(of: set[int]) -> list[set[int]]:
        return [set(some) for some in combinations(of, len(of) // 2 + 1)]

    if is_single_change(members(*old), members(*new)):
        assert all(ours & theirs for ours in majorities(old) for theirs in majorities(new))


def test_the_last_voter_does_not_leave() -> None:
    alone = without(without(THREE, NodeId(3)), NodeId(2))
    with pytest.raises(MembershipError, match="the only voter"):
        without(alone, NodeId(1))
