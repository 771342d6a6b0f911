"""Sends as columns, so that most queues of most runs are judged in passes that mostly run in C.

A history may have a million sends, and examining them one by one takes long. So they are kept as columns, and become
objects (`messages.Send`) only if a queue has to be examined in detail.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, islice
from operator import lt
from typing import NamedTuple

NEVER = 1 << 62
"""A number above the index of every step."""


class QueueSends(NamedTuple):
    """The sends that were acknowledged in one queue, in order of their acknowledgements.

    Numbers are kept in arrays of 64-bit values, because Python's integer objects would be scattered over the memory.
    """

    offsets: array[int]
    ids: list[str]
    topics: list[str]
    """Topics that the messages were sent to."""
    producers: list[str | None]
    invoked: array[int]
    """Indexes of the invocation steps; `completed` has those of the completions."""
    completed: array[int]


def no_rows() -> QueueSends:
    """Returns the columns of a queue without sends."""
    return QueueSends(array("q"), [], [], [], array("q"), array("q"))


class SendColumns(NamedTuple):
    """The sends of one queue as columns, in order of offsets."""

    offsets: list[int]
    ids: list[str]
    invoked: list[int]
    completed: list[int]
    """Indexes of completions; NEVER for a guest, which is a send that was not acknowledged but was found in the queue.
    """
    topics: frozenset[str]

    @classmethod
    def of(cls, rows: QueueSends) -> SendColumns:
        """Returns these sends, sorted by offset."""
        return cls(*_by_offset(rows.offsets, rows.ids, rows.invoked, rows.completed), frozenset(rows.topics))

    def with_guests(
        self, offsets: Sequence[int], ids: Sequence[str], invoked: Sequence[int], topics: Sequence[str]
    ) -> SendColumns:
        """Returns these sends together with the given guests, sorted by offset."""
        columns = _by_offset(
            [*self.offsets, *offsets],
            [*self.ids, *ids],
            [*self.invoked, *invoked],
            [*self.completed, *(NEVER for _ in ids)],
        )
        return SendColumns(*columns, self.topics.union(topics))

    def keeps_real_time(self) -> bool:
        """Returns True if the offsets agree with real time: if one send completed before another was invoked, its
        offset is the lower one. Then the log checker need not compare the sends one by one.

        Walks down from the highest offset: no send above may have completed before the present one was invoked.
        """
        earliest_above = accumulate(reversed(self.completed), min)
        return not any(map(lt, earliest_above, islice(reversed(self.invoked), 1, None)))


NO_SENDS = SendColumns([], [], [], [], frozenset())


def _by_offset(
    offsets: Sequence[int], ids: Sequence[str], invoked: Sequence[int], completed: Sequence[int]
) -> tuple[list[int], list[str], list[int], list[int]]:
    order = sorted(range(len(offsets)), key=offsets.__getitem__)
    return (
        list(map(offsets.__getitem__, order)),
        list(map(ids.__getitem__, order)),
        list(map(invoked.__getitem__, order)),
        list(map(completed.__getitem__, order)),
    )
