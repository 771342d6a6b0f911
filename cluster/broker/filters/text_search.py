"""Whether a text occurs in another, in a time that does not depend on what the two are.

CPython's search takes time by the product of both lengths for some sizes: 6 ms for 9,000 letters in 10,000. From 30,000
letters on it takes the two-way algorithm, whose time is linear; a shorter text is therefore filled up.
"""

from __future__ import annotations

PLAIN_MAX = 1 << 16
"""Product of the lengths up to which the search is quick whatever it meets."""
SHORT_TEXT = 6
"""A shorter text is looked for without the two-way algorithm, whatever the other's length."""
FILLED = 1 << 15
"""No property is longer."""
SEARCH_UNITS_MAX = 140
"""Of one search, at most."""


def contains(value: str, text: str) -> bool:
    """`text in value`."""
    if len(text) < SHORT_TEXT or len(value) * len(text) <= PLAIN_MAX:
        return text in value
    # What would reach into the filling would end with a letter of it, and `text` ends with another.
    return text in value.ljust(FILLED, "b" if text[-1] == "a" else "a")
