"""A leader whose disk is behind the others' hands leadership over; one that is only busy does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.members.changes import DISK_LAG_MS, DiskLag
from raftlog.types import NOBODY, NodeId, Role

TICK_MS = 50


class Leader:
    """A leader as DiskLag sees it, and the transfers that were asked for."""

    def __init__(self) -> None:
        self.raw = SimpleNamespace(role=Role.LEADER, persisted_index=0, commit_index=0)
        self.peer = SimpleNamespace(match_index=1 << 30)
        self.transfers: list[int] = []
        self.now_ms = 7_000_000
        self.lag = DiskLag(cast(Any, self.raw), cast(Any, self))

    def choose(self, fits: Any) -> NodeId:
        return NodeId(2) if fits(self.peer) else NOBODY

    def transfer(self, to: NodeId) -> None:
        self.transfers.append(to)

    def run(self, ms: int, commits_per_tick: int, behind: int) -> None:
        """Lets time pass; the disk stays `behind` entries behind the commit index."""
        for _ in range(ms // TICK_MS):
            self.now_ms += TICK_MS
            self.raw.commit_index += commits_per_tick
            self.raw.persisted_index = max(self.raw.persisted_index, self.raw.commit_index - behind)
            self.lag.tick(self.now_ms)


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_a_busy_disk_that_is_always_a_little_behind_keeps_the_office(leader: Leader) -> None:
    leader.run(60_000, commits_per_tick=10, behind=100)  # half a second
    assert leader.transfers == []


def test_a_disk_that_is_behind_for_longer_hands_over(leader: Leader) -> None:
    leader.run(4 * DISK_LAG_MS, commits_per_tick=10, behind=10 * (DISK_LAG_MS // TICK_MS) + 20)
    assert leader.transfers
    assert set(leader.transfers) == {2}


def test_a_disk_that_stands_still_hands_over_once_a_second(leader: Leader) -> None:
    leader.run(DISK_LAG_MS, commits_per_tick=1, behind=1 << 30)
    assert leader.transfers == []
    leader.run(2 * TICK_MS, commits_per_tick=0, behind=1 << 30)
    assert leader.transfers == [2]
    leader.run(DISK_LAG_MS - 2 * TICK_MS, commits_per_tick=0, behind=1 << 30)
    assert leader.transfers == [2]
    leader.run(4 * TICK_MS, commits_per_tick=0, behind=1 << 30)
    assert leader.transfers == [2, 2]


def test_only_a_node_that_has_all_committed_entries_takes_over(leader: Leader) -> None:
    leader.peer.match_index = 0
    leader.run(5 * DISK_LAG_MS, commits_per_tick=1, behind=1 << 30)
    assert leader.transfers == []


def test_a_new_leader_has_a_second_of_its_own(leader: Leader) -> None:
    leader.raw.role = Role.FOLLOWER
    leader.run(5 * DISK_LAG_MS, commits_per_tick=1, behind=1 << 30)
    leader.raw.role = Role.LEADER
    leader.run(DISK_LAG_MS - TICK_MS, commits_per_tick=1, behind=1 << 30)
    assert leader.transfers == []
    leader.run(3 * TICK_MS, commits_per_tick=1, behind=1 << 30)
    assert leader.transfers == [2]
