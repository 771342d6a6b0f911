"""Tasks keep exactly the rows that Spark's own filters keep: random filters over random rows, beside SQL's rules,
written out value by value."""

from __future__ import annotations

import datetime
import pickle
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds

from pyspark_raftmq.filter_rows import row_filter_of
from raftmq.arrow.columns import arrow_schema
from raftmq.arrow.row_filter import KINDS, RowFilter

NAMES = ("topic", "queue_id", "queue_offset", "tag", "keys", "store_ms", "store_time")
UTC = datetime.UTC
BASE = datetime.datetime(2026, 3, 29, 0, 59, 59, 999_000, tzinfo=UTC)
TEXTS = ("", "a", "A", "ab", "b", "ä", "a\u0000", "\U0001f600", "\uffff", "a%", ".*", "null")
COMPARISONS: dict[type[ds.Filter], Callable[[Any, Any], bool]] = {
    ds.EqualTo: lambda one, other: one == other,
    ds.GreaterThan: lambda one, other: one > other,
    ds.GreaterThanOrEqual: lambda one, other: one >= other,
    ds.LessThan: lambda one, other: one < other,
    ds.LessThanOrEqual: lambda one, other: one <= other,
    ds.StringStartsWith: lambda one, other: one.startswith(other),
    ds.StringEndsWith: lambda one, other: one.endswith(other),
    ds.StringContains: lambda one, other: other in one,
}


def in_bytes(value: Any) -> Any:
    """Spark compares texts by their bytes in UTF-8."""
    return value.encode() if isinstance(value, str) else value


def truth(each: Any, row: dict[str, Any]) -> bool | None:
    """What SQL says of the row: None is unknown."""
    if isinstance(each, ds.Not):
        inner = truth(each.child, row)
        return None if inner is None else not inner
    value = in_bytes(row[each.attribute[0]])
    if isinstance(each, ds.IsNull | ds.IsNotNull):
        return (value is None) == isinstance(each, ds.IsNull)
    if isinstance(each, ds.In):
        others = [in_bytes(other) for other in each.value]
        if value is None:
            return None
        return True if value in others else None if None in others else False
    other = in_bytes(each.value)
    if isinstance(each, ds.EqualNullSafe):
        return bool(value == other)
    return None if value is None or other is None else COMPARISONS[type(each)](value, other)


def any_row(chance: random.Random) -> dict[str, Any]:
    ms = chance.randrange(6)
    return {
        "topic": chance.choice(TEXTS[1:]),
        "queue_id": chance.randrange(-1, 4),
        "queue_offset": chance.choice([0, 1, 2, (1 << 63) - 1]),
        "tag": chance.choice([None, *TEXTS]),
        "keys": chance.choice([None, *TEXTS]),
        "store_ms": ms,
        "store_time": BASE + datetime.timedelta(milliseconds=ms),
    }


def any_value(chance: random.Random, column: str) -> Any:
    if column == "store_time":
        zone = datetime.timezone(datetime.timedelta(hours=chance.choice([-5, 0, 9])))
        return (BASE + datetime.timedelta(microseconds=chance.choice([-1, 0, 1, 2000, 2500, 9999]))).astimezone(zone)
    if column in ("topic", "tag", "keys"):
        return chance.choice(TEXTS)
    return chance.choice([-1, 0, 1, 2, 5, (1 << 63) - 1])


def any_filter(chance: random.Random) -> ds.Filter:
    column = chance.choice(NAMES)
    kinds: list[Any] = [*COMPARISONS, ds.In, ds.IsNull, ds.IsNotNull, ds.EqualNullSafe, ds.Not]
    kind = chance.choice(kinds[:5] + kinds[8:] if column not in ("topic", "tag", "keys") else kinds)
    if kind is ds.Not:
        return ds.Not(any_filter(chance))
    if kind in (ds.IsNull, ds.IsNotNull):
        return kind((column,))
    if kind is ds.In:
        some = [any_value(chance, column) for _ in range(chance.randrange(4))]
        return ds.In((column,), (*some, None) if chance.random() < 0.3 else tuple(some))
    value = None if kind is ds.EqualNullSafe and chance.random() < 0.3 else any_value(chance, column)
    return kind((column,), value)


def kept(found: RowFilter | None, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(NAMES))
    if found is None:
        return rows
    mask = pickle.loads(pickle.dumps(found)).keeps(batch)
    return [row for row, keep in zip(rows, mask, strict=True) if keep]


@pytest.mark.parametrize("seed", range(40))
def test_the_rows_are_those_that_sql_keeps(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        rows = [any_row(chance) for _ in range(20)]
        filters = [any_filter(chance) for _ in range(chance.randrange(1, 4))]
        found = row_filter_of(filters)
        assert found is not None
        assert len(found.conditions) == len(filters)
        assert kept(found, rows) == [row for row in rows if all(truth(each, row) for each in filters)], filters


def test_every_kind_of_condition_is_met() -> None:
    chance = random.Random(1)
    met = {each.kind for _ in range(600) for each in (row_filter_of([any_filter(chance)]) or RowFilter(())).conditions}
    assert met == set(KINDS)


def test_what_a_task_cannot_decide_stays_with_spark() -> None:
    naive = datetime.datetime(2026, 1, 1)  # noqa: DTZ001 - of no zone
    odd: list[ds.Filter] = [
        ds.EqualTo(("body",), b"x"),
        ds.EqualTo(("properties", "a"), "x"),
        ds.IsNull(("properties",)),
        ds.EqualTo(("queue_id",), 1.0),
        ds.EqualTo(("queue_id",), True),
        ds.EqualTo(("tag",), 1),
        ds.GreaterThan(("queue_offset",), 1 << 64),
        ds.LessThan(("store_time",), naive),
        ds.LessThan(("store_time",), 5),
        ds.In(("queue_id",), (1, "1")),
        ds.Not(ds.EqualTo(("body",), b"x")),
        ds.EqualTo(("another",), 1),
    ]
    assert row_filter_of(odd) is None
    only = row_filter_of([*odd, ds.EqualTo(("tag",), "a")])
    assert only is not None
    assert only.columns == ("tag",)
