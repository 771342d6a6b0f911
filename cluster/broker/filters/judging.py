"""Judging one message in parts: a filter stops before a term when its share is used up, and goes on there later.

To go on, the filter begins again at its root, and each term that was evaluated gives what it found then: so there is
one meaning of every operator, and a term is evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cluster.broker.filters.errors import IncomparableError
from raftlog.work import charge

if TYPE_CHECKING:
    from cluster.broker.filters.cost import Cost

Resume = Callable[[Any], Any]
"""Of a Judging. Raises IncomparableError, and PausedError where the share of this step ends."""


class PausedError(Exception):
    """The next term is for another step."""


class Judging:
    """One filter and one message."""

    __slots__ = ("__weakref__", "_known", "_resume", "_units", "get", "verdict")

    def __init__(self, resume: Resume, properties: Mapping[str, str]) -> None:
        self._resume = resume
        self._known: dict[object, Any] = {}
        """What each term found."""
        self._units = 0
        """What is left of this step."""
        self.get = properties.get
        """Operands outside of terms read properties as if this were these."""
        self.verdict: bool | None = None
        """Whether the filter wants the message; None until that is known."""

    def step(self, units: int) -> bool:
        """Evaluates terms until `units` are used up, at least one. Whether the verdict is known."""
        self._units = units
        charge(1 + (len(self._known) >> 2))
        try:
            self.verdict = self._resume(self) is True
        except PausedError:
            return False
        except IncomparableError:
            self.verdict = False
        return True

    def value(self, term: Callable[[Any], Any], cost: Cost, names: tuple[str, ...]) -> Any:
        """What the term finds, which is evaluated if it was not yet. Raises PausedError, IncomparableError."""
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


def term(evaluate: Callable[[Any], Any], cost: Cost, names: tuple[str, ...]) -> Resume:
    """The term in parts, whose only part it is. `names`: of the properties that it reads."""

    def resume(judging: Judging) -> Any:
        return judging.value(evaluate, cost, names)

    return resume
