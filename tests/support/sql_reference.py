"""SQL92 filters once more, slowly and directly: trees as RocketMQ's parser builds them, evaluated as its classes do.

Nothing here is shared with `cluster.broker.filters`. Values carry the name of their Java class, as (class, value).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]
"""(kind, parts...): see `render` for the kinds."""
Value = tuple[str, Any] | None
_WHOLE = {"Integer": 31, "Long": 63}


class RefusedByParserError(Exception):
    """RocketMQ throws while it builds the expression."""


class EvaluationError(Exception):
    """RocketMQ throws while it evaluates the expression: the message is not delivered."""


def render(tree: Tree) -> str:
    """The tree as text, each operand in parentheses."""
    kind, *parts = tree
    if kind in ("property", "number", "constant"):
        return str(parts[0])
    if kind == "text":
        return _quoted(parts[0])
    if kind in ("and", "or"):
        return f" {kind} ".join(f"({render(part)})" for part in parts)
    if kind in ("-", "+", "not"):
        return f"{kind} ({render(parts[0])})"
    if kind == "is":
        return f"({render(parts[0])}) IS {'NOT ' * parts[1]}NULL"
    inner, negated = f"({render(parts[0])})", "NOT " * parts[-1] if kind in ("between", "in", "search") else ""
    if kind == "between":
        return f"{inner} {negated}BETWEEN ({render(parts[1])}) AND ({render(parts[2])})"
    if kind == "in":
        return f"{inner} {negated}IN ({', '.join(map(_quoted, parts[1]))})"
    if kind == "search":
        return f"{inner} {negated}{parts[1]} {_quoted(parts[2])}"
    return f"{inner} {kind} ({render(parts[1])})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def delivered(tree: Tree, properties: dict[str, str]) -> bool:
    """Returns True if a broker delivers a message with these properties. Raises RefusedByParserError."""
    check(tree)
    if not _condition_like(tree):
        raise RefusedByParserError
    try:
        return _truth(tree, properties) is True
    except EvaluationError:
        return False


def check(tree: Tree) -> None:
    """Checks the same as the parser and the factories of the expression classes. Raises RefusedByParserError."""
    kind, *parts = tree
    operands = [part for part in parts if isinstance(part, tuple)]
    for operand in operands:
        check(operand)
    if kind == "number":
        _number(parts[0])
    bad = False
    if kind in ("and", "or", "not"):
        bad = not all(map(_condition_like, operands))
    elif kind in ("=", "<>"):
        first, second = map(_through_plus, operands)
        bad = ("constant", "NULL") in (first, second) or (
            _literal(first) and _literal(second) and _boolean(first) and not _boolean(second)
        )
    elif kind in ("<", "<=", ">", ">=", "between"):
        bad = any((_literal(part) and _through_plus(part)[0] != "number") or _boolean(part) for part in operands)
        if kind == "between" and not bad and not parts[-1] and _literal(parts[1]) and _literal(parts[2]):
            low, high = _value(parts[1], {}), _value(parts[2], {})
            bad = _compare(high, low) < 0
    elif kind == "in":
        bad = _through_plus(parts[0])[0] != "property"
    if bad:
        raise RefusedByParserError


def _through_plus(tree: Tree) -> Tree:
    while tree[0] == "+":
        tree = tree[1]
    return tree


def _literal(tree: Tree) -> bool:
    return _through_plus(tree)[0] in ("text", "number", "constant")


def _boolean(tree: Tree) -> bool:
    """A BooleanExpression in Java."""
    return _through_plus(tree)[0] not in ("property", "text", "number", "-")


def _condition_like(tree: Tree) -> bool:
    """Returns True if the parser takes it for a condition: a property, too, which it then casts."""
    return _boolean(tree) or _through_plus(tree)[0] == "property"


def _truth(tree: Tree, properties: dict[str, str]) -> bool | None:
    """The operand of AND, OR, NOT."""
    if _through_plus(tree)[0] == "property":
        return None if _value(tree, properties) is None else False
    value = _value(tree, properties)
    return None if value is None else bool(value[1])


def _value(tree: Tree, properties: dict[str, str]) -> Value:
    kind, *parts = tree
    if kind == "property":
        return ("String", properties[parts[0]]) if parts[0] in properties else None
    if kind == "text":
        return "String", parts[0]
    if kind == "number":
        return _number(parts[0])
    if kind == "constant":
        return None if parts[0] == "NULL" else ("Boolean", parts[0] == "TRUE")
    if kind == "+":
        return _value(parts[0], properties)
    if kind == "-":
        value = _value(parts[0], properties)
        return (value[0], -value[1]) if value is not None and value[0] in ("Integer", "Long", "Double") else None
    truth = _condition(kind, parts, properties)
    return None if truth is None else ("Boolean", truth)


def _condition(kind: str, parts: list[Any], properties: dict[str, str]) -> bool | None:
    if kind in ("and", "or"):
        truth = _truth(parts[0], properties)
        for part in parts[1:]:
            truth = _join(kind, truth, part, properties)
        return truth
    if kind == "not":
        return _negate(_truth(parts[0], properties))
    if kind == "between":
        of, low, high, negated = parts
        if negated:
            return _condition("or", [("<", of, low), (">", of, high)], properties)
        return _condition("and", [(">=", of, low), ("<=", of, high)], properties)
    left = _value(parts[0], properties)
    if kind == "is":
        return (left is None) is not parts[1]
    if kind == "in":
        return None if left is None else (left[1] in parts[1]) is not parts[2]
    if kind == "search":
        return _search(left, *parts[1:])
    right = _value(parts[1], properties)
    if kind in ("=", "<>"):
        equal = _equal(left, right)
        return equal if kind == "=" else _negate(equal)
    if left is None or right is None:
        return None
    if left[0] == right[0] == "String":
        left, right = ("Double", _read("Double", left[1])), ("Double", _read("Double", right[1]))
    outcome = _compare(left, right)
    return {"<": outcome < 0, "<=": outcome <= 0, ">": outcome > 0, ">=": outcome >= 0}[kind]


def _join(kind: str, left: bool | None, part: Tree, properties: dict[str, str]) -> bool | None:
    decides = kind == "or"
    if left is decides:
        return decides
    right = _truth(part, properties)
    if right is decides:
        return decides
    return None if left is None or right is None else not decides


def _negate(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _search(value: Value, word: str, text: str, negated: bool) -> bool:
    if not text or value is None or value[0] != "String":
        return False
    found = {
        "CONTAINS": text in value[1],
        "STARTSWITH": value[1][: len(text)] == text,
        "ENDSWITH": value[1][-len(text) :] == text,
    }
    return found[word] is not negated


def _equal(left: Value, right: Value) -> bool | None:
    if left is None and right is None:
        return True
    if left is None:
        return None
    if right is None:
        return False
    return _compare(left, right) == 0


def _compare(left: Value, right: Value) -> int:
    assert left is not None
    assert right is not None
    (left_class, a), (right_class, b) = left, right
    if left_class != right_class:
        classes = {left_class, right_class}
        if left_class == "Boolean" and right_class == "String":
            raise EvaluationError("a Boolean is cast to String")
        if "String" in classes:
            if left_class == "String":
                a = _read(right_class, a)
            else:
                b = _read(left_class, b)
        elif "Boolean" in classes:
            return -1
        if "Double" in classes:
            a, b = float(a), float(b)
    if isinstance(a, float) and isinstance(b, float):
        a, b = _rank(a), _rank(b)
    return int(a > b) - int(a < b)


def _rank(value: float) -> tuple[int, Fraction, float]:
    """Doubles in Java's order: -Infinity, ..., -0.0, 0.0, ..., Infinity, NaN."""
    if math.isnan(value):
        return 2, Fraction(0), 0.0
    if math.isinf(value):
        return (1 if value > 0 else -1), Fraction(0), 0.0
    return 0, Fraction(value), math.copysign(1, value)


