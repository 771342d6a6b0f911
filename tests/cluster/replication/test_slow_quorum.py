"""The condition of `replication.degrade`: when the majority counts as slow, and its beginning and end."""

from __future__ import annotations

import pytest

from cluster.replication.acks.slow_quorum import (
    BEGIN_LOOKS,
    END_LOOKS,
    EVERY_MS,
    GAP_MS,
    OWN_FACTOR,
    STRAYS,
    SlowQuorum,
    wait_of,
)
from cluster.runtime.figures.stage_times import StageTimes
from tests.support.rows import each_row

BOUND_MS = 100
QUICK = 5.0, 5.0
SLOW = 300.0, 5.0


class Looks:
    """A condition that is looked at once a second."""

    def __init__(self) -> None:
        self.quorum = SlowQuorum()
        self.now_ms = 1_000_000

    def look(self, *found: tuple[float | None, float | None]) -> bool:
        for wait_ms, own_ms in found:
            self.now_ms += EVERY_MS
            self.quorum.look(self.now_ms, wait_ms, own_ms, BOUND_MS)
        return self.quorum.holds


@each_row(
    ("wait_ms", "own_ms", "slow"),
    [
        (300.0, 5.0, True),
        (100.0, 5.0, True),
        (99.0, 5.0, False),
        (300.0, 300.0 / OWN_FACTOR, True),
        (300.0, 300.0 / OWN_FACTOR + 1, False),
        (5000.0, 2000.0, False),
        (None, 5.0, False),
        (300.0, None, False),
        (0.0, 0.0, False),
    ],
)
def test_the_majority_is_slow_beyond_the_bound_and_beside_a_quick_leader(
    wait_ms: float | None, own_ms: float | None, slow: bool
) -> None:
    looks = Looks()
    assert looks.look(*[(wait_ms, own_ms)] * BEGIN_LOOKS) is slow
    assert looks.quorum.suspected is slow


@pytest.mark.parametrize("stray", [QUICK, (None, None)])
def test_it_begins_when_all_looks_in_a_row_but_one_were_slow(stray: tuple[float | None, float | None]) -> None:
    looks = Looks()
    assert not looks.look(*[SLOW] * (BEGIN_LOOKS - 1))
    assert looks.quorum.suspected
    assert not looks.look(*[stray] * (STRAYS + 1))
    assert not looks.look(*[SLOW] * (BEGIN_LOOKS - STRAYS - 1)), "the first look of the six was quick, and one more"
    assert looks.look(SLOW)
    assert (looks.quorum.wait_ms, looks.quorum.own_ms) == SLOW


def test_it_does_not_begin_with_a_quick_look() -> None:
    looks = Looks()
    assert not looks.look(*[SLOW] * (BEGIN_LOOKS - 1), QUICK)
    assert looks.look(SLOW)


@pytest.mark.parametrize("quick", [QUICK, (None, None)])
def test_it_ends_when_all_looks_but_one_were_not_slow(quick: tuple[float | None, float | None]) -> None:
    """Without sends, too."""
    looks = Looks()
    assert looks.look(*[SLOW] * BEGIN_LOOKS)
    assert looks.look(*[quick] * (END_LOOKS - STRAYS - 1))
    assert looks.look(SLOW), "two of ten"
    assert not looks.look(quick)
    assert looks.quorum.suspected
    assert not looks.look(*[quick] * END_LOOKS)
    assert not looks.quorum.suspected
    assert not looks.look(*[SLOW] * (BEGIN_LOOKS - STRAYS - 1)), "it begins as slowly as at first"


def test_looks_that_a_standstill_divides_are_not_in_a_row() -> None:
    looks = Looks()
    looks.look(*[SLOW] * (BEGIN_LOOKS - 1))
    looks.now_ms += GAP_MS
    assert not looks.look(SLOW)


def test_it_is_forgotten_at_once() -> None:
    looks = Looks()
    looks.look(*[SLOW] * BEGIN_LOOKS)
    looks.quorum.forget()
    assert not looks.quorum.suspected
    assert not looks.look(*[SLOW] * (BEGIN_LOOKS - 1))


def times(synced: list[tuple[int, float]], committed: list[tuple[int, float]]) -> StageTimes:
    stages = StageTimes()
    stages.synced.extend(synced)
    stages.committed.extend(committed)
    return stages


@each_row(
    ("synced", "committed", "wait_ms"),
    [
        ([], [], None),
        ([(3, 110.0), (5, 130.0)], [(3, 210.0), (5, 330.0)], 150.0),
        ([(3, 110.0), (5, 130.0), (6, 140.0)], [(5, 330.0)], 200.0),
        ([(5, 130.0)], [(3, 90.0), (5, 330.0)], 200.0),  # what was committed before the last look does not count
        ([(3, 110.0)], [(5, 330.0)], 0.0),  # not on the leader's disk yet
        ([(5, 340.0)], [(5, 330.0)], 0.0),  # a majority was quicker than the leader
        ([(3, 110.0), (5, 150.0)], [], 850.0),  # entry 4 waits
        ([(3, 110.0)], [(3, 90.0)], None),  # nothing waits
    ],
)
def test_the_wait_is_that_of_what_was_committed_or_that_of_the_oldest_that_waits(
    synced: list[tuple[int, float]], committed: list[tuple[int, float]], wait_ms: float | None
) -> None:
    stages = times(synced, committed)
    persisted = max((index for index, _ in synced), default=3)
    assert wait_of(stages, 100.0, 1000.0, persisted_index=persisted, commit_index=3) == wait_ms
