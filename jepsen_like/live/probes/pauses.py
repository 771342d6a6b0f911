"""Pauses as single clients saw them: the longest time in which one of them waited and nothing of its own succeeded."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jepsen_like.history import Op


class Blow(NamedTuple):
    """Something was done to the cluster. Nanoseconds on the clock of the history."""

    at_ns: int
    until_ns: int
    """End of the blow: a pause that begins later is not its doing; one that began before counts until it ends."""


class Acks:
    """The times at which each writer was told of a success; a writer is what stands before the dash of its
    message ids.
    """

    def __init__(self, ops: Iterable[Op]) -> None:
        found: dict[str, list[int]] = defaultdict(list)
        for op in ops:
            if op.f == "send" and op.type == "ok":
                found[str(op.value["id"]).partition("-")[0]].append(op.time_ns)
        self._times = dict(found)

    @property
    def writers(self) -> list[str]:
        """The writers that were acknowledged anything."""
        return sorted(self._times)

    def worst_us(self, blow: Blow) -> int | None:
        """Microseconds of the longest pause of any writer that was not over at the blow and began before its end.

        Whole, from the acknowledgement before to the one after. None if a writer was never acknowledged again.
        """
        pauses = [_longest_ns(times, blow) for times in self._times.values()]
        return max(pauses, default=-1) // 1000 if pauses and -1 not in pauses else None


def _longest_ns(times: Sequence[int], blow: Blow) -> int:
    """Returns the longest pause in nanoseconds; -1 if it did not end."""
    first = max(0, bisect_right(times, blow.at_ns) - 1)
    last = bisect_left(times, blow.until_ns)
    if last >= len(times):
        return -1
    return max((later - earlier for earlier, later in itertools.pairwise(times[first : last + 1])), default=0)
