"""The meaning of a filter: operands and conditions as closures over a message's properties, in three-valued logic.

A condition is True, False or None (unknown); a message is wanted if the whole filter is True. What may stand where, and
the value of every operator for missing operands, are RocketMQ's. Source: UnaryExpression, ComparisonExpression,
LogicExpression and SelectorParser.jj of RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from cluster.broker.filters.errors import FilterError
from cluster.broker.filters.java_values import NUMBERS, Kind, comparison, ordering

DEPTH_MAX = 100
"""Of operators within operators: evaluation takes one frame of the stack for each."""

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Any]
"""None: missing, or unknown. Raises IncomparableError."""


class Role(Enum):
    """What kind of expression an operand is: the grammar allows more than the operators do."""

    PROPERTY = auto()
    LITERAL = auto()
    CONDITION = auto()
    NEGATIVE = auto()
    """-x."""


class Operand(NamedTuple):
    """A part of a filter."""

    role: Role
    kind: Kind
    at: int
    """Its first character, counted from 1."""
    depth: int
    evaluate: Evaluate
    literal: Any = None
    """The value of a LITERAL."""
    text: str = ""
    """A PROPERTY's name, or a LITERAL as it is written."""


def property_(name: str, at: int) -> Operand:
    """The value of a property."""
    return Operand(Role.PROPERTY, Kind.TEXT, at, 1, lambda properties: properties.get(name), text=name)


def literal(kind: Kind, value: Any, text: str, at: int) -> Operand:
    """A constant."""
    return Operand(Role.LITERAL, kind, at, 1, lambda properties: value, value, text)


def negative(of: Operand) -> Operand:
    """-x: missing unless x is a number, which only a literal can be."""
    inner = of.evaluate
    if of.kind in NUMBERS:
        return _made(Role.NEGATIVE, of.kind, (of,), lambda properties: -inner(properties))

    def evaluate(properties: Properties) -> None:
        inner(properties)

    return _made(Role.NEGATIVE, Kind.MISSING, (of,), evaluate)


def not_(of: Operand) -> Operand:
    """NOT x."""
    inner = _truth(of)

    def evaluate(properties: Properties) -> bool | None:
        value: bool | None = inner(properties)
        return None if value is None else not value

    return _condition((of,), evaluate)


def and_(operands: Sequence[Operand]) -> Operand:
    """x AND y AND z: from left to right up to the first that is false; those behind it may be incomparable."""
    return _joined(operands, decides=False)


def or_(operands: Sequence[Operand]) -> Operand:
    """x OR y OR z: from left to right up to the first that is true."""
    return _joined(operands, decides=True)


def equal(left: Operand, right: Operand) -> Operand:
    """x = y. A missing x is unknown, a missing y is false, two missing ones are equal."""
    for operand in (left, right):
        if operand.role is Role.LITERAL and operand.literal is None:
            raise FilterError("nothing compares with NULL, which is asked for with IS NULL", operand.at)
    if left.role is right.role is Role.LITERAL and left.kind is Kind.BOOLEAN is not right.kind:
        raise FilterError(f"{left.text} is not compared with {right.text}", right.at)
    return _equal(left, right)


def is_null(of: Operand) -> Operand:
    """x IS NULL."""
    return _equal(of, literal(Kind.MISSING, None, "NULL", of.at))


def ordered(left: Operand, right: Operand, holds: Callable[[int], bool]) -> Operand:
    """x < y and its like; `holds` judges the outcome of the comparison. Unknown if either is missing."""
    for operand in (left, right):
        if operand.role is Role.CONDITION or (operand.role is Role.LITERAL and operand.kind not in NUMBERS):
            what = operand.text or "a condition"
            raise FilterError(f"{what[:40]} has no order, only numbers and properties have", operand.at)
    compare, left_of, right_of = ordering(left.kind, right.kind), left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        a = left_of(properties)
        if a is None:
            return None
        b = right_of(properties)
        return None if b is None else holds(compare(a, b))

    return _condition((left, right), evaluate)


