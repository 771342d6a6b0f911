"""The term of each index of the log, as ranges: memory grows with elections, not with entries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class TermRanges:
    """The term of each index of the log, as ascending (first index, term) pairs.

    Invariant: indices and terms both strictly ascend (a log's terms never decrease, Raft paper 5.3).
    """

    __slots__ = ("_firsts", "_terms")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._terms: list[int] = []
        for first, term in ranges:
            self.add(first, term)

    def add(self, index: int, term: int) -> None:
        """Records that the entry appended at `index` has `term`."""
        if not self._terms or self._terms[-1] != term:
            self._firsts.append(index)
            self._terms.append(term)

    def truncate_from(self, index: int) -> None:
        """Forgets `index` and everything above."""
        while self._firsts and self._firsts[-1] >= index:
            self._firsts.pop()
            self._terms.pop()

    def forget_below(self, index: int) -> None:
        """Forgets everything below `index`, which must be in the log."""
        gone = bisect_right(self._firsts, index) - 1
        if gone >= 0:
            del self._firsts[:gone], self._terms[:gone]
            self._firsts[0] = max(self._firsts[0], index)

    def prepend(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Adds `ranges` in front, because the log now begins earlier; they cover it up to its former beginning."""
        later = list(zip(self._firsts, self._terms, strict=True))
        self._firsts, self._terms = [], []
        for first, term in (*ranges, *later):
            self.add(first, term)

    def at(self, index: int) -> int:
        """Returns the term of the entry at `index`, which must be in the log."""
        firsts = self._firsts
        if index >= firsts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(firsts, index) - 1]

    def last_not_above(self, index: int, term: int) -> tuple[int, int]:
        """Returns (index, term) of the largest entry with index <= `index` and term <= `term`.

        Returns (first - 1, 0) if there is none, `first` being the lowest index known; (-1, 0) for an empty log.
        """
        at = bisect_right(self._firsts, index) - 1
        while at >= 0 and self._terms[at] > term:
            index = self._firsts[at] - 1
            at -= 1
        if at < 0:
            return (self._firsts[0] - 1 if self._firsts else -1), 0
        return index, self._terms[at]
