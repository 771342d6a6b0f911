"""Defines what a filter means: turns operands and conditions into closures over a message's properties, in three-valued
logic.

Each operator is made twice from the same function: over closures that read the properties, and over terms that remember
their results, so that a filter can stop before a term and continue there in a later turn (`stepwise_evaluation`). A
term is a condition that contains no other condition.

A condition is True, False or None (unknown); a message is selected if the whole filter is True. A function that makes
an operator raises FilterError if its operands do not fit it, or if the filter is nested too deeply. The grammar, and
the value of every operator for missing operands, are RocketMQ's. Source: UnaryExpression, ComparisonExpression,
LogicExpression and SelectorParser.jj of RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from cluster.broker.filters.java_values import NUMBERS, FilterError, ValueKind, comparison, contains, ordering
from cluster.broker.filters.stepwise_evaluation import COMPARES, FREE, READS_NUMBERS, FilterCost, Resume, searches, term

DEPTH_MAX = 100
"""The deepest nesting of operators in a filter. Evaluating a filter takes one stack frame for each level."""

Properties = Mapping[str, str]
Evaluate = Callable[[Any], Any]
"""Computes the value of an operand from a message's properties, or from a `stepwise_evaluation.Judging` of them. The
value None means missing or unknown. Raises IncomparableError if two values cannot be compared."""
Make = Callable[..., Evaluate]
"""Makes the closure of an operator from the closures of its operands."""


class OperandRole(Enum):
    """The kind of expression that an operand is. The grammar accepts more combinations than the operators do."""

    PROPERTY = auto()
    LITERAL = auto()
    CONDITION = auto()
    NEGATIVE = auto()
    """The negation of an operand, -x."""


class Operand(NamedTuple):
    """A part of a filter: a property, a literal, an operator with its operands, or the whole filter."""

    role: OperandRole
    kind: ValueKind
    at: int
    """The position of the operand's first character in the filter's text, counted from 1."""
    depth: int
    evaluate: Evaluate
    """Computes the operand's value from a message's properties."""
    resume: Resume
    """Computes the operand's value from a Judging, which remembers the values of terms. An operand without a term reads
    the properties through the Judging."""
    literal: Any = None
    """The value of a LITERAL; None for any other operand."""
    text: str = ""
    """The name of a PROPERTY, or the text of a LITERAL; "" for any other operand."""
    names: tuple[str, ...] = ()
    """The properties that the operand reads, if it contains no term."""
    cost: FilterCost = FREE
    """The cost of all terms that the operand contains; FREE if it contains none."""


def property_(name: str, at: int) -> Operand:
    """Makes an operand that reads a property."""

    def evaluate(properties: Properties) -> str | None:
        return properties.get(name)

    return Operand(OperandRole.PROPERTY, ValueKind.TEXT, at, 1, evaluate, evaluate, text=name, names=(name,))


def literal(kind: ValueKind, value: Any, text: str, at: int) -> Operand:
    """Makes a constant operand."""

    def evaluate(properties: Properties) -> Any:
        return value

    return Operand(OperandRole.LITERAL, kind, at, 1, evaluate, evaluate, value, text)


def negative(of: Operand) -> Operand:
    """Makes -x. Its value is missing unless x is a number, which only a literal can be."""

    def number(inner: Evaluate) -> Evaluate:
        return lambda properties: -inner(properties)

    def missing(inner: Evaluate) -> Evaluate:
        def evaluate(properties: Properties) -> None:
            inner(properties)

        return evaluate

    if of.kind in NUMBERS:
        return _made(OperandRole.NEGATIVE, of.kind, (of,), number)
    return _made(OperandRole.NEGATIVE, ValueKind.MISSING, (of,), missing)


def not_(of: Operand) -> Operand:
    """Makes NOT x."""

    def make(inner: Evaluate) -> Evaluate:
        def evaluate(properties: Properties) -> bool | None:
            value: bool | None = inner(properties)
            return None if value is None else not value

        return evaluate

    return _condition((_truth(of),), make)


def and_(operands: Sequence[Operand]) -> Operand:
    """Makes x AND y AND z. The operands are evaluated from left to right up to the first false one. Operands behind it
    are not evaluated, so they raise no IncomparableError."""
    return _joined(operands, decides=False)


def or_(operands: Sequence[Operand]) -> Operand:
    """Makes x OR y OR z, evaluated from left to right up to the first true one."""
    return _joined(operands, decides=True)


def equal(left: Operand, right: Operand) -> Operand:
    """Makes x = y. The result is unknown if only x is missing, False if only y is missing, and True if both are."""
    for operand in (left, right):
        if operand.role is OperandRole.LITERAL and operand.literal is None:
            raise FilterError("nothing compares with NULL, which is asked for with IS NULL", operand.at)
    if left.role is right.role is OperandRole.LITERAL and left.kind is ValueKind.BOOLEAN is not right.kind:
        raise FilterError(f"{left.text} is not compared with {right.text}", right.at)
    return _equal(left, right)


def is_null(of: Operand) -> Operand:
    """Makes x IS NULL."""
    return _equal(of, literal(ValueKind.MISSING, None, "NULL", of.at))


def ordered(left: Operand, right: Operand, holds: Callable[[int], bool]) -> Operand:
    """Makes x < y and similar comparisons. `holds` gets the outcome of the comparison (below 0, 0, above 0) and returns
    the result. The result is unknown if either value is missing."""
    for operand in (left, right):
        if operand.role is OperandRole.CONDITION or (
            operand.role is OperandRole.LITERAL and operand.kind not in NUMBERS
        ):
            what = operand.text or "a condition"
            raise FilterError(f"{what[:40]} has no order, only numbers and properties have", operand.at)
    compare = ordering(left.kind, right.kind)

    def make(left_of: Evaluate, right_of: Evaluate) -> Evaluate:
        def evaluate(properties: Properties) -> bool | None:
            a = left_of(properties)
            if a is None:
                return None
            b = right_of(properties)
            return None if b is None else holds(compare(a, b))

        return evaluate

    return _condition((left, right), make, READS_NUMBERS)


def between(of: Operand, low: Operand, high: Operand) -> Operand:
    """Makes x BETWEEN low AND high, both included."""
    within = and_((ordered(of, low, at_least), ordered(of, high, at_most)))
    if low.role is high.role is OperandRole.LITERAL and comparison(low.kind, high.kind)(low.literal, high.literal) > 0:
        raise FilterError(f"BETWEEN {low.text} AND {high.text} begins above its end", low.at)
    return within


def not_between(of: Operand, low: Operand, high: Operand) -> Operand:
    """Makes x NOT BETWEEN low AND high."""
    return or_((ordered(of, low, below), ordered(of, high, above)))


def in_(of: Operand, texts: Sequence[str]) -> Operand:
    """Makes x IN (...), which compares texts. The result is unknown if the property is missing."""
    if of.role is not OperandRole.PROPERTY:
        raise FilterError("only a property can be IN a list, and this is none", of.at)
    wanted = frozenset(texts)

    def make(inner: Evaluate) -> Evaluate:
        def evaluate(properties: Properties) -> bool | None:
            value = inner(properties)
            return None if value is None else value in wanted

        return evaluate

    return _condition((of,), make)


def matches_text(of: Operand, test: Callable[[str, str], bool], text: str, *, wanted: bool) -> Operand:
    """Makes x CONTAINS 'text' and similar tests; with `wanted=False`, x NOT CONTAINS 'text'. The result is False, not
    unknown, if x is missing or not a text, or if 'text' is empty. This holds for NOT CONTAINS too.
    """

    def make(inner: Evaluate) -> Evaluate:
        def evaluate(properties: Properties) -> bool:
            value = inner(properties)
            return type(value) is str and text != "" and test(value, text) is wanted

        return evaluate

    return _condition((of,), make, searches(text) if test is contains else COMPARES)


def whole(of: Operand) -> Operand:
    """Returns the operand as a complete filter. Raises FilterError if it is not a condition."""
    return _truth(of)


def above(outcome: int) -> bool:
    """Returns True if the outcome of a comparison means x > y (`holds` of `ordered`)."""
    return outcome > 0


def at_least(outcome: int) -> bool:
    """Returns True if the outcome of a comparison means x >= y (`holds` of `ordered`)."""
    return outcome >= 0


def below(outcome: int) -> bool:
    """Returns True if the outcome of a comparison means x < y (`holds` of `ordered`)."""
    return outcome < 0


def at_most(outcome: int) -> bool:
    """Returns True if the outcome of a comparison means x <= y (`holds` of `ordered`)."""
    return outcome <= 0


def _equal(left: Operand, right: Operand) -> Operand:
    compare = comparison(left.kind, right.kind)

    def make(left_of: Evaluate, right_of: Evaluate) -> Evaluate:
        def evaluate(properties: Properties) -> bool | None:
            a, b = left_of(properties), right_of(properties)
            if a is None:
                return True if b is None else None
            return b is not None and compare(a, b) == 0

        return evaluate

    return _condition((left, right), make, READS_NUMBERS if {left.kind, right.kind} & NUMBERS else COMPARES)


def _joined(operands: Sequence[Operand], decides: bool) -> Operand:
    def make(*truths: Evaluate) -> Evaluate:
        def evaluate(properties: Properties) -> bool | None:
            value: bool | None = not decides
            for truth in truths:
                each: bool | None = truth(properties)
                if each is decides:
                    return decides
                if each is None:
                    value = None
            return value

        return evaluate

    return _condition([_truth(operand) for operand in operands], make)


def _truth(of: Operand) -> Operand:
    """Returns the operand as a condition. A property alone is never True, whatever its value: it is a text, or
    missing."""
    if of.role is OperandRole.PROPERTY:
        inner = of.evaluate

        def evaluate(properties: Properties) -> bool | None:
            return None if inner(properties) is None else False

        resume = term(evaluate, COMPARES, of.names)
        return of._replace(
            role=OperandRole.CONDITION, kind=ValueKind.BOOLEAN, evaluate=evaluate, resume=resume, cost=COMPARES
        )
    if of.role is OperandRole.CONDITION or (
        of.role is OperandRole.LITERAL and of.kind in (ValueKind.BOOLEAN, ValueKind.MISSING)
    ):
        return of
    raise FilterError(f"{of.text[:40] or 'a number'} is not a condition", of.at)


def _condition(operands: Sequence[Operand], make: Make, cost: FilterCost = COMPARES) -> Operand:
    """Makes a condition. `cost`: its cost as a term, if none of its operands contains a term."""
    return _made(OperandRole.CONDITION, ValueKind.BOOLEAN, operands, make, cost)


def _made(
    role: OperandRole, kind: ValueKind, operands: Sequence[Operand], make: Make, cost: FilterCost = FREE
) -> Operand:
    depth = 1 + max([operand.depth for operand in operands])
    if depth > DEPTH_MAX:
        raise FilterError(f"the filter is nested deeper than {DEPTH_MAX} operators", operands[0].at)
    evaluate = make(*[operand.evaluate for operand in operands])
    names = tuple(name for operand in operands for name in operand.names)
    below = FilterCost(*map(sum, zip(*[operand.cost for operand in operands], strict=True)))
    if below.terms:
        resume = make(*[operand.resume for operand in operands])
        return Operand(role, kind, operands[0].at, depth, evaluate, resume, cost=below)
    resume = term(evaluate, cost, names) if cost.terms else evaluate
    return Operand(role, kind, operands[0].at, depth, evaluate, resume, names=names, cost=cost)
