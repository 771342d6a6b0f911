"""A SQL92 filter, parsed once and applied to many messages."""

from __future__ import annotations

from collections import OrderedDict

from cluster.broker.filters import conditions, grammar
from cluster.broker.filters.conditions import Properties
from cluster.broker.filters.errors import FilterError, IncomparableError
from cluster.broker.filters.judging import Judging

TEXT_MAX = 16 << 10
"""Characters of a filter."""
CACHED_MAX = 128 << 10
"""Characters of all filters that are remembered, with what became of them."""
BYTES_PER_CHARACTER = 200
"""Of a parsed filter, at most."""


class SqlFilter:
    """A condition on the properties of messages."""

    __slots__ = ("__weakref__", "_cost", "_evaluate", "_resume", "text")

    def __init__(self, text: str) -> None:
        """Raises FilterError."""
        if len(text) > TEXT_MAX:
            raise FilterError(f"a filter has at most {TEXT_MAX} characters, this one has {len(text)}", TEXT_MAX + 1)
        self.text = text
        whole = conditions.whole(grammar.parse(text))
        self._evaluate, self._resume, self._cost = whole.evaluate, whole.resume, whole.cost

    def matches(self, properties: Properties) -> bool:
        """Whether the condition is true: neither false, nor unknown, nor a comparison of what cannot be compared."""
        try:
            return self._evaluate(properties) is True
        except IncomparableError:
            return False

    def judging(self, properties: Properties) -> Judging:
        """The same in parts."""
        return Judging(self._resume, properties)

    def units(self, letters: int) -> int:
        """What `matches` costs at most (`raftlog.work`) if no property has more than so many letters."""
        return self._cost.units(letters)

    @property
    def kept_bytes(self) -> int:
        """The memory that it takes, roughly."""
        return BYTES_PER_CHARACTER * len(self.text)


class _Cache:
    """The filters that were asked for last, wrong ones too: consumers send theirs with every pull."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, SqlFilter | FilterError] = OrderedDict()
        self._characters = 0

    def get(self, text: str) -> SqlFilter | FilterError:
        known = self._known.get(text)
        if known is not None:
            self._known.move_to_end(text)
            return known
        try:
            made: SqlFilter | FilterError = SqlFilter(text)
        except FilterError as error:
            made = error.with_traceback(None)
        if len(text) <= TEXT_MAX:
            self._known[text] = made
            self._characters += len(text) + 1
            while self._characters > CACHED_MAX:
                self._characters -= len(self._known.popitem(last=False)[0]) + 1
        return made


_cache = _Cache()


def sql_filter(text: str) -> SqlFilter:
    """The filter. Raises FilterError."""
    found = _cache.get(text)
    if isinstance(found, FilterError):
        raise FilterError(found.reason, found.at)
    return found
