"""Turns filters of a query into a filter of rows that tasks apply before rows become columns and go to Java.

A task uses only filters that it can decide exactly as Spark would. The rest, such as those on bodies and properties, or
with a value of another type than the column, stay with Spark, which applies every filter once more in any case.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from raftmq.arrow.columns import COLUMNS
from raftmq.arrow.row_filter import IS_IN, IS_NULL, SAME, Condition, RowFilter

_KINDS = {
    "EqualTo": "equal",
    "EqualNullSafe": SAME,
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "In": IS_IN,
    "IsNull": IS_NULL,
    "StringStartsWith": "starts_with",
    "StringEndsWith": "ends_with",
    "StringContains": "match_substring",
}
"""Class of a Spark filter -> kind of a `Condition`."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_I64_MAX = (1 << 63) - 1


class _Undecided(Exception):
    """Raised for a filter that only Spark can decide."""


def row_filter_of(filters: Iterable[Any]) -> RowFilter | None:
    """Returns the filter of rows that follows from these filters, joined by AND; None if it would keep all rows."""
    found = []
    for each in filters:
        try:
            found.append(_condition(each))
        except _Undecided:
            continue
    return RowFilter(tuple(found)) if found else None


def _condition(each: Any) -> Condition:
    """Returns the condition that decides the filter. Raises _Undecided."""
    name = type(each).__name__
    if name == "Not":
        inner = _condition(each.child)
        return inner._replace(negated=not inner.negated)
    if name == "IsNotNull":
        return Condition(_column(each), IS_NULL, negated=True)
    if name not in _KINDS:
        raise _Undecided
    kind, column = _KINDS[name], _column(each)
    if kind == IS_NULL:
        return Condition(column, kind)
    if kind == IS_IN:
        return Condition(column, kind, tuple(None if value is None else _value(column, value) for value in each.value))
    if kind == SAME and each.value is None:
        return Condition(column, kind)
    return Condition(column, kind, _value(column, each.value))


def _column(each: Any) -> str:
    if len(each.attribute) != 1 or COLUMNS.get(each.attribute[0]) not in ("string", "int32", "int64", *_TIMES):
        raise _Undecided
    return str(each.attribute[0])


_TIMES = ("timestamp[us, UTC]",)


def _value(column: str, value: Any) -> str | int:
    """Returns the value in the form in which tasks compare it with the column: str or int. Raises _Undecided for a
    value of another type."""
    if COLUMNS[column] == "string":
        if type(value) is not str:
            raise _Undecided
        return value
    number = micros(value) if COLUMNS[column] in _TIMES else value
    if type(number) is not int or not -_I64_MAX <= number <= _I64_MAX:
        raise _Undecided
    return number


def micros(value: Any) -> int | None:
    """Returns an aware time as microseconds since the epoch, exactly; None for any other value."""
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND
