"""The simulator's state machine: a list of operations, each once (dedup by operation). Its durable state is somewhere
behind the applied state.

It also holds the members, as a state machine has to, because the entry that names them may be trimmed.
"""

from __future__ import annotations

import random

from raftlog.membership import Membership, decode
from raftlog.types import Entry, EntryType


class ListState:
    """Applies entries in order. The position of an operation is its place in the list."""

    __slots__ = ("durable_index", "lengths", "members", "positions", "values")

    def __init__(self, members: Membership) -> None:
        self.members = [members]
        """The members in GENESIS and in every applied MEMBERSHIP entry."""
        self.values: list[int] = []
        self.positions: dict[int, int] = {}
        self.lengths = [0]
        """The length of the list after each index; GENESIS is applied from the start."""
        self.durable_index = 0

    @property
    def applied_index(self) -> int:
        """The index of the last applied entry."""
        return len(self.lengths) - 1

    def apply(self, entry: Entry) -> int:
        """Applies the entry; returns the position of its operation, -1 for an entry without one. The caller checks the
        index.
        """
        position = -1
        if entry.type == EntryType.MESSAGES:
            operation = int.from_bytes(entry.payload[:4], "big")
            known = self.positions.get(operation)
            if known is None:
                position = self.positions[operation] = len(self.values)
                self.values.append(operation)
            else:
                position = known
        elif entry.type == EntryType.MEMBERSHIP:
            self.members.append(decode(entry))
        self.lengths.append(len(self.values))
        return position

    def crash(self, rng: random.Random) -> None:
        """Goes back to a random state between the durable and the applied one, rows and applied index together."""
        self.durable_index = rng.randint(self.durable_index, self.applied_index)
        self._go_back(self.durable_index)

    def take_over(self, other: ListState) -> None:
        """Replaces everything by the checkpoint of `other`."""
        self.lengths, self.values, self.positions = [*other.lengths], [*other.values], {**other.positions}
        self.members = [*other.members]
        self.durable_index = other.durable_index
        self._go_back(self.durable_index)

    def _go_back(self, index: int) -> None:
        del self.lengths[index + 1 :]
        while self.members[-1].index > index:
            self.members.pop()
        length = self.lengths[index]
        for operation in self.values[length:]:
            del self.positions[operation]
        del self.values[length:]
