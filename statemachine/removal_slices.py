"""Carries out removals of many rows (removals.py): decides which rows each step walks over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statemachine.removals import SESSIONS, Done, Losers, Removal, RemovalKind, Removals
from statemachine.rows.kv import CQ, DEDUP, LOCKS, OFFSETS, RESETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statemachine.consume_queue import ConsumeQueues
    from statemachine.consuming.consumer_offsets import ConsumerOffsets
    from statemachine.consuming.offset_resets import OffsetResets
    from statemachine.consuming.queue_locks import QueueLocks
    from statemachine.consuming.queue_rows import QueueRows
    from statemachine.dedup import Dedup
    from statemachine.delivery.staged_writes import StagedWrites
    from statemachine.rows.write_batch import Stage


class RemovalSlices:
    """Begins removals of many rows, and carries out their slices. For the apply thread only."""

    def __init__(
        self,
        removals: Removals,
        queues: ConsumeQueues,
        dedup: Dedup,
        offsets: ConsumerOffsets,
        locks: QueueLocks,
        resets: OffsetResets,
        writes: StagedWrites,
    ) -> None:
        self._removals = removals
        self._writes = writes
        self._queues, self._dedup, self._locks = queues, dedup, locks
        self._rows: Mapping[str, QueueRows[Any]] = {OFFSETS: offsets, LOCKS: locks, RESETS: resets}

    def begin_topic(self, stage: Stage, topic_id: int, queues: int) -> None:
        """Hides all rows of a deleted topic, which had `queues` queues, and begins their removal."""
        self._removals.begin(stage, Removal(RemovalKind.TOPIC, topic_id))
        self._queues.forget_topic(topic_id, queues)

    def begin_group(self, stage: Stage, group: str, *, offsets: bool) -> None:
        """Hides a deleted group's locks and resets, and with `offsets` its offsets, and begins their removal."""
        removal = Removal(RemovalKind.GROUP, group, offsets)
        self._removals.begin(stage, removal)
        for family in removal.steps:
            self._rows[family].forget_group(group)

    def begin_expire(self, stage: Stage, before_ms: int) -> None:
        """Begins to remove sessions, unique rows and locks that were not used since that log time. Does nothing while
        another such removal is pending; the leader asks again later."""
        if not self._removals.expires:
            self._removals.begin(stage, Removal(RemovalKind.EXPIRE, before_ms))

    def go_on(self, stage: Stage, rows_max: int) -> None:
        """Carries out the next slice of the first removal; if that removal ends, the slice continues with the following
        ones. Each step counts as at least one row. The batch must contain nothing else, because the slice reads the
        store as it is."""
        removals = self._removals
        while rows_max > 0 and removals.first is not None:
            done = self._step(stage, removals.first, rows_max)
            rows_max -= max(1, done.rows)
            removals.go_on(stage, done.at)

    def _step(self, stage: Stage, removal: Removal, rows_max: int) -> Done:
        place, kind, what = self._removals.place, removal.kind, removal.what
        step, at = removal.steps[place.step], place.at
        if kind is RemovalKind.TOPIC:
            rows = self._queues if step == CQ else self._dedup if step == DEDUP else self._rows[step]
            return rows.remove_topic(stage, what, at, rows_max)
        if kind is RemovalKind.GROUP:
            last = self._removals.is_last_of_group(what)
            return self._rows[step].remove_group(stage, what, at, rows_max, last=last)
        if kind is RemovalKind.WRITE:
            return self._writes.discard_losers(stage, Losers(*what), at, rows_max)
        if step == LOCKS:
            return self._locks.expire_slice(stage, what, at, rows_max)
        expire = self._dedup.expire_sessions if step == SESSIONS else self._dedup.expire_unique
        return expire(stage, what, at, rows_max)
