"""Scheduled messages: those that wait in no queue until log time has come to their due time.

A run of kind SCHEDULED becomes one row, which is a unit: the entry that holds the copies of its messages removes it, by
the command `deliver_timers`. A row by position finds the message that waits, and tells below what the log must not be
trimmed. The counters are a row too, so that nothing is scanned when a node starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from raftlog.errors import InvariantViolationError
from statemachine import keys
from statemachine.commands import CommandResult, InvalidCommandError, checked_int, done
from statemachine.kv import KV, TIMER
from statemachine.payload import ITEM
from statemachine.query import QueueItem
from statemachine.stage import Stage

RUN_MAX = 256
"""Messages of a row."""
NEVER = keys.U64_MAX + 1
"""Later than every due time."""


class TimerCounts(NamedTuple):
    """Messages, by what became of them."""

    pending: int = 0
    pending_bytes: int = 0
    delivered: int = 0
    dropped: int = 0
    """Their topic was deleted, or they cannot be read any more."""


class TimerRow(NamedTuple):
    """Messages of one entry for one queue that are due together; `items` as in a consume queue."""

    due_ms: int
    position: int
    """Of the first message."""
    topic_id: int
    queue_id: int
    items: bytes

    def messages(self) -> list[QueueItem]:
        """Where the messages lie; queue offset 0, they are in none."""
        return [QueueItem(0, *item) for item in ITEM.iter_unpack(self.items)]


class Timers:
    """Written by apply. `earliest`, `counts` and the reads below may be used on any thread."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        row = kv.get(TIMER, keys.TIMER_COUNTS_KEY)
        self.counts = self._staged = TimerCounts() if row is None else TimerCounts(*keys.TIMER_COUNTS.unpack(row))
        """Replaced as a whole."""
        self.earliest = self._first_due(0)
        """The earliest due time; NEVER if nothing waits."""
        self._lowest_added = NEVER
        self._removed = False

    # -- any thread

    def due(self, now_ms: int) -> Iterator[TimerRow]:
        """The rows that are due at `now_ms` of log time, in the order of due time and position."""
        for key, value in self._kv.scan(TIMER, *keys.timer_due_range(now_ms)):
            yield _row(key, value)

    def get(self, due_ms: int, position: int) -> TimerRow | None:
        """The row; None if it was delivered or dropped."""
        key = keys.timer_key(due_ms, position)
        value = self._kv.get(TIMER, key)
        return None if value is None else _row(key, value)

    def at(self, position: int) -> tuple[TimerRow, QueueItem] | None:
        """The message whose first byte is at `position`, and its row; None if none waits there."""
        found = self._kv.seek_last(TIMER, *keys.timer_position_range(position))
        if found is None:
            return None
        row = self.get(keys.U64.unpack(found[1])[0], keys.timer_position(found[0]))
        if row is None:
            return None
        item = next((item for item in row.messages() if item.position == position), None)
        return None if item is None else (row, item)

    def lowest_position(self) -> int | None:
        """The lowest position of a message that waits; None if none does."""
        found = next(self._kv.scan(TIMER, *keys.timer_position_range(keys.U64_MAX)), None)
        return None if found is None else keys.timer_position(found[0])

    # -- apply

    def add(self, stage: Stage, topic_id: int, queue_id: int, due_ms: int, items: bytes) -> None:
        """A run of scheduled messages."""
        if not 0 < len(items) <= RUN_MAX * ITEM.size:
            raise InvariantViolationError(f"a run of {len(items) // ITEM.size} scheduled messages")
        position, count, size = _measured(items)
        stage.put_new(TIMER, keys.timer_key(due_ms, position), keys.TIMER_QUEUE.pack(topic_id, queue_id) + items)
        stage.put_new(TIMER, keys.timer_position_key(position), keys.U64.pack(due_ms))
        counts = self._staged
        self._count(stage, counts._replace(pending=counts.pending + count, pending_bytes=counts.pending_bytes + size))
        self._lowest_added = min(self._lowest_added, due_ms)

    def remove(self, stage: Stage, rows: Any, *, delivered: bool) -> CommandResult:
        """Removes these rows, [[due, position], ...]; value: how many messages they had. One that is not there is
        passed over: a defect of a leader must not stop every node."""
        if type(rows) is not list:
            raise InvalidCommandError(f"rows must be a list, not {rows!r}")
        checked = [_checked(row) for row in rows]
        removed = 0
        for due_ms, position in checked:
            key = keys.timer_key(due_ms, position)
            value = stage.get(TIMER, key)
            if value is None:
                continue
            stage.unput(TIMER, key)
            stage.unput(TIMER, keys.timer_position_key(position))
            _, count, size = _measured(value[keys.TIMER_QUEUE.size :])
            counts = self._staged
            field, so_far = ("delivered", counts.delivered) if delivered else ("dropped", counts.dropped)
            left = counts._replace(pending=counts.pending - count, pending_bytes=counts.pending_bytes - size)
            self._count(stage, left._replace(**{field: so_far + count}))
            self._removed = True
            removed += count
        return done(removed)

    def publish(self) -> None:
        """Publishes the run's changes; called when its batch is written."""
        lowest = min(self.earliest, self._lowest_added)
        if self._removed:
            lowest = self._first_due(lowest)
        self.earliest, self.counts = lowest, self._staged
        self._lowest_added, self._removed = NEVER, False

    def _count(self, stage: Stage, counts: TimerCounts) -> None:
        self._staged = counts
        stage.put(TIMER, keys.TIMER_COUNTS_KEY, keys.TIMER_COUNTS.pack(*counts))

    def _first_due(self, from_ms: int) -> int:
        """The earliest due time at or after `from_ms`, before which nothing waits."""
        if from_ms == NEVER:
            return NEVER
        start, end = keys.timer_key(from_ms, 0), keys.timer_due_range(keys.U64_MAX)[1]
        found = next(self._kv.scan(TIMER, start, end), None)
        return NEVER if found is None else keys.parse_timer_key(found[0])[0]


def _row(key: bytes, value: bytes) -> TimerRow:
    topic_id, queue_id = keys.TIMER_QUEUE.unpack_from(value)
    return TimerRow(*keys.parse_timer_key(key), topic_id, queue_id, value[keys.TIMER_QUEUE.size :])


def _measured(items: bytes) -> tuple[int, int, int]:
    """(position of the first, messages, their bytes)."""
    first: int = ITEM.unpack_from(items)[0]
    return first, len(items) // ITEM.size, sum([item[1] for item in ITEM.iter_unpack(items)])


def _checked(row: Any) -> tuple[int, int]:
    if type(row) is not list or len(row) != 2:
        raise InvalidCommandError(f"a row is [due, position], not {row!r}")
    return checked_int(row[0], "due", 0, keys.U64_MAX), checked_int(row[1], "position", 0, keys.U64_MAX)
