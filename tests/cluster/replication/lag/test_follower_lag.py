"""The lag of followers as their leader measures it once a second, and as it forgets it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.storage_sections import RetentionSection
from cluster.replication.lag.follower_lag import EVERY_MS, FETCHES, FollowerLag, Lag
from cluster.replication.lag.forecast import Forecast
from raftlog.core.status import PeerStatus
from raftlog.errors import DamagedLogError
from raftlog.types import NodeId, Role
from tests.support.node_kit import Clock

TWO, THREE = NodeId(2), NodeId(3)
ENTRY = 1_000
MIB = 1 << 20


class Leader:
    """Node 1, whose log takes 100 entries of ENTRY bytes in a second. Node 2 takes them all, node 3 half of them."""

    def __init__(self, rules: RetentionSection | None = None) -> None:
        self.clock = Clock()
        self.last = 0
        self.lost: range | None = None
        self.matches = {TWO: 0, THREE: 0}
        self.state = "REPLICATE"
        raw: Any = SimpleNamespace(role=Role.LEADER, term=3, status=lambda: SimpleNamespace(peers=self.peers()))
        self.raw = raw
        log: Any = self
        self.lag = FollowerLag(raw, log, rules or RetentionSection())
        self.first_index, self.first_position, self.segment_size = 0, 0, 2 * MIB

    # the log
    @property
    def tail(self) -> Any:
        return SimpleNamespace(index=self.last, end_position=self.position_of(self.last + 1))

    def position_of(self, index: int) -> int:
        if self.lost is not None and index in self.lost:
            raise DamagedLogError("lost", position=index * ENTRY, first_index=index, last_index=index)
        return index * ENTRY

    def peers(self) -> list[PeerStatus]:
        return [
            PeerStatus(node, match, match + 1, self.state, True, self.last - match, 0, 0, True, True)
            for node, match in self.matches.items()
        ]

    def seconds(self, count: int, two: int = 100, three: int = 50) -> None:
        for _ in range(count):
            self.last += 100
            self.matches[TWO] += two
            self.matches[THREE] += three
            self.clock.now_ms += EVERY_MS
            self.lag.tick(self.clock.now_ms)

    def of(self, node: NodeId) -> Lag:
        return self.lag.of(next(peer for peer in self.peers() if peer.node_id == node), self.clock.now_ms)


def test_a_lag_has_bytes_and_an_age() -> None:
    leader = Leader()
    leader.seconds(20)
    assert leader.of(TWO) == Lag(0, 0)
    assert leader.of(THREE) == Lag(1_000 * ENTRY, 9_990)
    leader.first_index, leader.first_position = 1_500, 1_500 * ENTRY
    assert leader.of(THREE).size_bytes == 501 * ENTRY, "the log begins above what it lacks"


def test_a_place_that_was_lost_stops_nothing() -> None:
    leader = Leader()
    leader.seconds(20)
    leader.lost = range(900, 1_100)
    leader.seconds(1, three=0)
    assert leader.of(THREE).size_bytes == 2_101 * ENTRY
    assert leader.of(TWO).size_bytes == 0


def test_its_forecast_follows_the_rules_of_retention() -> None:
    leader = Leader(RetentionSection(hours=0, bytes_max=10 * MIB))
    leader.seconds(21)
    assert leader.lag.forecast_of(TWO) == Forecast(0)
    assert leader.lag.forecast_of(THREE) == Forecast(50 * ENTRY, None, (8 * MIB - 1_050 * ENTRY) // (50 * ENTRY))
    leader.lag.reload(RetentionSection(hours=0, bytes_max=2 * MIB))
    leader.seconds(1)
    grown = leader.lag.forecast_of(THREE)
    assert grown is not None
    assert grown.snapshot_in_s == 0, "of one segment, half stays at least: it is beyond that"
    leader.lag.reload(RetentionSection(ms=60_000))
    leader.seconds(1)
    aged = leader.lag.forecast_of(THREE)
    assert aged is not None
    assert aged.snapshot_in_s == pytest.approx(97, abs=3), "its first entries are older than the first sample"


def test_a_lag_that_shrinks_ends() -> None:
    leader = Leader()
    leader.seconds(40, three=0)
    leader.seconds(20, three=200)
    assert leader.lag.forecast_of(THREE) == Forecast(-100 * ENTRY, 20, None)


def test_another_term_begins_anew() -> None:
    leader = Leader()
    leader.seconds(20)
    assert leader.lag.forecast_of(THREE) is not None
    leader.raw.term += 1
    leader.seconds(3)
    assert leader.lag.forecast_of(THREE) is None
    leader.seconds(4)
    assert leader.lag.forecast_of(THREE) is not None


def test_a_follower_has_no_forecasts_and_knows_the_ages_when_it_begins_to_lead() -> None:
    node = Leader()
    node.raw.role = Role.FOLLOWER
    node.seconds(20)
    assert node.lag.forecast_of(THREE) is None
    node.raw.role = Role.LEADER
    assert node.of(THREE) == Lag(1_000 * ENTRY, 9_990)


def test_a_follower_that_fetches_a_snapshot_has_no_forecast() -> None:
    leader = Leader()
    leader.seconds(20)
    leader.state = FETCHES
    leader.seconds(1)
    assert leader.lag.forecast_of(THREE) is None


def test_a_leader_that_stood_still_forgets_what_was_before() -> None:
    leader = Leader()
    leader.seconds(20)
    leader.clock.now_ms += 600_000
    leader.seconds(1)
    assert leader.lag.forecast_of(THREE) is None
