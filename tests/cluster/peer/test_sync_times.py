"""The mean time of a sync: a node's own, what it tells its peers, and whose disk is slower."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.peer.sync_times import EVERY_MS, SYNC_US_MAX, TOLD_MS, WINDOW, SyncTimes
from cluster.runtime.peer_frames import WireError
from raftlog.types import NodeId
from tests.support.node_kit import Clock
from tests.support.rows import each_row

TWO, THREE, FOUR = NodeId(2), NodeId(3), NodeId(4)


class One:
    """The sync times of node 1."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.syncs, self.seconds = 0, 0.0
        self.times = SyncTimes(NodeId(1), self.clock, lambda: (self.syncs, self.seconds), 1_000)
        self.times.tick(self.clock.now_ms)

    def second(self, syncs: int, each_s: float) -> None:
        self.syncs, self.seconds = self.syncs + syncs, self.seconds + syncs * each_s
        self.clock.now_ms += EVERY_MS
        self.times.tick(self.clock.now_ms)


def test_the_mean_is_that_of_the_last_seconds() -> None:
    one = One()
    assert (one.times.own_ms, one.times.word()) == (None, -1)
    one.second(300, 0.002)
    assert one.times.own_ms == pytest.approx(2.0)
    for _ in range(WINDOW):
        one.second(1, 0.8)
    assert one.times.own_ms == pytest.approx(800.0)
    assert one.times.word() == pytest.approx(800_000, abs=1)
    for _ in range(WINDOW):
        one.second(0, 0.0)
    assert (one.times.own_ms, one.times.word()) == (None, -1)


def test_a_majority_syncs_as_fast_as_its_slowest_known_disk() -> None:
    one = One()
    assert one.times.of_majority((NodeId(1), TWO, THREE)) == 0.0
    one.second(100, 0.002)
    assert one.times.of_majority((NodeId(1), TWO, THREE)) == pytest.approx(2.0)
    one.times.heard(TWO, 30_000)
    assert one.times.of_majority((NodeId(1), TWO, THREE)) == pytest.approx(30.0)
    one.times.heard(THREE, 5_000)
    assert one.times.of_majority((NodeId(1), TWO, THREE)) == pytest.approx(5.0)
    assert one.times.of_majority((NodeId(1),)) == pytest.approx(2.0)
    assert one.times.of_majority((TWO, THREE)) == pytest.approx(30.0)


def test_between_two_seconds_nothing_is_counted() -> None:
    one = One()
    one.syncs, one.seconds = 5, 4.0
    one.clock.now_ms += EVERY_MS - 1
    one.times.tick(one.clock.now_ms)
    assert one.times.own_ms is None


def test_a_peers_report_is_valid_for_a_while() -> None:
    one = One()
    assert one.times.of(TWO) is None
    one.times.heard(TWO, 812_000)
    one.clock.now_ms += TOLD_MS
    assert one.times.of(TWO) == 812.0
    one.clock.now_ms += 1
    assert one.times.of(TWO) is None
    one.times.reload(60_000)
    assert one.times.of(TWO) == 812.0, "its PINGs come once a minute"


@pytest.mark.parametrize("word", [None, -1])
def test_a_peer_that_reports_none_has_none(word: Any) -> None:
    one = One()
    one.times.heard(TWO, 812_000)
    one.times.heard(TWO, word)
    assert one.times.of(TWO) is None


@each_row("word", [-2, True, 1.5, "7", [7], SYNC_US_MAX + 1])
def test_a_malformed_report_is_refused(word: Any) -> None:
    with pytest.raises(WireError):
        One().times.heard(TWO, word)


@each_row(
    ("two_ms", "three_ms", "slower"),
    [
        (800, 2, True),
        (52, 2, True),
        (30, 0.3, False),  # an idle disk's noise
        (149, 50, False),  # not three times as long
        (800, 790, False),  # all are slow
        (2, 800, False),
        (800, None, False),  # nothing to compare it with
        (None, 2, False),
    ],
)
def test_a_disk_is_slower_beyond_noise(two_ms: float | None, three_ms: float | None, slower: bool) -> None:
    one = One()
    for node, sync_ms in ((TWO, two_ms), (THREE, three_ms)):
        one.times.heard(node, None if sync_ms is None else int(1000 * sync_ms))
    assert one.times.is_slower(TWO, (TWO, THREE)) is slower
    assert not one.times.is_slower(FOUR, (TWO, THREE))


def test_a_peers_disk_is_compared_with_this_nodes_own() -> None:
    one = One()
    one.times.heard(TWO, 800_000)
    assert not one.times.is_slower(TWO, (NodeId(1),))
    one.second(100, 0.002)
    assert one.times.is_slower(TWO, (NodeId(1),))
    assert not one.times.is_slower(NodeId(1), (TWO,))
