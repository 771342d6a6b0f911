"""Evaluates a filter on one message in steps. A step stops before a term when its units of work are used up, and the
next step continues there.

To continue, the filter begins again at its root, and each term that was already evaluated returns its remembered value.
So each operator has one implementation, and each term is evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cluster.broker.filters.java_values import NUMBER_LENGTH_MAX, SEARCH_UNITS_MAX, IncomparableError
from raftlog.work import charge

Resume = Callable[[Any], Any]
"""Computes the value of an operand from a Judging. Raises IncomparableError, and PausedError when the units of this
step are used up."""


class PausedError(Exception):
    """Raised before a term that must wait for the next step."""


class Judging:
    """The state of evaluating one filter on one message."""

    __slots__ = ("__weakref__", "_known", "_resume", "_units", "get", "verdict")

    def __init__(self, resume: Resume, properties: Mapping[str, str]) -> None:
        self._resume = resume
        self._known: dict[object, Any] = {}
        """Term -> its value, for the terms that were evaluated."""
        self._units = 0
        """The units of work that are left in this step."""
        self.get = properties.get
        """Returns the value of a property. An operand outside of terms calls it on the Judging, as it would call `get`
        on the properties themselves."""
        self.verdict: bool | None = None
        """True if the filter selects the message, False if not; None until that is known."""

    def step(self, units: int) -> bool:
        """Evaluates at least one term, and more until `units` are used up. Returns True if the verdict is known."""
        self._units = units
        charge(1 + (len(self._known) >> 2))
        try:
            self.verdict = self._resume(self) is True
        except PausedError:
            return False
        except IncomparableError:
            self.verdict = False
        return True

    def value(self, term: Callable[[Any], Any], cost: FilterCost, names: tuple[str, ...]) -> Any:
        """Returns the value of a term, and evaluates the term first if that was not done before. Raises PausedError if
        this step has no units left, and IncomparableError if the term compares values that cannot be compared."""
        known = self._known
        if term in known:
            return known[term]
        if self._units <= 0:
            raise PausedError
        units = cost.units(max((len(self.get(name, "")) for name in names), default=0))
        self._units -= units
        charge(units)
        found = known[term] = term(self)
        return found


def term(evaluate: Callable[[Any], Any], cost: FilterCost, names: tuple[str, ...]) -> Resume:
    """Returns the term as a function of a Judging. A term is evaluated in one step. `cost`: its cost. `names`: the
    properties that it reads."""

    def resume(judging: Judging) -> Any:
        return judging.value(evaluate, cost, names)

    return resume


# The code below computes the highest cost of judging one message from the terms of a filter, in units of the meter
# (`raftlog.work`).
# The factors were measured on 2 cores with CPython 3.11, with the worst input of each kind, and rounded up. The factors
# must not be too small: a filter that costs more than it is charged makes a turn of the event loop longer than its
# share.


class FilterCost(NamedTuple):
    """The numbers from which the cost of a filter is computed: its terms, and the letters for which they search."""

    terms: int
    numbers: int
    """The number of terms that may read a property as a number."""
    searches: int
    """The number of terms that search for a text anywhere in a property."""
    searched: int
    """The number of letters of the texts for which these terms search."""

    def units(self, letters: int) -> int:
        """Returns the cost in units if no property has more than the given number of letters."""
        return (
            self.terms * (1 + (letters >> 9))
            + self.numbers * (1 + (min(letters, NUMBER_LENGTH_MAX) >> 5))
            + min(letters * self.searched >> 10, self.searches * SEARCH_UNITS_MAX)
        )


FREE = FilterCost(0, 0, 0, 0)
"""The cost of an operand without a term."""
COMPARES = FilterCost(1, 0, 0, 0)
"""The cost of a term that compares texts, or tests whether a property exists."""
READS_NUMBERS = FilterCost(1, 1, 0, 0)


def searches(text: str) -> FilterCost:
    """Returns the cost of a term that searches for `text` in a property."""
    return FilterCost(1, 0, 1, len(text))