def _number(text: str) -> Value:
    if any(sign in text.lower() for sign in ".e"):
        value = float(text)
        if math.isinf(value) or (value == 0 and any(digit in text.lower().split("e")[0] for digit in "123456789")):
            raise RefusedByParserError
        return "Double", value
    whole = int(text.lower().removesuffix("l"))
    if whole >= 1 << 63:
        raise RefusedByParserError
    return ("Integer" if whole < 1 << 31 else "Long"), whole


def _read(name: str, text: str) -> Any:
    """valueOf of a Java class."""
    if name == "Boolean":
        return text.casefold() == "true"
    if name == "Double":
        return _double(text)
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if not digits or not all(digit.isdecimal() and digit <= "\uffff" for digit in digits):
        raise EvaluationError(f"{text} is no {name}")
    value = 0
    for digit in digits:
        value = value * 10 + int(digit)
    value = -value if sign == "-" else value
    if not -(1 << _WHOLE[name]) <= value < 1 << _WHOLE[name]:
        raise EvaluationError(f"{text} is no {name}")
    return value


def _double(text: str) -> float:
    while text and text[0] <= " ":
        text = text[1:]
    while text and text[-1] <= " ":
        text = text[:-1]
    plain = text[1:] if text[:1] in ("+", "-") else text
    if plain in ("NaN", "Infinity"):
        return float(text)
    hexadecimal = plain[:2] in ("0x", "0X")
    if plain[-1:] in tuple("fFdD"):
        text, plain = text[:-1], plain[:-1]
    allowed = "0123456789abcdefABCDEFxX.pP+-" if hexadecimal else "0123456789.eE+-"
    if not plain or plain[0] in "+-" or not set(plain) <= set(allowed):
        raise EvaluationError(f"{text} is no Double")
    try:
        if not hexadecimal:
            return float(text)
        if not set(plain) & set("pP"):
            raise EvaluationError(f"{text} is no Double: it lacks its exponent")
        return float.fromhex(text)
    except OverflowError:
        return math.inf if text[0] != "-" else -math.inf
    except ValueError:
        raise EvaluationError(f"{text} is no Double") from None
