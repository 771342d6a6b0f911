"""Turns filters of a query into bounds of a read: topics, queues, offsets and log time.

The bounds only make the plan smaller; `filter_rows` decides about the rows that are read. Spark applies every filter
once more to the rows, so results are the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyspark_raftmq.filter_rows import micros
from raftmq.arrow.ranges import Catalog, QueueRange


class Narrowing(NamedTuple):
    """The bounds that filters set for a read; None means no bound. Ends are exclusive; times are milliseconds since the
    epoch."""

    topics: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    first: int = 0
    end: int | None = None
    since_ms: int | None = None
    before_ms: int | None = None


NOTHING = Narrowing()
_US = 1000
_I64_MAX = (1 << 63) - 1


def narrowing_of(filters: Iterable[Any]) -> Narrowing:
    """Returns the bounds that follow from these filters; a row must satisfy all of them. Filters that do not concern a
    row's topic, queue, offset or time are ignored."""
    found = NOTHING
    for each in filters:
        values = _values(each)
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else ""
        if not values:
            continue
        if column == "topic" and _is_equality(each) and all(isinstance(value, str) for value in values):
            found = found._replace(topics=_both(found.topics, frozenset(values)))
        elif column == "queue_id" and _is_equality(each) and all(type(value) is int for value in values):
            found = found._replace(queues=_both(found.queues, frozenset(values)))
        elif column == "queue_offset" and all(type(value) is int for value in values):
            first, end = _interval(each, values)
            found = found._replace(first=max(found.first, first or 0), end=_lower(found.end, end))
        elif column == "store_ms" and all(type(value) is int for value in values):
            since, before = _interval(each, values)
            found = found._replace(since_ms=_higher(found.since_ms, since), before_ms=_lower(found.before_ms, before))
        elif column == "store_time":
            times = [micros(value) for value in values]
            if None not in times:
                # Log time has whole milliseconds, so a bound in microseconds is rounded up to the next one.
                since, before = (None if bound is None else -(-bound // _US) for bound in _interval(each, times))
                found = found._replace(
                    since_ms=_higher(found.since_ms, since), before_ms=_lower(found.before_ms, before)
                )
    return found


def narrow(ranges: Sequence[QueueRange], by: Narrowing, catalog: Catalog) -> list[QueueRange]:
    """Returns the part of the ranges in which matching rows may be. Log time never decreases within a queue, so a time
    corresponds to an offset."""
    found = []
    for planned in ranges:
        if (by.topics is not None and planned.topic not in by.topics) or (
            by.queues is not None and planned.queue_id not in by.queues
        ):
            continue
        start, end = max(planned.start, by.first), min(planned.end, math.inf if by.end is None else by.end)
        if start < end and by.since_ms is not None:
            start = max(start, catalog.offset_at(planned.topic, planned.queue_id, _asked(by.since_ms)))
        if start < end and by.before_ms is not None:
            end = min(end, catalog.offset_at(planned.topic, planned.queue_id, _asked(by.before_ms)))
        if start < end:
            found.append(planned._replace(start=start, end=int(end)))
    return found


def _values(each: Any) -> tuple[Any, ...]:
    """Returns the constants of a comparison; () for any other filter."""
    name = type(each).__name__
    if name == "In":
        return tuple(each.value)
    is_comparison = name in ("EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
    return (each.value,) if is_comparison else ()


def _is_equality(each: Any) -> bool:
    return type(each).__name__ in ("EqualTo", "In")


def _interval(each: Any, values: Sequence[Any]) -> tuple[int | None, int | None]:
    """Returns the interval (lowest, one above the highest) that contains all whole numbers that satisfy the filter;
    None in place of a bound that the filter does not set."""
    name = type(each).__name__
    low, high = min(values), max(values)
    if name in ("GreaterThan", "GreaterThanOrEqual"):
        return low + (name == "GreaterThan"), None
    if name in ("LessThan", "LessThanOrEqual"):
        return None, high + (name == "LessThanOrEqual")
    return low, high + 1


def _asked(ms: int) -> int:
    """Returns the time clamped to the range that a request can hold; the cluster's answer is the same."""
    return min(max(0, ms), _I64_MAX)


def _both(one: frozenset[Any] | None, other: frozenset[Any]) -> frozenset[Any]:
    return other if one is None else one & other


def _lower(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def _higher(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)
