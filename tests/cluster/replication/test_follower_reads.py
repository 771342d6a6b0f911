"""Whom a reply suggests, and what a follower says of its own lag."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection, RaftSection
from cluster.config.service_sections import ModesSection
from cluster.replication.follower_reads import LAG_MAX, FollowerReads, Staleness
from raftlog.types import Role

MEMORY = 1000


def peer(node: int, **fields: Any) -> Any:
    return SimpleNamespace(**{"node_id": node, "recent_active": True, "lag": 0, **fields})


class Seen:
    """Node 1 of voters 1, 2 and 3; learner 4. The log ends at position 10,000."""

    def __init__(self, role: Role = Role.LEADER, *, enabled: bool = True, ratio: int = 40) -> None:
        self.peers = [peer(2), peer(3), peer(4)]
        self.groups: dict[str, Any] = {}
        self.raw: Any = SimpleNamespace(
            role=role,
            leader_id=1 if role is Role.LEADER else 2,
            commit_index=0,
            raft=SimpleNamespace(heard_ms=0),
            status=lambda: SimpleNamespace(voters=(1, 2, 3), peers=tuple(self.peers)),
        )
        state: Any = SimpleNamespace(
            applied_mark=SimpleNamespace(end_position=10_000), applied=SimpleNamespace(index=70), groups=self.groups
        )
        config = Config(
            node=NodeSection(id=1, data_dir="x"),
            raft=RaftSection(tick_ms=50),
            modes=ModesSection(slave_read_enable=enabled, access_message_in_memory_max_ratio=ratio),
        )
        self.now_ms = 0
        self.reads = FollowerReads(config, self.raw, state, lambda: self.now_ms, lambda: MEMORY)  # type: ignore[arg-type]

    def suggest(self, position: int, queue_id: int = 0) -> str:
        """Returns the suggestion in a reply whose last message lies there."""
        return self.reads.suggest("G", queue_id, position)


def test_only_who_is_far_behind_is_sent_away() -> None:
    seen = Seen()
    assert seen.suggest(9_600) == "0"
    assert seen.suggest(9_599) == "2"
    assert seen.reads.suggest("G", 0, -1) == "0"
    assert Seen(enabled=False).suggest(0) == "0"
    assert Seen(Role.FOLLOWER, enabled=False).suggest(0) == "0"


def test_a_follower_keeps_a_reader_until_it_has_caught_up() -> None:
    seen = Seen(Role.FOLLOWER)
    assert seen.suggest(100) == "1"
    assert seen.suggest(9_700) == "0"


def test_the_groups_wish_and_else_one_follower_per_queue() -> None:
    seen = Seen()
    assert [seen.suggest(0, queue) for queue in range(4)] == ["2", "3", "2", "3"]
    seen.groups["G"] = SimpleNamespace(which_broker_when_consume_slowly=3)
    assert seen.suggest(0) == "3"
    seen.groups["G"] = SimpleNamespace(which_broker_when_consume_slowly=1)
    assert seen.suggest(0) == "2", "node 1 leads"


@pytest.mark.parametrize("change", [{"recent_active": False}, {"lag": LAG_MAX + 1}])
def test_nobody_is_sent_to_a_follower_that_is_silent_or_behind_nor_to_a_learner(change: dict[str, Any]) -> None:
    seen = Seen()
    seen.peers = [peer(2, **change), peer(3), peer(4)]
    assert [seen.suggest(0, queue) for queue in range(2)] == ["3", "3"]
    seen.peers = [peer(2, **change), peer(3, **change), peer(4)]
    assert seen.suggest(0) == "0"


def test_a_follower_labels_its_answers_and_a_leader_does_not() -> None:
    ext: dict[str, str] = {}
    Seen().reads.label(ext)
    assert ext == {}
    Seen(Role.FOLLOWER).reads.label(ext)
    assert ext == {"raftmqServedBy": "1", "raftmqAppliedIndex": "70", "raftmqStalenessMs": "-1"}


class Follower:
    """Told by its leader of commits, and applying them later."""

    def __init__(self) -> None:
        self.raw: Any = SimpleNamespace(
            role=Role.FOLLOWER, leader_id=2, commit_index=0, raft=SimpleNamespace(heard_ms=0)
        )
        self.staleness = Staleness(self.raw)  # type: ignore[arg-type]

    def at(self, now_ms: int, commit: int, silent_ms: int = 0) -> None:
        """The timer fires; the leader was heard so long ago."""
        self.raw.commit_index, self.raw.raft.heard_ms = commit, now_ms - silent_ms
        self.staleness.tick(now_ms)


def test_staleness_is_the_age_of_the_last_word_that_is_applied() -> None:
    follower = Follower()
    assert follower.staleness.staleness_ms(0, 10) == -1
    follower.at(1000, 10)
    assert follower.staleness.staleness_ms(1005, 10) == 5
    follower.at(1050, 20)
    follower.at(1100, 30)
    assert follower.staleness.staleness_ms(1100, 10) == 100, "20 and 30 are not applied"
    assert follower.staleness.staleness_ms(1100, 29) == 50
    assert follower.staleness.staleness_ms(1100, 30) == 0


def test_a_silent_leader_makes_it_grow_even_if_all_is_applied() -> None:
    follower = Follower()
    follower.at(1000, 10)
    for tick in range(1, 9):
        follower.at(1000 + 50 * tick, 10, silent_ms=50 * tick)
    assert follower.staleness.staleness_ms(1400, 10) == 400
    follower.raw.leader_id = 0
    follower.at(5000, 10)
    assert follower.staleness.staleness_ms(5000, 10) == 4000, "a vote is no word of a leader"
