"""Members and snapshots at the core's door, in the corners that no story reaches."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from raftlog.core.raw_node import RawNode
from raftlog.core.state.config import RaftConfig
from raftlog.core.state.progress import Inflights, Progress
from raftlog.errors import ImplausibleMessageError, InvariantViolationError, MembershipError, NotLeaderError
from raftlog.frame import make_entry
from raftlog.membership import Address, Membership, encode, with_learner, without
from raftlog.messages import AppendEntries, AppendEntriesReply, Heartbeat, HeartbeatReply, InstallSnapshot
from raftlog.types import EMPTY_TAIL, NOBODY, Entry, EntryId, EntryType, HardState, LogTail, NodeId, Role, Voter
from tests.support.raft_group import Disk, Group, chain, members_of

ONE, TWO, THREE, FOUR = (NodeId(node) for node in range(1, 5))
LOG = chain([1, 1, 2, 2, 2])


def node(disk: Disk, members: Membership | None = None, applied: int = 0) -> RawNode:
    """Node 1 of three."""
    return RawNode(
        RaftConfig(ONE, 1),
        hard_state=disk.hard_state,
        log=disk,
        members=[members or members_of((1, 2, 3))],
        applied_index=applied,
        rng=random.Random(1),
    )


def leader(voters: int) -> RawNode:
    """Node 1, which nobody has answered since its no-op was committed."""
    raw = node(Disk(), members_of(range(1, voters + 1)))
    raw.campaign()
    raw.raft.become_candidate()
    raw.raft.become_leader()
    raw.raft.term_start_index = 0
    raw.ready()
    return raw


def hear(raw: RawNode, *peers: NodeId) -> None:
    for peer in peers:
        raw.step(HeartbeatReply(peer, raw.raft.id, raw.term, 0, 0))


def entry_after(tail: LogTail, entry_type: EntryType, payload: bytes) -> Entry:
    return make_entry(
        tail, term=2, entry_type=entry_type, payload=payload, timestamp_ms=1000, group_id=1, segment_size=1 << 30
    )


def test_the_first_ready_tells_who_the_members_are() -> None:
    raw = node(Disk())
    assert raw.has_ready()
    assert raw.ready().members_changed
    assert not raw.has_ready()


def test_a_node_that_is_no_member_follows_and_never_campaigns() -> None:
    raw = node(Disk(), members_of((2, 3)))
    raw.step(AppendEntries(TWO, ONE, 1, EntryId(0, 0), 0, ()))
    for _ in range(60):
        raw.tick()
    raw.campaign()
    assert (raw.role, raw.leader_id, raw.may_campaign, raw.term) == (Role.FOLLOWER, NOBODY, False, 1)


def test_members_are_changed_by_their_own_call_only() -> None:
    raw = leader(3)
    with pytest.raises(ValueError, match="propose_membership"):
        raw.propose(EntryType.MEMBERSHIP, encode(raw.membership), 0)
    with pytest.raises(NotLeaderError):
        node(Disk()).propose_membership(without(raw.membership, TWO), 0)


def test_more_than_one_change_is_refused() -> None:
    raw = leader(5)
    hear(raw, TWO, THREE, FOUR)
    with pytest.raises(MembershipError, match="change one at a time"):
        raw.propose_membership(without(without(raw.membership, TWO), THREE), 0)
    with pytest.raises(MembershipError, match="node 9 is no learner: add it as one"):
        raw.propose_membership(
            raw.membership._replace(voters=(*raw.membership.voters, Voter(NodeId(9), UUID(int=9)))), 0
        )


def test_who_was_heard_before_the_last_check_quorum_counts_as_live() -> None:
    raw = leader(3)
    hear(raw, TWO, THREE)
    raw.raft.members.active_voters()
    hear(raw, THREE)
    raw.raft.members.active_voters()
    assert raw.raft.members.live((ONE, TWO, THREE)) == [ONE, THREE]
    with pytest.raises(
        MembershipError, match=r"of voters \(1, 2\) 2 must answer, and only \[1\] do: bring back node 2"
    ):
        raw.propose_membership(without(raw.membership, THREE), 0)


def test_whose_connection_closed_is_dead_until_it_is_heard_again() -> None:
    """An operator who kills one node and removes another in the next moment must not end up without a majority."""
    raw = leader(3)
    hear(raw, TWO, THREE)
    raw.peer_closed(THREE)
    with pytest.raises(MembershipError, match=r"of voters \(1, 3\) 2 must answer, and only \[1\] do"):
        raw.propose_membership(without(raw.membership, TWO), 0)
    hear(raw, THREE)
    assert raw.raft.members.live((ONE, TWO, THREE)) == [ONE, TWO, THREE]
    assert raw.raft.members.active_voters() == 3


def test_a_smaller_majority_has_agreed_already() -> None:
    group = Group(lambda each: RaftConfig(each, 1), {NodeId(each): Disk() for each in range(1, 5)})
    group.act(ONE, RawNode.campaign)
    settle(group)
    for peer in (THREE, FOUR):
        group.crash(peer)
    group.act(ONE, lambda raw: raw.propose(EntryType.MESSAGES, b"x", 0))
    group.act(ONE, lambda raw: raw.read_index(7))
    settle(group)
    raw = group.nodes[ONE]
    assert (raw.commit_index, raw.last_index) == (1, 2)
    group.act(ONE, lambda raw: raw.propose_membership(without(raw.membership, FOUR), 0))
    ready = group.take_ready(ONE)
    assert raw.commit_index == 2
    assert [read.context for read in ready.read_states] == [7]


def settle(group: Group) -> None:
    for _ in range(20):
        for each, raw in group.nodes.items():
            while raw.has_ready():
                group.take_ready(each)
            while group.disks[each].writes:
                group.sync(each)
        network, group.network = group.network, []
        for message in network:
            group.deliver(message)


def test_members_that_cannot_be_read_are_not_appended() -> None:
    raw = node(Disk())
    entry = entry_after(raw.tail, EntryType.MEMBERSHIP, b"\x80")
    with pytest.raises(ImplausibleMessageError, match="does not say who the members are"):
        raw.step(AppendEntries(TWO, ONE, 2, EntryId(0, 0), 0, (entry,)))
    assert raw.last_index == 0


def test_a_change_replaced_by_another_is_the_other() -> None:
    raw = node(Disk())
    raw.ready()
    before = raw.tail
    first = entry_after(before, EntryType.MEMBERSHIP, encode(without(raw.membership, THREE)))
    raw.step(AppendEntries(TWO, ONE, 2, EntryId(0, 0), 0, (first,)))
    assert list(raw.membership.voter_ids) == [ONE, TWO]
    second = with_learner(members_of((1, 2, 3)), Voter(FOUR, UUID(int=4)), Address(FOUR, "host", 1))
    later = make_entry(
        before,
        term=3,
        entry_type=EntryType.MEMBERSHIP,
        payload=encode(second),
        timestamp_ms=1000,
        group_id=1,
        segment_size=1 << 30,
    )
    raw.step(AppendEntries(THREE, ONE, 3, EntryId(0, 0), 0, (later,)))
    assert (raw.membership.voter_ids, raw.membership.learner_ids) == ((ONE, TWO, THREE), (FOUR,))
    assert raw.committed_membership_index == 0


# -- snapshots


def trimmed(first_index: int) -> Disk:
    return Disk(list(LOG), HardState(2, NOBODY, 4), applied_index=4, first_index=first_index)


def test_a_state_that_ends_below_the_log_stops_the_start() -> None:
    with pytest.raises(InvariantViolationError, match="applied index 0, the log on disk begins at 3"):
        node(trimmed(3))


def test_the_term_of_the_entry_before_the_log_is_known() -> None:
    log = node(trimmed(3), applied=4).raft.log
    assert [log.term_at(index) for index in (1, 2, 3, 5, 6)] == [None, 1, 2, 2, None]
    assert log.first_index == 3
    assert log.last_not_above(5, 1) == log.last_not_above(1, 9) == EntryId(1, 2)


def test_a_log_that_grows_downwards_knows_its_terms_again() -> None:
    disk = trimmed(4)
    raw = node(disk, applied=4)
    disk.first_index = 1
    raw.trimmed()
    assert [raw.raft.log.term_at(index) for index in range(6)] == [0, 1, 1, 2, 2, 2]
    disk.first_index = 3
    raw.trimmed()
    assert [raw.raft.log.term_at(index) for index in range(6)] == [None, None, 1, 2, 2, 2]


def test_a_leader_that_was_not_told_of_a_trim_notices() -> None:
    disk = Disk(list(LOG), HardState(2, NOBODY, 4), applied_index=4)
    raw = node(disk, applied=4)
    raw.raft.become_candidate()
    raw.raft.become_leader()
    raw.raft.term_start_index = 4
    raw.ready()
    disk.first_index = 4
    raw.step(AppendEntriesReply(TWO, ONE, raw.term, True, 5, EntryId(1, 1)))
    assert raw.raft.log.first_index == 4, "the read told it"
    hear(raw, TWO)
    offers = [message for message in raw.ready().messages if isinstance(message, InstallSnapshot)]
    assert {(offer.first_index, offer.last) for offer in offers} == {(4, EntryId(2, 3))}


def test_an_offer_of_an_older_term_is_answered_with_the_current_one() -> None:
    raw = node(Disk(list(LOG), HardState(5, NOBODY, 0)))
    raw.ready()
    raw.step(InstallSnapshot(TWO, ONE, 4, 9, EntryId(2, 8)))
    ready = raw.ready()
    assert ready.install is None
    assert ready.messages == [AppendEntriesReply(ONE, TWO, 5, True, 8, EntryId(2, 5))]


def test_an_offer_contradicting_what_is_committed_stops_the_node() -> None:
    raw = node(Disk(list(LOG), HardState(2, NOBODY, 4)))
    with pytest.raises(InvariantViolationError, match="index 3 is committed here in term 2"):
        raw.step(InstallSnapshot(TWO, ONE, 7, 4, EntryId(6, 3)))


def test_an_offer_that_is_matched_commits_what_was_trimmed() -> None:
    raw = node(Disk(list(LOG), HardState(2, NOBODY, 0)))
    raw.ready()
    raw.step(InstallSnapshot(TWO, ONE, 2, 4, EntryId(2, 3)))
    ready = raw.ready()
    assert raw.commit_index == 3
    assert ready.messages_after_persist == [AppendEntriesReply(ONE, TWO, 2, False, 3, EntryId(0, -1))]
    assert ready.install is None


def test_the_newest_offer_is_told_once() -> None:
    raw = node(Disk())
    raw.ready()
    raw.step(InstallSnapshot(TWO, ONE, 2, 4, EntryId(2, 3)))
    newer = InstallSnapshot(TWO, ONE, 2, 9, EntryId(2, 8))
    raw.step(newer)
    assert raw.has_ready()
    assert raw.ready().install == newer
    assert raw.ready().install is None
    raw.step(Heartbeat(TWO, ONE, 2, 0, 0))
    assert raw.ready().install is None


def test_empty_tails_begin_with_nothing() -> None:
    assert node(Disk()).raft.log.previous == EMPTY_TAIL


def test_who_was_not_sent_what_is_committed_has_not_caught_up() -> None:
    peer = Progress(6, Inflights(2, 1000))
    peer.recent_active = True
    assert not peer.caught_up(5), "nobody knows yet whether its log matches"
    peer.accepted(5, 0)
    assert peer.caught_up(5)
    assert not peer.caught_up(6), "held back, or the leader cannot read it"
    for index in (6, 7):
        peer.sent(index, 100)
    assert not peer.caught_up(5), "its window is full"
    peer.accepted(7, 0)
    peer.recent_active = False
    assert not peer.caught_up(5), "silent"
