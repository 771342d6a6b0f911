"""Sends column by column: what most queues of most runs are judged by, in passes that are mostly C.

A million messages are a million sends at which nobody looks one by one as long as nothing is wrong. So they are
columns, and become objects (`messages.Send`) only when a queue has to be taken apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, islice
from operator import lt
from typing import NamedTuple

NEVER = 1 << 62
"""Above the index of every step."""


class Rows(NamedTuple):
    """The sends that were acknowledged in one queue, in order of their acknowledgements.

    Numbers are kept as 64 bits side by side: as objects they would lie all over the memory that their steps once took.
    """

    offsets: array[int]
    ids: list[str]
    topics: list[str]
    """Topics that the messages were sent to."""
    producers: list[str | None]
    invoked: array[int]
    """Indexes of steps, like `completed`."""
    completed: array[int]


def no_rows() -> Rows:
    """Returns rows of no send."""
    return Rows(array("q"), [], [], [], array("q"), array("q"))


class Shelf(NamedTuple):
    """The sends of one queue by offset."""

    offsets: list[int]
    ids: list[str]
    invoked: list[int]
    completed: list[int]
    """NEVER for a guest: a send that nobody acknowledged, and that stands there all the same."""
    topics: frozenset[str]

    @classmethod
    def of(cls, rows: Rows) -> Shelf:
        """Returns the shelf of these sends, sorted by offset."""
        return cls(*_by_offset(rows.offsets, rows.ids, rows.invoked, rows.completed), frozenset(rows.topics))

    def with_guests(
        self, offsets: Sequence[int], ids: Sequence[str], invoked: Sequence[int], topics: Sequence[str]
    ) -> Shelf:
        """Returns the shelf with these guests beside its sends."""
        columns = _by_offset(
            [*self.offsets, *offsets],
            [*self.ids, *ids],
            [*self.invoked, *invoked],
            [*self.completed, *(NEVER for _ in ids)],
        )
        return Shelf(*columns, self.topics.union(topics))

    def keeps_real_time(self) -> bool:
        """Returns True if no send stands behind one invoked after it had completed: the thorough pass then finds
        nothing.

        Walked down from the highest offset: nothing above a send may have completed before it was invoked.
        """
        earliest_above = accumulate(reversed(self.completed), min)
        return not any(map(lt, earliest_above, islice(reversed(self.invoked), 1, None)))


NO_SENDS = Shelf([], [], [], [], frozenset())


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
