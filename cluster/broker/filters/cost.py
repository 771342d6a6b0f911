"""What judging one message costs at most, in units of the meter (`raftlog.work`), by what the terms of a filter do.

Measured on 2 cores with CPython 3.11, worst input of each kind, rounded up. The factors must not be too small: a filter
that costs more than it is charged makes a turn of the event loop longer than its share.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster.broker.filters.java_values import NUMBER_LENGTH_MAX
from cluster.broker.filters.text_search import SEARCH_UNITS_MAX


class Cost(NamedTuple):
    """Counts of a filter's terms, and of letters that they look for."""

    terms: int
    numbers: int
    """Those that may read a property as a number."""
    searches: int
    """Those that look for a text anywhere in a property."""
    searched: int
    """Letters of the texts that these look for."""

    def units(self, letters: int) -> int:
        """If no property has more than so many letters."""
        return (
            self.terms * (1 + (letters >> 9))
            + self.numbers * (1 + (min(letters, NUMBER_LENGTH_MAX) >> 5))
            + min(letters * self.searched >> 10, self.searches * SEARCH_UNITS_MAX)
        )


FREE = Cost(0, 0, 0, 0)
"""Without a term."""
COMPARES = Cost(1, 0, 0, 0)
"""A term that compares texts, or asks whether there is one."""
READS_NUMBERS = Cost(1, 1, 0, 0)


def searches(text: str) -> Cost:
    """Of a term that looks for the text."""
    return Cost(1, 0, 1, len(text))
