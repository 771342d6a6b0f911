"""Strategies for SQL92 filters and the properties that they look at."""

from __future__ import annotations

from hypothesis import strategies as st

NAMES = ("a", "b", "TAGS")
TEXTS = ("", "x", "xy", "it's", "5", "true")
NUMBERS = (
    *("0", "5", "7L", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("0.0", "5.0", ".5", "5e1", "1.7976931348623157E308", "1e309", "4.9E-324", "1e-400"),
)
VALUES = (
    *("x", "xy", "it's", "true", "TRUE", "false", "5", "+5", "-5", "05", "5.0", "5.", ".5", "5e0", "5E1", "5f", "5d"),
    *(
        "2147483647",
        "2147483648",
        "-2147483648",
        "9223372036854775807",
        "9223372036854775808",
        "0",
        "-0",
        "0.0",
        "-0.0",
    ),
    *(
        "NaN",
        "nan",
        "-NaN",
        "Infinity",
        "-Infinity",
        "inf",
        "1e999",
        "-1e999",
        "1_0",
        " 5",
        "5 ",
        "\t5.0\n",
        "\u00a05.0",
    ),
    *(
        "0x1p3",
        "0x.8p1d",
        "0x1",
        "0X1.8P+1",
        "-0x1p9999",
        "5L",
        "\u0665",
        "\U0001d7d3",
        "+",
        "-",
        ".",
        "e5",
        "--5",
        "5e",
    ),
    "0" * 200 + "5",
    "9" * 1000,
)
WORDS = (
    *(
        "a",
        "b",
        "TAGS",
        "=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "(",
        ")",
        ",",
        "+",
        "-",
        "AND",
        "OR",
        "NOT",
        "and",
        "not",
        "In",
    ),
    *(
        "IN",
        "IS",
        "NULL",
        "TRUE",
        "FALSE",
        "BETWEEN",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
        "('x')",
        "IS NULL",
        "a = 5",
    ),
    *("'x'", "''", "'it''s'", "5", "5.0", "5L", "0", ".5", "5e1", "9223372036854775808", "b", "AND", "OR", "a > b"),
    *("/* c */", "--", "-- c\n", "'", ";", "\u20ac"),
)
"""The words of which filters, and texts that are nearly filters, are put together."""

PROPERTIES = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(
        st.sampled_from(VALUES), st.from_regex(r"[+-]?[0-9]{0,3}\.?[0-9]{0,3}([eE][0-9])?", fullmatch=True)
    ).filter(bool),
)

_LEAVES = st.one_of(
    st.tuples(st.just("property"), st.sampled_from(NAMES)),
    st.tuples(st.just("property"), st.sampled_from(NAMES)),
    st.tuples(st.just("text"), st.sampled_from(TEXTS)),
    st.tuples(st.just("number"), st.sampled_from(NUMBERS)),
    st.tuples(st.just("constant"), st.sampled_from(("TRUE", "FALSE", "NULL"))),
)


def _operators(inner: st.SearchStrategy[tuple[object, ...]]) -> st.SearchStrategy[tuple[object, ...]]:
    some = st.booleans()
    return st.one_of(
        st.tuples(st.sampled_from(("=", "<>", "<", "<=", ">", ">=")), inner, inner),
        st.tuples(st.sampled_from(("and", "or")), inner, inner),
        st.tuples(st.sampled_from(("and", "or")), inner, inner, inner),
        st.tuples(st.sampled_from(("not", "not", "-", "+")), inner),
        st.tuples(st.just("is"), inner, some),
        st.tuples(st.just("between"), inner, inner, inner, some),
        st.tuples(st.just("in"), inner, st.lists(st.sampled_from(TEXTS), min_size=1, max_size=6), some),
        st.tuples(
            st.just("search"),
            inner,
            st.sampled_from(("CONTAINS", "STARTSWITH", "ENDSWITH")),
            st.sampled_from(TEXTS),
            some,
        ),
    )


TREES = st.recursive(_LEAVES, _operators, max_leaves=8)
"""Trees for `tests.support.sql_reference`; many are refused."""
