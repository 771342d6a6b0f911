"""A leader with slow turns: what it tells its peers, whom it hands over to, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.peer.slow_leader_transfer import ALARM, PAUSE_MS, SLOW_MS, TOLD_MS, TURNS, WINDOW_MS, SlowTurns
from cluster.runtime.alarms import Alarms
from cluster.runtime.peer_frames import WireError
from raftlog.core.status import PeerStatus
from raftlog.errors import NotLeaderError
from raftlog.types import NOBODY, NodeId, Role
from tests.support.node_kit import Clock
from tests.support.rows import each_row

TWO, THREE = NodeId(2), NodeId(3)
CALM = [0, -1]


def peer(node: NodeId, *, match: int = 10, **told: Any) -> PeerStatus:
    fields: dict[str, Any] = {
        "state": "REPLICATE",
        "recent_active": True,
        "lag": 10 - match,
        "inflight_messages": 0,
        "inflight_bytes": 0,
        "fit": True,
        "caught_up": True,
    }
    return PeerStatus(node_id=node, match_index=match, next_index=11, **{**fields, **told})


class Leader:
    """Node 1 of three. Its clock stands still unless it is moved."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.now_ms = 1_000_000
        self.alarms = Alarms(self.clock.wall_ms)
        self.peers = [peer(TWO), peer(THREE)]
        self.transferee = NOBODY
        self.raw: Any = SimpleNamespace(role=Role.LEADER, status=self._status)
        self.handed: list[NodeId] = []
        self.deposed = False
        """True if it can hand over to nobody."""
        raw: Any = self.raw
        self.slow = SlowTurns(raw, self.clock, self.alarms, self._transfer, 1000)
        self.hear()

    def _status(self) -> Any:
        return SimpleNamespace(
            peers=tuple(self.peers), voters=(NodeId(1), TWO, THREE), transferee=self.transferee, commit_index=10
        )

    def _transfer(self, to: NodeId) -> None:
        if self.deposed:
            raise NotLeaderError("it is deposed")
        self.handed.append(to)

    def hear(self, two: Any = CALM, three: Any = CALM) -> None:
        self.slow.heard(TWO, two)
        self.slow.heard(THREE, three)

    def stand_still(self, *took_ms: float, worked: bool = True) -> None:
        for each in took_ms:
            self.slow.note(each, worked=worked)
            self.slow.tick(self.clock.now_ms)

    def wait(self, milliseconds: int) -> None:
        self.clock.now_ms += milliseconds
        self.hear()
        self.slow.tick(self.clock.now_ms)


def test_the_third_slow_turn_of_a_leader_hands_over_once() -> None:
    leader = Leader()
    leader.stand_still(SLOW_MS + 1, SLOW_MS, 900)
    assert not leader.handed
    assert not leader.alarms.raised(ALARM)
    leader.stand_still(700)
    assert leader.handed == [TWO]
    assert leader.alarms.raised(ALARM)
    leader.stand_still(700, 700, 700)
    assert leader.handed == [TWO]
    assert (leader.slow.total, leader.slow.handed) == (6, 1)


def test_turns_that_were_only_not_scheduled_count_and_are_named() -> None:
    leader = Leader()
    leader.stand_still(600, 600, 800, worked=False)
    assert leader.handed == [TWO]
    (alarm,) = leader.alarms.all()
    assert "up to 800 ms; it waited for the processor" in alarm.text


def test_turns_count_for_a_minute() -> None:
    leader = Leader()
    leader.stand_still(600, 600)
    leader.wait(WINDOW_MS + 1)
    leader.stand_still(600)
    assert leader.slow.word() == [1, -1]
    assert not leader.handed


def test_the_alarm_ends_a_minute_later_and_the_next_hand_over_waits() -> None:
    leader = Leader()
    leader.stand_still(*[600] * TURNS)
    leader.wait(WINDOW_MS + 1)
    assert not leader.alarms.raised(ALARM)
    leader.stand_still(*[600] * TURNS)
    assert leader.alarms.raised(ALARM)
    assert len(leader.handed) == 1
    leader.wait(PAUSE_MS - WINDOW_MS - 2)
    leader.stand_still(*[600] * TURNS)
    assert len(leader.handed) == 1
    leader.wait(1)
    assert len(leader.handed) == 2


def test_the_alarm_ends_although_a_ping_was_the_first_to_see_that_the_turns_are_old() -> None:
    leader = Leader()
    leader.stand_still(*[600] * TURNS)
    leader.clock.now_ms += WINDOW_MS + 1
    assert leader.slow.word()[0] == 0
    leader.slow.tick(leader.clock.now_ms)
    assert not leader.alarms.raised(ALARM)


@pytest.mark.parametrize(
    ("two", "to"),
    [([1, -1], THREE), (None, THREE), (CALM, TWO)],
    ids=["it has one too", "it says nothing", "it is calm"],
)
def test_leadership_goes_to_a_voter_that_says_that_it_has_none(two: Any, to: NodeId) -> None:
    leader = Leader()
    leader.hear(two=two)
    leader.stand_still(*[600] * TURNS)
    assert leader.handed == [to]


def test_leadership_does_not_go_to_the_slower_disk() -> None:
    leader = Leader()
    leader.slow.slower = lambda node, _others: node == TWO
    leader.stand_still(*[600] * TURNS)
    assert leader.handed == [THREE]


def test_without_such_a_voter_it_stays() -> None:
    leader = Leader()
    leader.hear(two=[1, -1], three=[2, -1])
    leader.stand_still(*[600] * TURNS)
    assert not leader.handed
    leader.peers = [peer(TWO, match=0, lag=1000), peer(THREE, fit=False)]
    leader.hear()
    leader.stand_still(600)
    assert not leader.handed
    leader.peers = [peer(TWO), peer(THREE)]
    leader.clock.now_ms += TOLD_MS + 1
    leader.stand_still(600)
    assert not leader.handed, "what they said is old"
    leader.wait(0)
    assert leader.handed == [TWO]


def test_what_happened_before_its_office_does_not_end_it() -> None:
    leader = Leader()
    leader.raw.role = Role.FOLLOWER
    leader.stand_still(600, 600, 600)
    leader.raw.role = Role.LEADER
    leader.stand_still(600, 600)
    assert not leader.handed
    assert leader.slow.word() == [5, -1]


def test_nobody_hands_over_for_what_another_has_handed_over_a_moment_ago() -> None:
    """The first leader's requests have come to the next one."""
    leader = Leader()
    leader.hear(three=[3, 40_000])
    leader.stand_still(*[600] * TURNS)
    assert not leader.handed
    assert leader.slow.word() == [3, -1], "what it has heard is not repeated"
    leader.wait(PAUSE_MS - 40_000 - 1)
    leader.stand_still(*[600] * TURNS)
    assert not leader.handed
    leader.wait(1)
    assert leader.handed == [TWO]


def test_a_transfer_under_way_is_left_alone_and_one_that_cannot_begin_is_tried_again() -> None:
    leader = Leader()
    leader.transferee = THREE
    leader.stand_still(*[600] * TURNS)
    assert not leader.handed
    leader.transferee, leader.deposed = NOBODY, True
    leader.wait(0)
    assert leader.slow.handed == 0
    leader.deposed = False
    leader.wait(0)
    assert leader.handed == [TWO]


@each_row("word", [[], [1], ["a", 1], [1, None], [-1, 0], [True, 1], 7, {}, [1 << 70, 1]])
def test_a_word_that_is_none_is_refused(word: Any) -> None:
    with pytest.raises(WireError):
        Leader().slow.heard(TWO, word)
