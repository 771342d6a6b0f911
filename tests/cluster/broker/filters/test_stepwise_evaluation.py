"""Filters that stop before a term and go on there: the same verdict, no term twice, no step much above its share."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.broker.filters.java_values import SEARCH_UNITS_MAX, FilterError, contains
from cluster.broker.filters.sql import SqlFilter
from raftlog.work import METER
from tests.support import sql_reference
from tests.support.sql_cases import PROPERTIES, TREES


def judge(text: str, properties: dict[str, str], share: int) -> tuple[bool | None, int]:
    """The verdict, and in how many steps."""
    judging = SqlFilter(text).judging(properties)
    steps = 1
    while not judging.step(share):
        assert judging.verdict is None
        steps += 1
    return judging.verdict, steps


@given(tree=TREES, properties=PROPERTIES, share=st.integers(1, 40))
@example(tree=("between", ("property", "a"), ("number", "7L"), ("property", "a"), True), properties={"a": "x"}, share=1)
@settings(deadline=None, max_examples=500)
def test_a_filter_in_parts_gives_the_same_verdict(tree: Any, properties: dict[str, str], share: int) -> None:
    text = sql_reference.render(tree)
    try:
        whole = SqlFilter(text)
    except FilterError:
        return
    assert judge(text, properties, share)[0] is whole.matches(properties), text


@given(tree=TREES, properties=PROPERTIES)
@settings(deadline=None)
def test_the_bound_is_above_what_the_terms_cost(tree: Any, properties: dict[str, str]) -> None:
    try:
        whole = SqlFilter(sql_reference.render(tree))
    except FilterError:
        return
    before = METER.units
    whole.judging(properties).step(1 << 30)
    longest = max(map(len, properties.values()), default=0)
    assert METER.units - before - 1 <= whole.units(longest)


def test_it_goes_on_at_the_same_term() -> None:
    text = " OR ".join(f"{'ab'[n % 2]} CONTAINS '{n:06}'" for n in range(100))
    properties = {"a": "x" * 20_000, "b": "y" * 10}
    before = METER.units
    assert judge(text, properties, 1 << 30) == (False, 1)
    at_once = METER.units - before
    found, steps = judge(text, properties, 200)
    assert found is False
    again = METER.units - before - at_once
    assert again - at_once < 20 * steps, "no term twice: a long one costs 137 units"
    assert steps == 26, "two terms of 137 units in each, of which the second is the last"


def test_what_cannot_be_compared_ends_it_at_once() -> None:
    assert judge("a > 5 OR b = 'x'", {"a": "many", "b": "x"}, 1) == (False, 1)
    assert judge("b = 'x' OR a > 5", {"a": "many", "b": "x"}, 1) == (True, 1)
    assert judge("b = 'y' OR a > 5", {"a": "many", "b": "x"}, 1) == (False, 2)


TEXTS = st.builds(
    lambda piece, times, end: (piece * times)[:30_000] + end,
    st.text("ab\u20ac", max_size=4),
    st.sampled_from([0, 1, 99, 700, 5000, 9000]),
    st.text("ab\u20ac", max_size=3),
)


@given(value=TEXTS, text=TEXTS)
@settings(deadline=None)
def test_a_text_is_found_wherever_the_language_finds_it(value: str, text: str) -> None:
    assert contains(value, text) is (text in value)


def test_a_search_has_a_price_of_its_own() -> None:
    assert SqlFilter("a CONTAINS 'xy'").units(30) < 10, "an everyday filter costs next to nothing"
    long = SqlFilter("a CONTAINS '" + "x" * 9000 + "'")
    assert SEARCH_UNITS_MAX < long.units(32_767) < 2 * SEARCH_UNITS_MAX
