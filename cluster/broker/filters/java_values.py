"""Java's reading and ordering of values, which decides what a filter means. Source: ComparisonExpression of RocketMQ.

A property is text. Compared with a literal it is read as the literal's Java type, so `5` reads an Integer (32 bits),
`3000000000` a Long, `5.0` a Double. Text that cannot be read is an error, not unknown: the message is not selected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
NUMBER_LENGTH_MAX = 1024
"""Characters of a property that is read as a number. Java has no limit; but a filter may read a property of 32 KiB
hundreds of times."""
_INTEGER = re.compile(r"[+-]?\d+")
"""Digits of any script in the Basic Multilingual Plane, as in Java's Character.digit."""
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED = re.compile(r"[+-]?(?:NaN|Infinity)")
# Each pattern can match a text in one way only: trying several would take time by the square of its length.
_TRIMMED = "".join(map(chr, range(33)))
"""Characters that Java's String.trim takes off."""

Compare = Callable[[Any, Any], int]
"""Compares two values that are not missing: below 0, 0 or above 0. Raises IncomparableError."""


class Kind(Enum):
    """The kind of value that an operand has, if it is not missing. Known when the filter is parsed."""

    TEXT = auto()
    INTEGER = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    MISSING = auto()
    """Always missing: NULL, and the negative of what is no number."""


NUMBERS = frozenset({Kind.INTEGER, Kind.LONG, Kind.DOUBLE})


def read_integer(text: str) -> int:
    """Integer.valueOf. Raises IncomparableError."""
    return _read_whole(text, INT32_MAX)


def read_long(text: str) -> int:
    """Long.valueOf. Raises IncomparableError."""
    return _read_whole(text, INT64_MAX)


def _read_whole(text: str, most: int) -> int:
    if len(text) > NUMBER_LENGTH_MAX or not _INTEGER.fullmatch(text) or max(text) > "\uffff":
        raise IncomparableError(f"{text[:40]!r} is not a whole number")
    value = int(text)
    if not -most - 1 <= value <= most:
        raise IncomparableError(f"{text[:40]!r} has more than {most.bit_length() + 1} bits")
    return value


def read_double(text: str) -> float:
    """Double.valueOf. Raises IncomparableError."""
    if len(text) > NUMBER_LENGTH_MAX:
        raise IncomparableError(f"{text[:40]!r} is too long for a number")
    trimmed = text.strip(_TRIMMED)
    found = _DECIMAL.fullmatch(trimmed)
    if found is not None:
        return float(found[1])
    if _NAMED.fullmatch(trimmed):
        return float(trimmed)
    found = _HEXADECIMAL.fullmatch(trimmed)
    if found is None:
        raise IncomparableError(f"{text[:40]!r} is not a number")
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -math.inf if trimmed[0] == "-" else math.inf


def read_boolean(text: str) -> bool:
    """Boolean.valueOf: whatever is not "true", in any case, is false."""
    return len(text) == len("true") and text.lower() == "true"


def compare_doubles(left: float, right: float) -> int:
    """Double.compareTo: -0.0 is below 0.0, NaN equals itself and is above everything else."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else int(math.copysign(1, left) - math.copysign(1, right))
    return (left != left) - (right != right)


_READ: dict[Kind, Callable[[str], Any]] = {
    Kind.INTEGER: read_integer,
    Kind.LONG: read_long,
    Kind.DOUBLE: read_double,
}


def comparison(left: Kind, right: Kind) -> Compare:
    """Returns RocketMQ's comparison of values of these kinds for `=`."""
    if left is Kind.TEXT and right in _READ:
        read, compare = _READ[right], _plain(right)
        return lambda a, b: compare(read(a), b)
    if right is Kind.TEXT and left in _READ:
        read, compare = _READ[left], _plain(left)
        return lambda a, b: compare(a, read(b))
    if left is Kind.TEXT and right is Kind.BOOLEAN:
        return lambda a, b: _compare(read_boolean(a), b)
    if left is Kind.BOOLEAN and right is Kind.TEXT:
        return _refuse
    if left in NUMBERS and right in NUMBERS and Kind.DOUBLE in (left, right):
        return lambda a, b: compare_doubles(float(a), float(b))
    if left is right or (left in NUMBERS and right in NUMBERS):
        return _compare
    return lambda a, b: -1


def ordering(left: Kind, right: Kind) -> Compare:
    """The same for `<`, `<=`, `>` and `>=`: two texts are both read as Doubles."""
    if left is right is Kind.TEXT:
        return lambda a, b: compare_doubles(read_double(a), read_double(b))
    return comparison(left, right)


def _plain(kind: Kind) -> Compare:
    return compare_doubles if kind is Kind.DOUBLE else _compare


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _refuse(left: Any, right: Any) -> int:
    """RocketMQ casts the boolean to text, which fails."""
    raise IncomparableError("a truth value is not compared with the text to its right")


class FilterError(ValueError):
    """The text is not a filter; `at` is the character where it stops to be one, counted from 1."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(f"at character {at}: {reason}")
        self.reason = reason
        self.at = at


class IncomparableError(ValueError):
    """Two values cannot be compared: a property that is no number with a number, above all."""


# Whether a text occurs in another, in a time that does not depend on what the two are.
#
# CPython's search takes time by the product of both lengths for some sizes: 6 ms for 9,000 letters in 10,000. From
# 30,000 letters on it takes the two-way algorithm, whose time is linear; a shorter text is therefore filled up.

PLAIN_MAX = 1 << 16
"""Product of the lengths up to which the search is quick whatever it meets."""
SHORT_TEXT = 6
"""A shorter text is looked for without the two-way algorithm, whatever the other's length."""
FILLED = 1 << 15
"""No property is longer."""
SEARCH_UNITS_MAX = 140
"""Units that one search costs at most."""


def contains(value: str, text: str) -> bool:
    """`text in value`."""
    if len(text) < SHORT_TEXT or len(value) * len(text) <= PLAIN_MAX:
        return text in value
    # What would reach into the filling would end with a letter of it, and `text` ends with another.
    return text in value.ljust(FILLED, "b" if text[-1] == "a" else "a")
