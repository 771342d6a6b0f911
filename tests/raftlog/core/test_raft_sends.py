"""The leader's sending in one turn: no more bytes of entries than a turn may, and no answer twice."""

from __future__ import annotations

from dataclasses import replace

from raftlog.core.replication import ENTRY_BYTES
from raftlog.core.state.config import RaftConfig
from raftlog.messages import AppendEntries, Heartbeat, HeartbeatReply
from raftlog.types import EntryType, NodeId
from tests.support.lone_leader import ONE, THREE, TWO, LoneLeader

OLD = 60
LAST = OLD + 1


class Leader(LoneLeader):
    """It does not know what nodes 2 and 3 have. Two of the longest entries are a message."""

    def __init__(self) -> None:
        super().__init__(
            OLD,
            lambda frame: RaftConfig(ONE, 1, append_bytes_max=2 * frame + 2, pre_vote=False, check_quorum=False),
            voter=TWO,
        )

    def begin_turn(self, frames: int) -> None:
        raft = self.raw.raft
        raft.config = replace(raft.config, turn_bytes_max=frames * max(self.frame, ENTRY_BYTES))
        self.raw.set_clock(0, 0)

    def turn(self, frames: int) -> dict[NodeId, int]:
        """One turn: what it sends, in entries by follower."""
        self.begin_turn(frames)
        return entries_by_node(self.work())

    def beat(self) -> None:
        """Ticks until heartbeats have left."""
        for _ in range(self.raw.raft.config.heartbeat_ticks):
            self.raw.tick()
        assert any(isinstance(message, Heartbeat) for message in self.raw.raft.messages)


def entries_by_node(messages: list[AppendEntries]) -> dict[NodeId, int]:
    return {node: sum(len(m.entries) for m in messages if m.to_id == node) for node in (TWO, THREE)}


def test_one_turn_sends_what_it_may_and_the_next_one_goes_on_with_both_followers() -> None:
    leader = Leader()
    assert entries_by_node(leader.lacks_all(TWO, THREE)) == {TWO: 2, THREE: 2}, "a probe each"
    leader.begin_turn(6)
    leader.accept(TWO, THREE, match=2)
    assert entries_by_node(leader.work()) == {TWO: 6, THREE: 0}
    assert leader.raw.unsent
    assert leader.turn(4) == {TWO: 2, THREE: 2}, "node 2 was served before, and each gets a message in turn"
    for _ in range(5):
        assert leader.turn(4) == {TWO: 2, THREE: 2}
    turns = 0
    while leader.raw.unsent:
        assert sum(leader.turn(7).values()) <= 8, "one message may pass what was granted"
        turns += 1
    assert turns > 5
    assert all(peer.next_index == LAST + 1 for peer in leader.raw.status().peers if peer.node_id != ONE)


def test_a_follower_that_needs_nothing_more_gives_its_place_up() -> None:
    leader = Leader()
    leader.lacks_all(TWO, THREE)
    leader.begin_turn(1)
    leader.accept(TWO, THREE, match=2)
    leader.work()
    leader.accept(TWO, match=LAST)
    assert leader.turn(2) == {TWO: 0, THREE: 2}
    leader.accept(THREE, match=LAST)
    leader.turn(2)
    assert not leader.raw.unsent


def test_who_leads_no_longer_has_nobody_wait() -> None:
    leader = Leader()
    leader.lacks_all(TWO)
    leader.begin_turn(0)
    leader.accept(TWO, match=2)
    assert leader.raw.unsent
    leader.raw.resign()
    assert not leader.raw.unsent
    assert leader.turn(100) == {TWO: 0, THREE: 0}


def test_a_new_entry_waits_for_the_next_turn_as_well() -> None:
    leader = Leader()
    leader.accept(TWO, match=LAST)
    leader.work()
    leader.begin_turn(0)
    leader.raw.propose(EntryType.MESSAGES, b"new", 1)
    assert entries_by_node(leader.work()) == {TWO: 0, THREE: 0}
    assert leader.turn(1)[TWO] == 1


def test_a_hundred_answers_to_heartbeats_bring_the_entries_once() -> None:
    """A follower that stood still answers every heartbeat of that time at once."""
    leader = Leader()
    leader.lacks_all(TWO)
    leader.beat()
    leader.work()
    for _ in range(100):
        leader.raw.step(HeartbeatReply(TWO, ONE, 2, 0, 0))
    assert [len(m.entries) for m in leader.work() if m.to_id == TWO] == [2]
    leader.raw.step(HeartbeatReply(TWO, ONE, 2, 0, 0))
    assert not leader.work()
    leader.beat()
    leader.work()
    leader.raw.step(HeartbeatReply(TWO, ONE, 2, 0, 0))
    assert entries_by_node(leader.work())[TWO] == 2, "that message may be lost as well"


def test_reads_that_never_end_do_not_keep_a_lost_message_lost() -> None:
    """Each read sends heartbeats, and so puts off the next regular one."""
    leader = Leader()
    raft = leader.raw.raft
    raft.config = replace(raft.config, heartbeat_ticks=3)
    leader.accept(TWO, match=LAST)
    leader.work()
    leader.raw.propose(EntryType.MESSAGES, b"new", 1)
    leader.work()  # and this message is lost
    again: list[AppendEntries] = []
    for context in range(1, 10):
        leader.raw.read_index(context)
        again += leader.work()
        assert raft.heartbeat_elapsed == 0, "a round of its own"
        leader.raw.tick()
        again += leader.work()
        leader.raw.step(HeartbeatReply(TWO, ONE, 2, 0, 0))
        again += leader.work()
    assert [message.to_id for message in again].count(TWO) == 3
