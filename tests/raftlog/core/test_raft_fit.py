"""Withheld votes and damaged logs, in the corners that no story reaches."""

from __future__ import annotations

import pytest

from raftlog.core.raw_node import RawNode
from raftlog.errors import InvariantViolationError
from raftlog.messages import AppendEntries, RequestVote, TimeoutNow
from raftlog.types import NOBODY, EntryId, HardState, NodeId, Role
from tests.support.raft_group import Disk, chain, raw_of

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
FOREIGN = chain([1, 1, 3])


def withheld(term: int, since: int) -> RawNode:
    disk = Disk(FOREIGN[:2], HardState(term, NOBODY, 0))
    return raw_of(disk, vote_withheld_since=since)


def test_the_new_term_is_on_disk_before_anything_of_it_is_said() -> None:
    raw = withheld(term=2, since=2)
    assert (raw.term, raw.ready().hard_state) == (3, HardState(3, NOBODY, 0))
    assert withheld(term=3, since=2).ready().hard_state is None


def test_a_commit_is_enough_only_once_the_own_disk_holds_it() -> None:
    raw = withheld(term=2, since=2)
    raw.step(AppendEntries(ONE, THREE, 3, FOREIGN[1].id, 3, tuple(FOREIGN[2:])))
    assert raw.commit_index == 3
    assert not raw.caught_up_with_leader
    with pytest.raises(InvariantViolationError, match="would vote in term 3 before its log"):
        raw.release_vote()
    ready = raw.ready()
    assert [entry.index for entry in ready.entries] == [2, 3]
    raw.persisted(EntryId(3, 3))
    raw.release_vote()
    assert raw.status().may_vote
    with pytest.raises(InvariantViolationError):
        raw.release_vote()


def test_a_commit_of_an_earlier_term_is_not_enough() -> None:
    raw = withheld(term=2, since=2)
    raw.step(AppendEntries(ONE, THREE, 3, FOREIGN[1].id, 2, (FOREIGN[2],)))
    raw.ready()
    raw.persisted(FOREIGN[2].id)
    assert raw.commit_index == 2
    assert not raw.caught_up_with_leader


@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_withheld_vote_is_refused_in_every_form(pre_vote: bool) -> None:
    raw = withheld(term=2, since=2)
    raw.ready()
    raw.step(RequestVote(ONE, THREE, 4, EntryId(3, 9), pre_vote, False))
    ready = raw.ready()
    assert [message.granted for message in (*ready.messages, *ready.messages_after_persist)] == [False]  # type: ignore[union-attr]
    assert raw.raft.vote == NOBODY


def test_it_does_not_campaign_by_any_of_the_four_doors() -> None:
    raw = withheld(term=2, since=2)
    raw.campaign()
    raw.step(AppendEntries(ONE, THREE, 3, FOREIGN[1].id, 1, ()))
    raw.step(TimeoutNow(ONE, THREE, 3))
    raw.peer_closed(ONE)
    for _ in range(50):
        raw.tick()
    assert (raw.role, raw.term) == (Role.FOLLOWER, 3)
    assert (raw.status().may_vote, raw.status().may_campaign) == (False, False)


def test_who_waits_for_a_repair_answers_others_once_its_leader_is_silent() -> None:
    disk = Disk(FOREIGN, HardState(3, NOBODY, 0))
    raw = raw_of(disk)
    raw.hold_campaigns("repair", True)
    raw.step(AppendEntries(ONE, THREE, 3, FOREIGN[3].id, 0, ()))
    for _ in range(25):
        raw.tick()
    raw.ready()
    raw.step(RequestVote(TWO, THREE, 4, FOREIGN[3].id, False, False))
    (reply,) = raw.ready().messages_after_persist
    assert reply.granted  # type: ignore[union-attr]
