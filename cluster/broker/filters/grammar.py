"""Defines the grammar of filters. The precedence is RocketMQ's: NOT and signs bind most tightly, then <, BETWEEN, IN
and similar operators, then = and IS, then AND, then OR. So `NOT a = 'x'` is `(NOT a) = 'x'`, which is never true.

Source: SelectorParser.jj of RocketMQ. There are two differences. RocketMQ ignores everything from the first token on
that does not continue the filter; here it is an error. A comment after `--` must end with a line end in RocketMQ, but
not here.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cluster.broker.filters import conditions
from cluster.broker.filters.conditions import Operand
from cluster.broker.filters.java_values import INT32_MAX, INT64_MAX, FilterError, ValueKind, contains
from raftlog.work import at_once, charge

if TYPE_CHECKING:
    from lark import Lark, Token

LONG_DIGITS_MAX = 20
"""The most characters of a whole number, including a suffix L."""
TOKENS_MAX = 2048
TOKEN_UNITS = 15
"""The cost of parsing one token, in units of `raftlog.work`: some 10 us."""
TOKENS_PER_STEP = 16
STAR_UNITS = 2
"""The cost of a comment between /* and */, in units. Such a comment may be as long as the filter and is matched in one
step."""

_GRAMMAR = r"""
?start: or_
?or_: and_ (_OR and_)*
?and_: equality (_AND equality)*
?equality: comparison
    | equality "=" comparison                      -> equal
    | equality "<>" comparison                     -> not_equal
    | equality _IS NULL                            -> is_null
    | equality _IS _NOT NULL                       -> is_not_null
?comparison: unary
    | comparison ">" unary                         -> above
    | comparison ">=" unary                        -> at_least
    | comparison "<" unary                         -> below
    | comparison "<=" unary                        -> at_most
    | comparison _CONTAINS TEXT                    -> contains
    | comparison _NOT _CONTAINS TEXT               -> not_contains
    | comparison _STARTSWITH TEXT                  -> starts_with
    | comparison _NOT _STARTSWITH TEXT             -> not_starts_with
    | comparison _ENDSWITH TEXT                    -> ends_with
    | comparison _NOT _ENDSWITH TEXT               -> not_ends_with
    | comparison _BETWEEN unary _AND unary         -> between
    | comparison _NOT _BETWEEN unary _AND unary    -> not_between
    | comparison _IN "(" TEXT ("," TEXT)* ")"      -> in_
    | comparison _NOT _IN "(" TEXT ("," TEXT)* ")" -> not_in
?unary: "+" unary
    | "-" unary                                    -> negative
    | _NOT unary                                   -> not_
    | TEXT                                         -> text
    | WHOLE                                        -> whole
    | FLOAT                                        -> float_
    | TRUE                                         -> true
    | FALSE                                        -> false
    | NULL                                         -> null
    | NAME                                         -> property_
    | "(" or_ ")"

