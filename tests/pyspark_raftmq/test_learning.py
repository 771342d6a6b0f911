"""Limits that were learnt from two weeks of generated traffic, and the two weeks after them in shadow mode."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cluster.replication.learnt_use import BURST_MS, TopicUse
from pyspark_raftmq.jobs.learning import (
    FLOOR,
    FLOOR_BYTES,
    HEADROOM,
    PEAK,
    SPAN_MS,
    SPAN_S,
    STRAYS,
    HourCounts,
    Straying,
    hours_for,
    limits_of,
)
from raftmq_wire.learnt_file import DAY, WEEK, TopicLimits, hour_of

HOUR_S, DAY_S = 3_600, 86_400
DAYS = 14
MONDAY_S = 1_796_601_600
"""2026-12-07 was a Monday."""


class Shape(NamedTuple):
    """The traffic of a topic: messages a second on average, how much the day and the weekend change that, how much a
    second strays beside chance, and bursts."""

    mean: float
    day: float = 0.8
    weekend: float = 0.5
    noise: float = 0.2
    bursts_a_day: float = 0.0
    burst: float = 2.0
    """The mean of how many times more comes in one."""
    burst_s: int = 30
    growth: float = 0.0
    """Of a week, as a share."""
    size: int = 200


SHAPES = {
    "office": Shape(100, growth=0.03),
    "noisy": Shape(30, noise=0.6, weekend=1.0),
    "bursty": Shape(60, bursts_a_day=3.0),
    "seldom": Shape(0.05, noise=0.5),
}


def seconds(shape: Shape, seed: int, days: int = DAYS, begin_s: int = MONDAY_S) -> Any:
    """Returns the messages of each second."""
    rng = np.random.default_rng(seed)
    at_s = np.arange(begin_s, begin_s + days * DAY_S)
    mean = shape.mean * (1 + shape.day * np.sin(2 * np.pi * (at_s % DAY_S / DAY_S - 0.3)))
    mean *= np.where((at_s - MONDAY_S) // DAY_S % 7 >= 5, shape.weekend, 1.0)
    mean *= 1 + shape.growth * (at_s - MONDAY_S) / (7 * DAY_S)
    mean *= np.maximum(0.0, rng.normal(1.0, shape.noise, len(at_s)))
    for _ in range(rng.poisson(shape.bursts_a_day * days)):
        begin = rng.integers(len(at_s))
        mean[begin : begin + shape.burst_s] *= 1 + rng.exponential(shape.burst)
    return rng.poisson(mean)


def quantile(values: Any, share: float) -> float:
    """As percentile_approx has it: the least value that at least this share of them does not exceed."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def counted(topic: str, size: int, traffic: Any, begin_s: int = MONDAY_S) -> tuple[list[HourCounts], Straying]:
    """What the job counts (`pyspark_raftmq.jobs.traffic.counted`, whose test has the same figures)."""
    spans = traffic.reshape(-1, SPAN_S).sum(axis=1)
    at_ms = (begin_s + SPAN_S * np.arange(len(spans))) * 1000
    hours = hour_of(at_ms, hours_for(int(at_ms[0]), int(at_ms[-1])))
    counts, factors = [], []
    for hour in range(WEEK):
        found = spans[(hours == hour) & (spans > 0)]
        if len(found):
            mean, peak = float(found.mean()), quantile(found, PEAK)
            counts.append(HourCounts(topic, hour, len(found), mean, peak, mean * size, peak * size))
            factors.append(found / mean)
    strays = quantile(np.concatenate(factors), STRAYS)
    return counts, Straying(strays, strays)


def learnt(topic: str, size: int, traffic: Any) -> TopicLimits:
    counts, straying = counted(topic, size, traffic)
    return limits_of(WEEK, counts, {topic: straying})[topic]


def test_shadow_mode_refuses_next_to_nothing_of_ordinary_traffic() -> None:
    """Each topic alone, and all together."""
    seen = over = 0
    for number, (topic, shape) in enumerate(SHAPES.items()):
        limits = learnt(topic, shape.size, seconds(shape, number))
        use, begin_s = TopicUse(topic), MONDAY_S + DAYS * DAY_S
        for at, count in enumerate(seconds(shape, 100 + number, DAYS, begin_s).tolist()):
            if at % HOUR_S == 0:
                place = hour_of((begin_s + at) * 1000, WEEK)
                use.limit(at // HOUR_S, limits.messages[place], limits.bytes[place])
            if count:
                use.came(at * 1000, count, count * shape.size)
        room = sum(limits.messages) * HOUR_S * DAYS / 7 / use.seen
        print(  # noqa: T201 - the figures
            f"{topic}: {use.over} of {use.seen} messages over ({use.over / use.seen:.4%}); limits "
            f"{min(limits.messages)} to {max(limits.messages)}, together {room:.1f} times what came"
        )
        assert use.over <= 0.001 * use.seen
        assert room < 10 or max(limits.messages) == FLOOR, "a limit says something"
        seen, over = seen + use.seen, over + use.over
    print(f"all: {over} of {seen} ({over / seen:.4%})")  # noqa: T201 - the figures
    assert over <= 0.001 * seen


def test_a_sale_is_over_the_limit_within_seconds() -> None:
    shape = Shape(100)
    limits = learnt("office", shape.size, seconds(shape, 5))
    use, place = TopicUse("office"), hour_of(MONDAY_S * 1000 + 10 * HOUR_S * 1000, WEEK)
    use.limit(0, limits.messages[place], limits.bytes[place])
    began = None
    for second in range(60):
        use.came(second * 1000, 10 * 130, 10 * 130 * shape.size)
        if use.is_over(second * 1000):
            began = second if began is None else began
    assert began is not None
    assert began <= 5
    assert use.over > 0.6 * use.seen


def test_a_sale_in_the_history_raises_its_own_hours_alone() -> None:
    """An hour with ten times the traffic, in one of the two weeks: what was learnt of other hours stays."""
    plain = seconds(Shape(40, day=0.1, weekend=1.0, noise=0.1), 7)
    sales, begin = plain.copy(), 3 * DAY_S + 12 * HOUR_S
    sales[begin : begin + HOUR_S] *= 10
    both = [learnt("t", 100, traffic).messages for traffic in (plain, sales)]
    hour = hour_of((MONDAY_S + begin) * 1000, WEEK)
    assert both[1][hour] > 5 * both[0][hour]
    others = [at for at in range(WEEK) if abs(at - hour) > 1]
    assert max(both[1][at] / both[0][at] for at in others) < 2.5


def test_hours_of_the_week_need_two_weeks() -> None:
    assert hours_for(0, 1000 * (DAYS * DAY_S - HOUR_S)) == WEEK
    assert hours_for(0, 1000 * (DAYS * DAY_S - HOUR_S) - 1) == DAY
    assert SPAN_MS == BURST_MS


def test_an_hour_without_traffic_has_the_lowest_limit_and_its_neighbours_count() -> None:
    counts = [HourCounts("t", 23, 360, 1_000.0, 2_000.0, 1e6, 2e6)]
    limits = limits_of(DAY, counts, {"t": Straying(3.0, 1.5)})["t"]
    expected = round(HEADROOM * 3_000 / SPAN_S), round(HEADROOM * 2e6 / SPAN_S)
    assert [(limits.messages[at], limits.bytes[at]) for at in (22, 23, 0)] == [expected] * 3
    assert set(limits.messages[1:22]) == {FLOOR}
    assert set(limits.bytes[1:22]) == {FLOOR_BYTES}
