"""SQL92 filters: what is a filter, what it selects, and that no input does anything else.

Expected values are RocketMQ's, unless a test says otherwise; tests/compat runs both side by side.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.broker.filters import sql
from cluster.broker.filters.java_values import FilterError
from cluster.broker.filters.sql import SqlFilter
from tests.support import sql_reference
from tests.support.rows import each_row
from tests.support.sql_cases import PROPERTIES, TREES, WORDS


def selects(text: str, **properties: str) -> bool:
    return SqlFilter(text).matches(properties)


@each_row(
    ("text", "properties", "expected"),
    [
        # Numbers are read as the literal's type.
        ("a = 3", {"a": "3"}, True),
        ("a = 3", {"a": "+03"}, True),
        ("a = 3", {"a": "3.0"}, False),
        ("a <> 3", {"a": "3.0"}, False),
        ("a = 3.0", {"a": "3"}, True),
        ("a = 3.0", {"a": " 3d "}, True),
        ("a > 5", {"a": "3000000000"}, False),
        ("a > 5L", {"a": "3000000000"}, False),
        ("a > 2147483648", {"a": "3000000000"}, True),
        ("a > 5.0", {"a": "3000000000"}, True),
        ("a > 5", {"a": "many"}, False),
        ("a > 5", {"a": "1_0"}, False),
        ("3 < a", {"a": "4"}, True),
        ("a = 0", {"a": "0"}, True),
        ("a = 0L", {"a": "0"}, True),
        ("a = -3", {"a": "-3"}, True),
        ("a = - - +3", {"a": "3"}, True),
        ("a > 3.1E10", {"a": "3.1415E10"}, True),
        ("a > .5 and a < 5.", {"a": "1"}, True),
        ("a = 9007199254740993.0", {"a": "9007199254740992"}, True),
        ("9007199254740993 = 9007199254740992.0", {}, True),
        # Two properties: text for =, Doubles for the rest.
        ("a = b", {"a": "1", "b": "1.0"}, False),
        ("a >= b", {"a": "1", "b": "1.0"}, True),
        ("a >= b", {"a": "x", "b": "x"}, False),
        ("a > b", {"a": "NaN", "b": "Infinity"}, True),
        ("a > b", {"a": "0.0", "b": "-0.0"}, True),
        # What cannot be compared ends the message, unless the condition is decided before.
        ("a = 'x' OR b > 5", {"a": "x", "b": "many"}, True),
        ("b > 5 OR a = 'x'", {"a": "x", "b": "many"}, False),
        ("NOT (b > 5)", {"b": "many"}, False),
        ("b > 5 OR a = 'x'", {"a": "x"}, True),
        # Truth values.
        ("a = TRUE", {"a": "True"}, True),
        ("a = FALSE", {"a": "no"}, True),
        ("TRUE = a", {"a": "true"}, False),
        ("(b > 1) = TRUE", {"b": "2"}, True),
        ("TRUE", {}, True),
        ("NULL", {}, False),
        ("a", {"a": "true"}, False),
        ("NOT a", {"a": "true"}, True),
        ("NOT a", {}, False),
        # Missing properties.
        ("a = 'x'", {}, False),
        ("a <> 'x'", {}, False),
        ("NOT (a = 'x')", {}, False),
        ("'x' <> a", {}, True),
        ("a = b", {}, True),
        ("a IS NULL", {}, True),
        ("a IS NULL", {"a": "x"}, False),
        ("a is not null", {"a": "x"}, True),
        ("a IS NULL OR a > 1", {}, True),
        ("a > 1 OR b = 'x'", {"b": "x"}, True),
        ("a > 1 AND b = 'x'", {"b": "x"}, False),
        ("NOT (a > 1 AND b = 'y')", {"b": "x"}, True),
        # Lists, ranges, parts of texts.
        ("a IN ('x', 'y')", {"a": "y"}, True),
        ("a NOT IN ('x', 'y')", {"a": "z"}, True),
        ("a NOT IN ('x', 'y')", {}, False),
        ("(a) IN ('it''s')", {"a": "it's"}, True),
        ("a BETWEEN 2 AND 10", {"a": "10"}, True),
        ("a BETWEEN 2 AND 10 AND b = 'x'", {"a": "2", "b": "x"}, True),
        ("a BETWEEN -10 AND -20", {"a": "-15"}, False),
        ("a NOT BETWEEN 10 AND 0", {"a": "5"}, True),
        ("a BETWEEN b AND c", {"a": "2", "b": "1", "c": "2.0"}, True),
        ("a CONTAINS 'x'", {"a": "axb"}, True),
        ("a STARTSWITH 'ax'", {"a": "axb"}, True),
        ("a ENDSWITH 'xb'", {"a": "axb"}, True),
        ("a NOT CONTAINS 'x'", {"a": "axb"}, False),
        ("a NOT STARTSWITH 'b'", {"a": "axb"}, True),
        ("a NOT ENDSWITH 'x'", {"a": "axb"}, True),
        ("a NOT CONTAINS 'x'", {}, False),
        ("a NOT CONTAINS ''", {"a": "x"}, False),
        ("5 CONTAINS '5'", {}, False),
        # Precedence: NOT binds closest, = closer than AND, AND closer than OR.
        ("NOT a = 'x'", {"a": "y"}, False),
        ("a = 'x' OR b = 'x' AND c = 'x'", {"a": "x"}, True),
        ("a = b > 1", {"a": "true", "b": "2"}, True),
        # Names, words, comments.
        ("TAGS = 'a' and KEYS CONTAINS 'k' And __X$9 is NULL", {"TAGS": "a", "KEYS": "k1 k2"}, True),
        ("tags = 'a'", {"TAGS": "a"}, False),
        ("a = /* 3 * / */ 4 -- or 3\n", {"a": "4"}, True),
        ("a = 4 -- or 3", {"a": "4"}, True),
        ("a>5and b<3", {"a": "6", "b": "2"}, True),
        ("a = '\n\u20ac\U0001f600'", {"a": "\n\u20ac\U0001f600"}, True),
    ],
)
def test_what_is_selected(text: str, properties: dict[str, str], expected: bool) -> None:
    assert selects(text, **properties) is expected


@each_row(
    ("text", "at", "reason"),
    [
        ("", 1, "unexpected end"),
        (" -- all\n", 9, "unexpected end"),
        ("*", 1, "unexpected '*'"),
        ("a >", 4, "unexpected end"),
        ("a LIKE 'x%'", 3, "unexpected LIKE"),
        ("a = 'x' b = 'y'", 9, "unexpected b"),
        ("a == 1", 4, "unexpected ="),
        ("a != 1", 3, "unexpected '!'"),
        ("a = 1;", 6, "unexpected ';'"),
        ("a + 1 > 2", 3, "unexpected +"),
        ('a = "x"', 5, "unexpected '\"'"),
        ("a = 'x", 5, 'unexpected "\'"'),
        ("a = 1 /* x", 7, "unexpected '/'"),
        ("a > --5", 8, "unexpected end"),
        ("a-b = 1", 2, "unexpected -"),
        ("a.b = 1", 2, "unexpected '.'"),
        ("\u00e4 = 1", 1, "unexpected '\u00e4'"),
        ("\u017fet = 1", 1, "unexpected '\u017f'"),
        ("(a = 1", 7, "unexpected end"),
        ("a = 1)", 6, "unexpected )"),
        ("a IN ()", 7, "unexpected )"),
        ("a IN (1)", 7, "unexpected 1"),
        ("a IN ('x'", 10, "unexpected end"),
        ("1 IN ('1')", 1, "only a property"),
        ("NOT a IN ('x')", 5, "only a property"),
        ("contains = 1", 1, "unexpected contains"),
        ("a CONTAINS b", 12, "unexpected b"),
        ("a IS 1", 6, "unexpected 1"),
        ("a = 007", 6, "unexpected 0"),
        ("a = 0x10", 6, "unexpected x10"),
        ("a = 9223372036854775808", 5, "more than 64 bits"),
        ("a = " + "9" * 10_000, 5, "more than 64 bits"),
        ("a = 1e400", 5, "no number of 64 bits"),
        ("a = 0.1e-400", 5, "no number of 64 bits"),
        ("a = NULL", 5, "IS NULL"),
        ("a > NULL", 5, "NULL has no order"),
        ("a > 'x'", 5, "'x' has no order"),
        ("a > TRUE", 5, "TRUE has no order"),
        ("NOT a > 1", 5, "a condition has no order"),
        ("a > 1 > 0", 1, "a condition has no order"),
        ("TRUE = 1", 8, "TRUE is not compared with 1"),
        ("a BETWEEN 10 AND 9", 11, "begins above its end"),
        ("a BETWEEN 'a' AND 'b'", 11, "'a' has no order"),
        ("1", 1, "1 is not a condition"),
        ("a = 1 AND 'x'", 11, "'x' is not a condition"),
        ("-a", 2, "not a condition"),
        ("NOT 1", 5, "1 is not a condition"),
        ("NOT " * 100 + "TRUE", 401, "deeper than 100"),
        ("a" + "=1" * 100, 1, "deeper than 100"),
        ("a = 1 OR " * 512 + "a = 1", 4609, "more than 2048"),
        ("a = '" + "x" * sql.TEXT_MAX + "'", sql.TEXT_MAX + 1, "at most 16384 characters"),
    ],
)
def test_what_is_no_filter(text: str, at: int, reason: str) -> None:
    with pytest.raises(FilterError) as refused:
        SqlFilter(text)
    assert (refused.value.at, reason in refused.value.reason) == (at, True), refused.value


def test_zero_is_a_number_unlike_in_rocketmq() -> None:
    assert selects("a > 0.0", a="1")
    assert selects("a = 0e9", a="0")


def test_limits_leave_room() -> None:
    assert selects("NOT " * 98 + "TRUE")
    assert selects("(" * 1000 + "TRUE" + ")" * 1000)
    assert selects(" AND ".join(["a = 1"] * 512), a="1")
    assert selects("a IN (" + ", ".join(f"'{n:08}'" for n in range(1000)) + ")", a="00000999")


@pytest.mark.parametrize("number", ["5", "5000000000", "5.0"])
def test_a_number_has_at_most_1024_characters_unlike_in_rocketmq(number: str) -> None:
    assert selects(f"a >= {number}", a=number.zfill(1024))
    assert not selects(f"a >= {number}", a=number.zfill(1025))


@given(text=st.one_of(st.text(), st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)), properties=PROPERTIES)
@example(text="'" * 5001, properties={})
@example(text="/*" * 5000, properties={})
@example(text="- " * 2000 + "1 > a", properties={"a": "1"})
@settings(deadline=None)
def test_any_text_is_a_filter_or_says_where_it_is_none(text: str, properties: dict[str, str]) -> None:
    found: SqlFilter | FilterError
    try:
        found = SqlFilter(text)
    except FilterError as error:
        found = error
    if isinstance(found, FilterError):
        assert 1 <= found.at <= len(text) + 1
    else:
        assert found.matches(properties) in (True, False)


@given(tree=TREES, properties=PROPERTIES)
@example(tree=("between", ("property", "a"), ("number", "7L"), ("property", "a"), True), properties={"a": "\U0001d7d3"})
@settings(deadline=None, max_examples=500)
def test_the_slow_reference_selects_the_same(tree: Any, properties: dict[str, str]) -> None:
    text = sql_reference.render(tree)
    try:
        expected = sql_reference.delivered(tree, properties)
    except sql_reference.RefusedByParserError:
        with pytest.raises(FilterError):
            SqlFilter(text)
    else:
        assert SqlFilter(text).matches(properties) is expected, text
