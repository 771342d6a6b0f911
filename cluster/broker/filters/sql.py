"""Defines the SQL92 filter, which is parsed once and applied to many messages."""

from __future__ import annotations

import itertools
from collections.abc import Generator

from cluster.broker.filters import conditions, grammar
from cluster.broker.filters.conditions import Operand, Properties
from cluster.broker.filters.java_values import FilterError, IncomparableError
from cluster.broker.filters.stepwise_evaluation import Judging

TEXT_MAX = 16 << 10
"""The most characters of a filter."""
BYTES_PER_CHARACTER, BYTES_OF_ANY = 240, 1024
"""The most bytes of memory of a parsed filter: so many for each character, and so many for any filter in addition."""


_numbers = itertools.count()


class SqlFilter:
    """A condition on the properties of messages. `number` is unique, so that remembered verdicts of one filter are
    never taken for those of a later filter."""

    __slots__ = ("__weakref__", "_cost", "_evaluate", "_resume", "number", "text")

    def __init__(self, text: str) -> None:
        """Parses the text. Raises FilterError if it is not a filter, or is longer than TEXT_MAX."""
        check_length(text)
        self._take(text, grammar.parse(text))

    @classmethod
    def parsing(cls, text: str) -> Generator[None, None, SqlFilter]:
        """Returns the parsed filter. Works in bounded steps. Raises FilterError in the same cases as the
        constructor."""
        check_length(text)
        operand = yield from grammar.parsing(text)
        made = cls.__new__(cls)
        made._take(text, operand)
        return made

    def _take(self, text: str, operand: Operand) -> None:
        whole = conditions.whole(operand)
        self.text = text
        self.number = next(_numbers)
        self._evaluate, self._resume, self._cost = whole.evaluate, whole.resume, whole.cost

    def matches(self, properties: Properties) -> bool:
        """Returns True if the condition is True for these properties. Returns False if it is False or unknown, or if it
        compares values that cannot be compared."""
        try:
            return self._evaluate(properties) is True
        except IncomparableError:
            return False

    def judging(self, properties: Properties) -> Judging:
        """Returns a Judging, which computes the result of `matches` in steps."""
        return Judging(self._resume, properties)

    def units(self, letters: int) -> int:
        """Returns the most units (`raftlog.work`) that `matches` costs if no property has more than the given number of
        letters."""
        return self._cost.units(letters)

    @property
    def kept_bytes(self) -> int:
        """Returns the approximate bytes of memory that the filter takes."""
        return BYTES_OF_ANY + BYTES_PER_CHARACTER * len(self.text)


def check_length(text: str) -> None:
    """Raises FilterError if the text is too long for a filter."""
    if len(text) > TEXT_MAX:
        raise FilterError(f"a filter has at most {TEXT_MAX} characters, this one has {len(text)}", TEXT_MAX + 1)
