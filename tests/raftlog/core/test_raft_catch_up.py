"""The catch-up budget: entries from the disk wait for it, entries in memory never do."""

from __future__ import annotations

from raftlog.core.state.config import RaftConfig
from raftlog.messages import AppendEntries
from raftlog.types import EntryType, NodeId
from tests.support.lone_leader import ONE, THREE, TWO, LoneLeader

OLD = 40


class Leader(LoneLeader):
    """Node 3 has its log, node 2 has nothing."""

    def __init__(self) -> None:
        # The last entries are a byte longer than the smallest.
        super().__init__(OLD, lambda frame: RaftConfig(ONE, 1, append_bytes_max=2 * frame + 2, pre_vote=False), THREE)
        self.frame = self.disk.entries[OLD].end_position - self.disk.entries[OLD].position
        self.accepts(THREE, OLD + 1)

    def accepts(self, node: NodeId, match: int) -> list[AppendEntries]:
        self.accept(node, match=match)
        return self.work()

    def bytes_of(self, messages: list[AppendEntries], node: NodeId) -> int:
        return sum(len(m.entries) for m in messages if m.to_id == node) * self.frame


def test_who_catches_up_gets_what_is_granted_and_goes_on_with_the_next_grant() -> None:
    leader = Leader()
    leader.raw.catch_up_budget = 5 * leader.frame
    assert leader.bytes_of(leader.lacks_all(TWO), TWO) == 2 * leader.frame, "one probe"
    assert leader.bytes_of(leader.accepts(TWO, 2), TWO) == 4 * leader.frame, "one message may pass the budget"
    assert -leader.frame <= leader.raw.catch_up_budget < 0
    assert leader.raw.catch_up_waits
    (two,) = [peer for peer in leader.raw.status().peers if peer.node_id == TWO]
    assert two.held
    assert not leader.accepts(TWO, 6), "answers of the follower bring it nothing more"
    leader.raw.catch_up_budget = 0
    assert not leader.work()
    leader.raw.catch_up_budget = 3 * leader.frame
    assert leader.bytes_of(leader.work(), TWO) == 4 * leader.frame
    leader.raw.catch_up_budget = None
    leader.work()
    assert leader.raw.status().peers[0].next_index == OLD + 2
    assert not leader.raw.catch_up_waits


def test_live_entries_never_wait() -> None:
    leader = Leader()
    leader.raw.catch_up_budget = 0
    assert leader.bytes_of(leader.lacks_all(TWO), TWO) == 0
    for number in range(5):
        entry = leader.raw.propose(EntryType.MESSAGES, b"live", 2000)
        sent = leader.work()
        assert [m.entries[-1].index for m in sent if m.to_id == THREE] == [entry.index]
        leader.accepts(THREE, entry.index)
        assert leader.raw.commit_index == entry.index, number
    leader.raw.catch_up_budget = None
    leader.work()
    leader.accepts(TWO, 2)
    leader.accepts(TWO, OLD)
    leader.raw.catch_up_budget = 0
    entry = leader.raw.propose(EntryType.MESSAGES, b"live", 2000)
    assert {m.to_id for m in leader.work() if m.entries and m.entries[-1].index == entry.index} == {TWO, THREE}


def test_a_new_leader_takes_the_budget_over_and_a_follower_waits_for_nothing() -> None:
    leader = Leader()
    leader.raw.catch_up_budget = 0
    leader.lacks_all(TWO)
    waits = [leader.raw.catch_up_waits]
    leader.raw.resign()
    leader.work()
    assert [*waits, leader.raw.catch_up_waits] == [True, False]
    leader.raw.catch_up_budget = 1 << 20
    assert not leader.work()
