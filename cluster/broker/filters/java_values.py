"""Reads and compares values as Java does, because the meaning of a filter depends on that. Source: ComparisonExpression
of RocketMQ.

A property is a text. If it is compared with a literal, it is read as the literal's Java type: `5` reads an Integer (32
bits), `3000000000` a Long, `5.0` a Double. If the text cannot be read, the whole filter fails and the message is not
selected. The result is not "unknown".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
NUMBER_LENGTH_MAX = 1024
"""The most characters of a property that is read as a number. Java has no limit, but a filter may read a property of 32
KiB hundreds of times."""
_INTEGER = re.compile(r"[+-]?\d+")
"""Digits of any script in the Basic Multilingual Plane, as in Java's Character.digit."""
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED = re.compile(r"[+-]?(?:NaN|Infinity)")
# Each pattern can match a text in one way only. If there were several ways, trying them all would take time in
# proportion to the square of the text's length.
_TRIMMED = "".join(map(chr, range(33)))
"""Characters that Java's String.trim removes."""

Compare = Callable[[Any, Any], int]
"""Compares two values that are not missing. Returns a number below 0, 0, or a number above 0. Raises IncomparableError
if the values cannot be compared."""


class ValueKind(Enum):
    """The kind of value that an operand has if it is not missing. It is known when the filter is parsed."""

    TEXT = auto()
    INTEGER = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    MISSING = auto()
    """The value is always missing: NULL, and the negation of something that is not a number."""


NUMBERS = frozenset({ValueKind.INTEGER, ValueKind.LONG, ValueKind.DOUBLE})


def read_integer(text: str) -> int:
    """Reads a text as Java's Integer.valueOf does. Raises IncomparableError if it is not an integer of 32 bits, or is
    longer than NUMBER_LENGTH_MAX."""
    return _read_whole(text, INT32_MAX)


def read_long(text: str) -> int:
    """Reads a text as Java's Long.valueOf does. Raises IncomparableError if it is not an integer of 64 bits, or is
    longer than NUMBER_LENGTH_MAX."""
    return _read_whole(text, INT64_MAX)


def _read_whole(text: str, most: int) -> int:
    if len(text) > NUMBER_LENGTH_MAX or not _INTEGER.fullmatch(text) or max(text) > "\uffff":
        raise IncomparableError(f"{text[:40]!r} is not a whole number")
    value = int(text)
    if not -most - 1 <= value <= most:
        raise IncomparableError(f"{text[:40]!r} has more than {most.bit_length() + 1} bits")
    return value


def read_double(text: str) -> float:
    """Reads a text as Java's Double.valueOf does. Raises IncomparableError if it is not a number, or is longer than
    NUMBER_LENGTH_MAX."""
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
    """Reads a text as Java's Boolean.valueOf does: everything except "true", in any case, is false."""
    return len(text) == len("true") and text.lower() == "true"


def compare_doubles(left: float, right: float) -> int:
    """Compares as Java's Double.compareTo does: -0.0 is below 0.0, and NaN equals itself and is above everything
    else."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else int(math.copysign(1, left) - math.copysign(1, right))
    return (left != left) - (right != right)


_READ: dict[ValueKind, Callable[[str], Any]] = {
    ValueKind.INTEGER: read_integer,
    ValueKind.LONG: read_long,
    ValueKind.DOUBLE: read_double,
}


def comparison(left: ValueKind, right: ValueKind) -> Compare:
    """Returns the function that compares values of these kinds for `=`, as RocketMQ does."""
    if left is ValueKind.TEXT and right in _READ:
        read, compare = _READ[right], _plain(right)
        return lambda a, b: compare(read(a), b)
    if right is ValueKind.TEXT and left in _READ:
        read, compare = _READ[left], _plain(left)
        return lambda a, b: compare(a, read(b))
    if left is ValueKind.TEXT and right is ValueKind.BOOLEAN:
        return lambda a, b: _compare(read_boolean(a), b)
    if left is ValueKind.BOOLEAN and right is ValueKind.TEXT:
        return _refuse
    if left in NUMBERS and right in NUMBERS and ValueKind.DOUBLE in (left, right):
        return lambda a, b: compare_doubles(float(a), float(b))
    if left is right or (left in NUMBERS and right in NUMBERS):
        return _compare
    return lambda a, b: -1


def ordering(left: ValueKind, right: ValueKind) -> Compare:
    """Returns the function that compares values of these kinds for `<`, `<=`, `>` and `>=`, as RocketMQ does. Two texts
    are both read as Doubles."""
    if left is right is ValueKind.TEXT:
        return lambda a, b: compare_doubles(read_double(a), read_double(b))
    return comparison(left, right)


def _plain(kind: ValueKind) -> Compare:
    return compare_doubles if kind is ValueKind.DOUBLE else _compare


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _refuse(left: Any, right: Any) -> int:
    """Raises IncomparableError, as RocketMQ does: it casts the boolean to a text, which fails."""
    raise IncomparableError("a truth value is not compared with the text to its right")


class FilterError(ValueError):
    """Raised for a text that is not a filter. `at`: the position of the first wrong character, counted from 1."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(f"at character {at}: {reason}")
        self.reason = reason
        self.at = at


class IncomparableError(ValueError):
    """Raised if two values cannot be compared: most often a number, and a property that is not a number."""


# Tests if a text occurs in another, in a time that does not depend on their contents.
#
# For some sizes the time of CPython's search grows with the product of both lengths: 6 ms for 9,000 letters in 10,000.
# From 30,000 letters on it uses the two-way algorithm, whose time is linear; a shorter text is therefore padded.

PLAIN_MAX = 1 << 16
"""The product of both lengths up to which Python's own search is fast for every input."""
SHORT_TEXT = 6
"""The length below which Python searches for a text without the two-way algorithm, however long the searched text
is."""
FILLED = 1 << 15
"""The length to which a searched text is padded. No property is longer."""
SEARCH_UNITS_MAX = 140
"""The most units that one search costs."""


def contains(value: str, text: str) -> bool:
    """Returns `text in value`, in bounded time."""
    if len(text) < SHORT_TEXT or len(value) * len(text) <= PLAIN_MAX:
        return text in value
    # A match that extends into the padding would end with the padding's letter, but `text` ends with another one.
    return text in value.ljust(FILLED, "b" if text[-1] == "a" else "a")
