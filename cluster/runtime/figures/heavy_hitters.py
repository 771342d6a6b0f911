"""A sketch of the heaviest items of a stream, in bounded memory.

Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, 2005):
there are `places` counters. A new item takes over the smallest counter together with its count, which is then the
possible error of the item. An item that came more than total / places times always has a counter. Every count is too
high by at most total / places.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import nlargest
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class Heavy(NamedTuple, Generic[T]):
    """An item and its count, `times`, which is too high by at most `error`."""

    item: T
    times: int
    error: int

    @property
    def sure(self) -> int:
        """The least number of times that the item can have come."""
        return self.times - self.error


class HeavyHitters(Generic[T]):
    """Counts the items of a stream that come most often."""

    def __init__(self, places: int) -> None:
        """`places`: the most items that are counted at a time."""
        self._places = places
        self._counts: dict[T, int] = {}
        self._errors: dict[T, int] = {}
        self.total = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, item: T, count: int) -> None:
        """Counts the item `count` times."""
        self.total += count
        counts = self._counts
        if item in counts:
            counts[item] += count
        elif len(counts) < self._places:
            counts[item] = count
        else:
            least = min(counts, key=counts.__getitem__)
            error = counts.pop(least)
            self._errors.pop(least, None)
            counts[item] = error + count
            self._errors[item] = error

    def heaviest(self, number: int) -> list[Heavy[T]]:
        """Returns at most `number` items, the highest count first; items with equal counts in the order in which they
        got their counters."""
        found = nlargest(number, self._counts.items(), key=lambda each: each[1])
        return [Heavy(item, count, self._errors.get(item, 0)) for item, count in found]