def between(of: Operand, low: Operand, high: Operand) -> Operand:
    """x BETWEEN low AND high, both included."""
    within = and_((ordered(of, low, at_least), ordered(of, high, at_most)))
    if low.role is high.role is Role.LITERAL and comparison(low.kind, high.kind)(low.literal, high.literal) > 0:
        raise FilterError(f"BETWEEN {low.text} AND {high.text} begins above its end", low.at)
    return within


def not_between(of: Operand, low: Operand, high: Operand) -> Operand:
    """x NOT BETWEEN low AND high."""
    return or_((ordered(of, low, below), ordered(of, high, above)))


def in_(of: Operand, texts: Sequence[str]) -> Operand:
    """x IN (...), by text; unknown if the property is missing."""
    if of.role is not Role.PROPERTY:
        raise FilterError("only a property can be IN a list, and this is none", of.at)
    inner, wanted = of.evaluate, frozenset(texts)

    def evaluate(properties: Properties) -> bool | None:
        value = inner(properties)
        return None if value is None else value in wanted

    return _condition((of,), evaluate)


def matches_text(of: Operand, test: Callable[[str, str], bool], text: str, *, wanted: bool) -> Operand:
    """x CONTAINS 'text' and its like, or with `wanted=False` x NOT CONTAINS 'text'.

    False rather than unknown if x is missing or no text, or if 'text' is empty, also behind NOT.
    """
    inner = of.evaluate

    def evaluate(properties: Properties) -> bool:
        value = inner(properties)
        return type(value) is str and text != "" and test(value, text) is wanted

    return _condition((of,), evaluate)


def whole(of: Operand) -> Evaluate:
    """The filter that the operand is. Raises FilterError if it is not a condition."""
    return _truth(of)


def above(outcome: int) -> bool:
    """For `ordered`: >."""
    return outcome > 0


def at_least(outcome: int) -> bool:
    """For `ordered`: >=."""
    return outcome >= 0


def below(outcome: int) -> bool:
    """For `ordered`: <."""
    return outcome < 0


def at_most(outcome: int) -> bool:
    """For `ordered`: <=."""
    return outcome <= 0


def _equal(left: Operand, right: Operand) -> Operand:
    compare, left_of, right_of = comparison(left.kind, right.kind), left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        a, b = left_of(properties), right_of(properties)
        if a is None:
            return True if b is None else None
        return b is not None and compare(a, b) == 0

    return _condition((left, right), evaluate)


def _joined(operands: Sequence[Operand], decides: bool) -> Operand:
    truths = [_truth(operand) for operand in operands]

    def evaluate(properties: Properties) -> bool | None:
        value: bool | None = not decides
        for truth in truths:
            each: bool | None = truth(properties)
            if each is decides:
                return decides
            if each is None:
                value = None
        return value

    return _condition(operands, evaluate)


def _truth(of: Operand) -> Evaluate:
    """The operand as a condition. A property is never TRUE, whatever its text: it is text, or missing."""
    if of.role is Role.PROPERTY:
        inner = of.evaluate
        return lambda properties: None if inner(properties) is None else False
    if of.role is Role.CONDITION or (of.role is Role.LITERAL and of.kind in (Kind.BOOLEAN, Kind.MISSING)):
        return of.evaluate
    raise FilterError(f"{of.text[:40] or 'a number'} is not a condition", of.at)


def _condition(operands: Sequence[Operand], evaluate: Evaluate) -> Operand:
    return _made(Role.CONDITION, Kind.BOOLEAN, operands, evaluate)


def _made(role: Role, kind: Kind, operands: Sequence[Operand], evaluate: Evaluate) -> Operand:
    depth = 1 + max([operand.depth for operand in operands])
    if depth > DEPTH_MAX:
        raise FilterError(f"the filter is nested deeper than {DEPTH_MAX} operators", operands[0].at)
    return Operand(role, kind, operands[0].at, depth, evaluate)
