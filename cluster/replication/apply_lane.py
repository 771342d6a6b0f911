"""The apply lane: committed entries into the state machine, one WriteBatch per drain.

A drain is bounded: what it applies is one batch and one report, and the loop works through the report in one turn. A
node that catches up gets entries in runs of megabytes; they are cut into pieces, each of which is reported by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

from cluster.runtime.environment import APPLY_BYTES
from raftlog.types import Entry, EntryType
from statemachine.broker_state import ApplyRun, BrokerState

COMMAND_WEIGHT = 8
"""A byte of commands is as much work as so many of messages: twenty of them may be a row, or a topic."""
ENTRIES_MAX = 128
"""Entries of one piece, and of one drain before its last piece: each is work, however few bytes it has."""


class Applied(NamedTuple):
    """One drain: the entries and, in the same order, what each of their commands answered."""

    entries: list[Entry]
    run: ApplyRun
    seconds: float


def size_of(run: Sequence[Entry]) -> int:
    """How much work it is to apply the run, in bytes of messages."""
    size = run[-1].position - run[0].position + len(run[-1].payload)
    for entry in run:
        if entry.type == EntryType.COMMAND:
            size += len(entry.payload) * (COMMAND_WEIGHT - 1)
    return size


class ApplyLane:
    """Owns the writing side of BrokerState. An invariant violation propagates: the node stops."""

    idle_after_s: float | None = None

    def __init__(self, state: BrokerState, drain_bytes: int = APPLY_BYTES) -> None:
        self._state = state
        self.weight_max = drain_bytes
        """See `lanes.room_of`."""

    def weigh(self, run: list[Entry]) -> int:
        """See `lanes.room_of`."""
        return max(size_of(run), self.weight_max * len(run) // ENTRIES_MAX)

    def drain(self, batch: Sequence[list[Entry]]) -> Applied:
        """Applies all gathered runs as one."""
        start = perf_counter()
        entries = batch[0] if len(batch) == 1 else [entry for run in batch for entry in run]
        return Applied(entries, self._state.apply(entries), perf_counter() - start)

    def idle(self) -> None:
        """Nothing to do."""


def pieces(run: list[Entry], size_max: int = APPLY_BYTES) -> Iterator[list[Entry]]:
    """The run in parts of at most this size and ENTRIES_MAX, or of one entry."""
    if len(run) == 1 or (len(run) <= ENTRIES_MAX and size_of(run) <= size_max):
        yield run
        return
    start = size = 0
    for at, entry in enumerate(run):
        size += size_of((entry,))
        if at > start and (size > size_max or at - start == ENTRIES_MAX):
            yield run[start:at]
            start, size = at, size_of((entry,))
    yield run[start:]
