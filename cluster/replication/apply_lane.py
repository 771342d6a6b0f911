"""The apply lane: committed entries into the state machine, one WriteBatch per drain."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from raftlog.types import Entry
from statemachine.broker_state import ApplyRun, BrokerState


class Applied(NamedTuple):
    """One drain: the entries and, in the same order, what each of their commands answered."""

    entries: list[Entry]
    run: ApplyRun
    seconds: float


class ApplyLane:
    """Owns the writing side of BrokerState. An invariant violation propagates: the node stops."""

    idle_after_s: float | None = None

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def drain(self, batch: Sequence[list[Entry]]) -> Applied:
        """Applies all gathered runs as one."""
        start = perf_counter()
        entries = batch[0] if len(batch) == 1 else [entry for run in batch for entry in run]
        return Applied(entries, self._state.apply(entries), perf_counter() - start)

    def idle(self) -> None:
        """Nothing to do."""
