"""The apply lane: committed entries into the state machine, one WriteBatch per drain."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from raftlog.types import Entry
from statemachine.broker_state import ApplyRun, BrokerState
from statemachine.kv import KVError

logger = logging.getLogger(__name__)


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


class FlushLane:
    """Syncs RocksDB's WAL, beside apply and in no batch's way: it only shortens the replay after a power loss."""

    idle_after_s: float | None = None

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def drain(self, batch: Sequence[object]) -> None:
        """Syncs once, however often it was asked. Failing loses nothing: the Raft log is the redo log."""
        try:
            self._state.flush()
        except KVError as error:
            logger.warning("RocksDB's WAL could not be synced: %s", error)

    def idle(self) -> None:
        """Nothing to do."""
