"""Filters make the plan smaller, and never leave out a row that they would keep."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNull, LessThan
from pyspark.sql.datasource import LessThanOrEqual as AtMost

from pyspark_raftmq.filter_bounds import NOTHING, Narrowing, narrow, narrowing_of
from raftmq.arrow.ranges import QueueRange


class Times:
    """Every tenth millisecond something was stored: offset n at 10 n. Two neighbours share a time."""

    def describe_topic(self, name: str) -> Any:
        raise NotImplementedError

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        return next((offset for offset in range(100) if stored_ms(offset) >= timestamp_ms), 100)


def stored_ms(offset: int) -> int:
    return offset // 2 * 20


RANGES = [QueueRange(topic, queue, 5, 90) for topic in ("a", "b") for queue in range(3)]
ROWS = [(each.topic, each.queue_id, offset) for each in RANGES for offset in range(each.start, each.end)]
UTC = datetime.UTC


def keeps(each: Filter, row: tuple[str, int, int]) -> bool:
    values: dict[str, Any] = {
        "topic": row[0],
        "queue_id": row[1],
        "queue_offset": row[2],
        "store_ms": stored_ms(row[2]),
    }
    values["store_time"] = datetime.datetime.fromtimestamp(values["store_ms"] / 1000, UTC)
    value = values[each.attribute[0]]
    match each:
        case EqualTo():
            return bool(value == each.value)
        case In():
            return value in each.value
        case GreaterThan():
            return bool(value > each.value)
        case GreaterThanOrEqual():
            return bool(value >= each.value)
        case LessThan():
            return bool(value < each.value)
        case AtMost():
            return bool(value <= each.value)
    return True


def any_filter(chance: random.Random) -> Filter:
    number = chance.randrange(-5, 110)
    column: str = chance.choice(["queue_id", "queue_offset", "store_ms", "store_time"])
    value: Any = number if column == "queue_offset" else number * 20 if column == "store_ms" else number % 4
    if column == "store_time":
        value = datetime.datetime.fromtimestamp(number * 20 / 1000, UTC)
        value += datetime.timedelta(microseconds=chance.choice([-1, 0, 0, 1, 500]))
    kind: Any = chance.choice([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, AtMost, In])
    if chance.random() < 0.2:
        return EqualTo(("topic",), chance.choice(["a", "b", "c"]))
    return In((column,), (value, value)) if kind is In else kind((column,), value)


@pytest.mark.parametrize("seed", range(60))
def test_no_row_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    filters = [any_filter(chance) for _ in range(chance.randrange(1, 4))]
    left = {
        (each.topic, each.queue_id, offset)
        for each in narrow(RANGES, narrowing_of(filters), Times())
        for offset in range(each.start, each.end)
    }
    assert left <= set(ROWS)
    assert {row for row in ROWS if all(keeps(each, row) for each in filters)} <= left


def test_the_plan_is_as_small_as_it_can_be() -> None:
    filters = [EqualTo(("topic",), "a"), In(("queue_id",), (0, 2)), GreaterThan(("queue_offset",), 9)]
    assert narrow(RANGES, narrowing_of([*filters, AtMost(("store_ms",), 300)]), Times()) == [
        QueueRange("a", 0, 10, 32),
        QueueRange("a", 2, 10, 32),
    ]
    assert narrow(RANGES, narrowing_of([EqualTo(("topic",), "c")]), Times()) == []


@pytest.mark.parametrize(
    ("each", "bounds"),
    [
        (GreaterThan, (301, None)),
        (GreaterThanOrEqual, (301, None)),
        (LessThan, (None, 301)),
        (AtMost, (None, 301)),
        (EqualTo, (301, 301)),
    ],
)
def test_a_time_finer_than_log_time_is_a_bound_too(each: Any, bounds: tuple[int | None, int | None]) -> None:
    time = datetime.datetime.fromtimestamp(0.3, UTC) + datetime.timedelta(microseconds=1)
    found = narrowing_of([each(("store_time",), time)])
    assert (found.since_ms, found.before_ms) == bounds


def test_what_is_not_understood_limits_nothing() -> None:
    naive = datetime.datetime(2026, 1, 1)  # noqa: DTZ001 - of no zone
    odd: list[Filter] = [
        IsNull(("tag",)),
        EqualTo(("tag",), "x"),
        EqualTo(("queue_id", "inner"), 1),
        GreaterThan(("store_time",), naive),
        GreaterThan(("queue_offset",), 1.5),
        GreaterThan(("topic",), "a"),
    ]
    assert narrowing_of(odd) == NOTHING == Narrowing()
