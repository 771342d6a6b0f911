"""The forecast of a follower's lag: it grows, shrinks, stays, turns, is noisy, or is not known yet."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from cluster.replication.lag.forecast import SAMPLES_MIN, SECONDS_MAX, Forecast, Kept, LagSample, forecast
from tests.support.rows import each_row

MIB = 1 << 20
DAY_MS = 86_400_000
KEPT = Kept(1_000 * MIB, 3 * DAY_MS)
FOR_EVER = Kept(0, 0)


def samples(size_bytes: Callable[[int], float], age_ms: Callable[[int], float], seconds: int = 60) -> list[LagSample]:
    return [LagSample(7_000 + 1_000 * at, int(size_bytes(at)), int(age_ms(at))) for at in range(seconds + 1)]


def test_a_lag_that_grows_reaches_the_size_that_is_kept() -> None:
    grows = samples(lambda at: at * MIB, lambda at: 500 * at)
    assert forecast(grows, KEPT) == Forecast(MIB, None, 940)
    assert forecast(grows, FOR_EVER) == Forecast(MIB, None, None)


def test_or_the_age_that_is_kept_if_that_comes_first() -> None:
    grows = samples(lambda at: at * MIB, lambda at: 500 * at)
    assert forecast(grows, Kept(1_000 * MIB, 60_000)) == Forecast(MIB, None, 60)
    assert forecast(grows, Kept(0, 60_000)) == Forecast(MIB, None, 60)


def test_a_lag_that_shrinks_is_gone_at_a_time() -> None:
    shrinks = samples(lambda at: (160 - at) * MIB, lambda at: 1_000 * (160 - at))
    assert forecast(shrinks, KEPT) == Forecast(-MIB, 100, None)


def test_a_lag_that_shrinks_too_slowly_loses_to_the_age() -> None:
    """Fewer bytes are missing each second, and yet the oldest of them is older: less arrives than before."""
    loses = samples(lambda at: (6_000 - at) * MIB, lambda at: 20_000 + 500 * at)
    assert forecast(loses, Kept(0, 60_000)) == Forecast(-MIB, 5_940, 20)


def test_what_is_beyond_what_is_kept_may_be_deleted_at_any_time() -> None:
    far = samples(lambda at: 2_000 * MIB, lambda at: 9_000)
    assert forecast(far, KEPT) == Forecast(0, None, 0)


def test_a_lag_that_stays_has_no_end() -> None:
    assert forecast(samples(lambda at: 300_000, lambda at: 1_000), KEPT) == Forecast(0)
    assert forecast(samples(lambda at: 0, lambda at: 0), KEPT) == Forecast(0)


@each_row("seed", range(40))
def test_noise_is_no_course(seed: int) -> None:
    """A sync of 800 ms takes what has arrived meanwhile: the lag is anything up to that."""
    rng = random.Random(seed)
    noisy = samples(lambda at: rng.uniform(0, 2 * MIB), lambda at: rng.uniform(0, 1_000))
    assert forecast(noisy, KEPT) == Forecast(0)


@each_row("seed", range(40))
def test_a_course_shows_through_noise(seed: int) -> None:
    rng = random.Random(seed)
    noisy = samples(lambda at: at * MIB + rng.uniform(0, 8 * MIB), lambda at: 500 * at + rng.uniform(0, 3_000))
    found = forecast(noisy, KEPT)
    assert found is not None
    assert found.bytes_per_s == pytest.approx(MIB, rel=0.15)
    assert found.snapshot_in_s == pytest.approx(940, rel=0.15)


def test_a_disk_that_is_well_again_shows_within_ten_seconds() -> None:
    turns = samples(lambda at: (at if at <= 50 else 50 - 4 * (at - 50)) * MIB, lambda at: 500 * min(at, 50))
    assert forecast(turns[:51], KEPT) == Forecast(MIB, None, 950)
    found = forecast(turns, KEPT)
    assert found is not None
    assert found.bytes_per_s == pytest.approx(-4 * MIB, rel=0.01)
    assert found.caught_up_in_s == 2


def test_a_disk_that_has_just_become_slow_shows_too() -> None:
    turns = samples(lambda at: max(0, at - 50) * MIB, lambda at: 500 * max(0, at - 50))
    found = forecast(turns, KEPT)
    assert found is not None
    assert found.bytes_per_s == pytest.approx(MIB, rel=0.01)


@each_row("count", range(SAMPLES_MIN))
def test_few_samples_are_no_forecast(count: int) -> None:
    assert forecast(samples(lambda at: at * MIB, lambda at: at)[:count], KEPT) is None


def test_many_samples_of_a_short_time_are_none_either() -> None:
    assert forecast([LagSample(at, at * MIB, at) for at in range(100)], KEPT) is None


def test_samples_of_one_moment_are_no_division_by_zero() -> None:
    assert forecast([LagSample(5, 9, 9)] * 9, KEPT) is None
    assert forecast([*[LagSample(5, 9, 9)] * 9, LagSample(60_005, 9, 9)], KEPT) == Forecast(0)


def test_a_moment_far_away_is_no_forecast() -> None:
    grows = samples(lambda at: 2_000 * at, lambda at: 10 * at)
    assert forecast(grows, Kept(2_000 * (SECONDS_MAX + 100), 0)) == Forecast(2_000, None, None)
    assert forecast(grows, Kept(2_000 * SECONDS_MAX, 0)) == Forecast(2_000, None, SECONDS_MAX - 60)
