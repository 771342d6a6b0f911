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

    def __init__(self, state: BrokerState, wal_flush_ms: int = 1000) -> None:
        """`wal_flush_ms`: sync RocksDB's WAL after this long without work (the Raft log is the redo log)."""
        self._state = state
        self.idle_after_s: float | None = wal_flush_ms / 1000

    def drain(self, batch: Sequence[list[Entry]]) -> Applied:
        """Applies all gathered runs as one."""
        start = perf_counter()
        entries = batch[0] if len(batch) == 1 else [entry for run in batch for entry in run]
        return Applied(entries, self._state.apply(entries), perf_counter() - start)

    def idle(self) -> None:
        """Syncs the WAL, so that a restart replays less."""
        self._state.flush()
