"""The applied state: a list of operations, each once (dedup by operation), durable somewhere behind what is applied."""

from __future__ import annotations

import random

from raftlog.types import Entry, EntryType


class ListMachine:
    """Applies entries in order; position of an operation = its place in the list."""

    __slots__ = ("durable_index", "lengths", "positions", "values")

    def __init__(self) -> None:
        self.values: list[int] = []
        self.positions: dict[int, int] = {}
        self.lengths = [0]
        """Length of the list after each index; GENESIS is applied from the start."""
        self.durable_index = 0

    @property
    def applied_index(self) -> int:
        """Index of the last entry applied."""
        return len(self.lengths) - 1

    def apply(self, entry: Entry) -> int:
        """Position of the entry's operation, -1 for an entry without one. The caller checks the index."""
        position = -1
        if entry.type == EntryType.MESSAGES:
            operation = int.from_bytes(entry.payload[:4], "big")
            known = self.positions.get(operation)
            if known is None:
                position = self.positions[operation] = len(self.values)
                self.values.append(operation)
            else:
                position = known
        self.lengths.append(len(self.values))
        return position

    def crash(self, rng: random.Random) -> None:
        """Keeps an older state, whole: rows and applied index move together."""
        index = self.durable_index = rng.randint(self.durable_index, self.applied_index)
        del self.lengths[index + 1 :]
        length = self.lengths[index]
        for operation in self.values[length:]:
            del self.positions[operation]
        del self.values[length:]