FLOAT.4: /[0-9]+\.[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
WHOLE.3: /(0|[1-9][0-9]*)l?/i
TEXT: /'[^']*(''[^']*)*'/
NAME: /[a-z_$][a-z0-9_$]*/i
%ignore /([ \t\n\r\f]+|--[^\n\r]*|\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\/)+/
"""
_WORDS = (
    "_NOT",
    "_AND",
    "_OR",
    "_BETWEEN",
    "_IN",
    "_IS",
    "_CONTAINS",
    "_STARTSWITH",
    "_ENDSWITH",
    "TRUE",
    "FALSE",
    "NULL",
)


def parse(text: str) -> Operand:
    """Returns the outermost operand of a filter, which need not be a condition. Raises FilterError if the text is not a
    filter."""
    return at_once(parsing(text))


def parsing(text: str) -> Generator[None, None, Operand]:
    """Returns the result of `parse`. Works in steps of a few tokens, each charged before it is parsed. Raises
    FilterError in the same cases."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    charge(STAR_UNITS * text.count("*"))
    try:
        parser = _parser().parse_interactive(text)
        tokens = parser.lexer_thread.lex(parser.parser_state)
        last: Token | None = None
        count = 0
        while True:
            charge(TOKEN_UNITS)
            token = next(tokens, None)
            if token is None:
                break
            count += 1
            if count > TOKENS_MAX:
                raise FilterError(f"the filter has more than {TOKENS_MAX} words and signs", _at(token))
            parser.feed_token(token)
            last = token
            if count % TOKENS_PER_STEP == 0:
                yield
        operand: Operand = parser.feed_eof(last)
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise FilterError(f"unexpected {text[at]!r}", at + 1) from None
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise FilterError("unexpected end", len(text) + 1) from None
        raise FilterError(f"unexpected {error.token[:40]}", _at(error.token)) from None
    return operand


def prepare() -> None:
    """Builds the parser, which takes 0.1 s, before the node serves clients."""
    _parser()


@functools.cache
def _parser() -> Lark:
    """Returns the parser, one for all nodes of a process. It is built at the first call, so tools that see no filter do
    not build it."""
    from lark import Lark

    words = [f"{word}.2: /{word.strip('_')}(?![a-z0-9_$])/i\n" for word in _WORDS]
    return Lark(
        _GRAMMAR + "".join(words),
        parser="lalr",
        lexer="basic",
        transformer=SimpleNamespace(**_ACTIONS),
        maybe_placeholders=False,
        g_regex_flags=re.ASCII,
    )


# --- the actions: each makes the operand of one rule of the grammar from the rule's children (operands and tokens) ---


def _at(token: Token) -> int:
    return (token.start_pos or 0) + 1


def _decoded(token: Token) -> str:
    """Returns the text of a string literal, without its quotes."""
    return str(token)[1:-1].replace("''", "'")


def _text(token: Token) -> Operand:
    return conditions.literal(ValueKind.TEXT, _decoded(token), str(token), _at(token))


def _whole(token: Token) -> Operand:
    """Reads a whole number: up to 32 bits it is an Integer, even with an L; a longer one is a Long. Raises FilterError
    if it has more than 64 bits."""
    value = int(token.rstrip("lL")[:LONG_DIGITS_MAX])
    if len(token) > LONG_DIGITS_MAX or value > INT64_MAX:
        raise FilterError(f"{token[:40]} has more than 64 bits", _at(token))
    return conditions.literal(
        ValueKind.INTEGER if value <= INT32_MAX else ValueKind.LONG, value, str(token), _at(token)
    )


def _float(token: Token) -> Operand:
    """Reads a floating-point number. Raises FilterError if it is too large for a double, or so small that a double
    rounds it to 0. RocketMQ also refuses 0.0 itself; here it is allowed."""
    value = float(token)
    if math.isinf(value) or (value == 0 and re.search("[1-9]", re.split("[eE]", token)[0])):
        raise FilterError(f"{token[:40]} is no number of 64 bits", _at(token))
    return conditions.literal(ValueKind.DOUBLE, value, str(token), _at(token))


def _constant(kind: ValueKind, value: bool | None) -> Callable[[list[Token]], Operand]:
    return lambda of: conditions.literal(kind, value, str(of[0]), _at(of[0]))


def _ordered(holds: Callable[[int], bool]) -> Callable[[list[Operand]], Operand]:
    return lambda of: conditions.ordered(of[0], of[1], holds)


def _matches(test: Callable[[str, str], bool], *, wanted: bool = True) -> Callable[[list[Any]], Operand]:
    return lambda of: conditions.matches_text(of[0], test, _decoded(of[1]), wanted=wanted)


_ACTIONS: dict[str, Callable[[list[Any]], Operand]] = {
    "or_": conditions.or_,
    "and_": conditions.and_,
    "not_": lambda of: conditions.not_(of[0]),
    "equal": lambda of: conditions.equal(of[0], of[1]),
    "not_equal": lambda of: conditions.not_(conditions.equal(of[0], of[1])),
    "is_null": lambda of: conditions.is_null(of[0]),
    "is_not_null": lambda of: conditions.not_(conditions.is_null(of[0])),
    "above": _ordered(conditions.above),
    "at_least": _ordered(conditions.at_least),
    "below": _ordered(conditions.below),
    "at_most": _ordered(conditions.at_most),
    "between": lambda of: conditions.between(of[0], of[1], of[2]),
    "not_between": lambda of: conditions.not_between(of[0], of[1], of[2]),
    "in_": lambda of: conditions.in_(of[0], [_decoded(token) for token in of[1:]]),
    "not_in": lambda of: conditions.not_(conditions.in_(of[0], [_decoded(token) for token in of[1:]])),
    "contains": _matches(contains),
    "not_contains": _matches(contains, wanted=False),
    "starts_with": _matches(str.startswith),
    "not_starts_with": _matches(str.startswith, wanted=False),
    "ends_with": _matches(str.endswith),
    "not_ends_with": _matches(str.endswith, wanted=False),
    "negative": lambda of: conditions.negative(of[0]),
    "text": lambda of: _text(of[0]),
    "whole": lambda of: _whole(of[0]),
    "float_": lambda of: _float(of[0]),
    "true": _constant(ValueKind.BOOLEAN, True),
    "false": _constant(ValueKind.BOOLEAN, False),
    "null": _constant(ValueKind.MISSING, None),
    "property_": lambda of: conditions.property_(str(of[0]), _at(of[0])),
}
"""Rule of the grammar -> the function that makes its operand."""
