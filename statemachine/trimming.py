"""Carries out TRIM entries: moves the beginning of the log, of every queue and of the index, at once or in slices."""

from __future__ import annotations

from typing import Self

from raftlog.types import Entry, EntryType
from statemachine.consume_queue import ConsumeQueues
from statemachine.family import Families, Family, takes
from statemachine.message_index import MessageIndex
from statemachine.removal_slices import RemovalSlices
from statemachine.rows import keys
from statemachine.rows.kv import CQ, INDEX
from statemachine.rows.write_batch import Stage
from statemachine.tier import TierSegments
from statemachine.trim import RemoveRows, Slice, Sweep, TrimState, decode, highest


class Trimming(Family):
    """Applies TRIM entries. It has no rows of its own."""

    changed = False

    def __init__(self, families: Families) -> None:
        self._trim, self._tier = families[TrimState], families[TierSegments]
        self._queues, self._index = families[ConsumeQueues], families[MessageIndex]
        self._removals = families[RemovalSlices]

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this part of a state. `families` has the families whose rows it trims."""
        return cls(families)

    @takes(EntryType.TRIM)
    def apply(self, stage: Stage, entry: Entry) -> None:
        """Applies a TRIM entry: moves the beginning of the log, of every queue and of the index, or begins or continues
        to do so in slices. The entry has a batch of its own (`runs_of`)."""
        trim = decode(entry.payload)
        if isinstance(trim, RemoveRows):
            self._removals.go_on(stage, trim.rows)
        elif isinstance(trim, Slice):
            sweep = self._trim.sweep
            # a slice that came late or twice, after the end of its sweep, does nothing
            if sweep is not None and sweep.index == trim.cut:
                self._sweep(stage, sweep, trim.rows, entry)
        elif trim.sliced:
            if not trim.evicts or trim.position <= self._tier.verified_to(self._trim.mark.position):
                self._trim.begin(stage, trim, entry)
        else:
            keeps = self._trim.leaves_tier(trim.position)
            self._trim.set(stage, trim.position, trim.first_index, entry)
            self._queues.trim(stage, trim.position, highest(trim.queues), keeps=keeps)
            self._index.trim(stage, trim.position)

    def _sweep(self, stage: Stage, sweep: Sweep, rows_max: int, entry: Entry) -> None:
        """Carries out the next slice of a sweep (a cut of the log's beginning): first of the queues, then of the
        index."""
        if sweep.family == CQ:
            keeps = sweep.evicts or self._trim.leaves_tier(sweep.position)
            at = self._queues.trim(stage, sweep.position, sweep.queues, sweep.at, rows_max, keeps=keeps)
            self._trim.go_on(stage, INDEX if at is None else CQ, at or keys.FIRST)
            return
        at = self._index.trim_slice(stage, sweep.position, sweep.at, rows_max)
        if at is None:
            self._trim.end(stage, entry)
        else:
            self._trim.go_on(stage, INDEX, at)
