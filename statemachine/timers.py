"""Scheduled messages: those that wait in no queue until log time has come to their due time.

A run of kind SCHEDULED becomes one row, which is a unit: the entry that holds the copies of its messages removes it, by
the command `deliver_timers`. A row by position finds the message that waits, and tells below what the log must not be
trimmed.

Millions of rows come and go, and what was removed costs a scan almost as much as what is there until RocksDB has
compacted it. So no read begins at the first key of the family: the first row by due time is known in memory and kept
in a row of its own, with the counters, and the edge below which no position waits only moves up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from raftlog.errors import InvariantViolationError
from statemachine import keys
from statemachine.commands import CommandResult, InvalidCommandError, checked_int, done, not_found
from statemachine.kv import KV, META, TIMER
from statemachine.payload import ITEM
from statemachine.query import QueueItem
from statemachine.stage import Stage

RUN_MAX = 256
"""Messages of a row."""
NEVER = keys.U64_MAX
"""Later than every due time."""
EDGE_STEP_BYTES, EDGE_STEPS_MAX = 1 << 20, 1024
"""How far a search for the lowest position looks at once, and how often: what was removed from so many bytes of the log
is passed in a few ms."""

TimerName = tuple[int, int]
"""(due_ms, position) of a row; in the order of delivery."""
_NO_ROW: TimerName = (NEVER, keys.U64_MAX)


class TimerCounts(NamedTuple):
    """Messages, by what became of them."""

    pending: int = 0
    pending_bytes: int = 0
    delivered: int = 0
    dropped: int = 0
    """Their topic was deleted, or the log does not reach down to them any more."""
    recalled: int = 0


class TimerRow(NamedTuple):
    """Messages of one entry for one queue that are due together; `items` as in a consume queue."""

    due_ms: int
    position: int
    """Of the first message, also if that was recalled."""
    topic_id: int
    queue_id: int
    items: bytes

    @property
    def name(self) -> TimerName:
        """What the commands call it."""
        return self.due_ms, self.position

    def messages(self) -> list[QueueItem]:
        """Where the messages lie; queue offset 0, they are in none."""
        return [QueueItem(0, *item) for item in ITEM.iter_unpack(self.items)]


class Timers:
    """Written by apply. `earliest`, `counts` and the reads below may be used on any thread."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        row = kv.get(TIMER, keys.TIMER_COUNTS_KEY)
        self.counts = self._staged = TimerCounts() if row is None else TimerCounts(*keys.unpack_timer_counts(row))
        """Replaced as a whole."""
        self.first = self._staged_first = self._stored_first(row)
        """The name of the first row by due time; `due_ms` of it is NEVER if nothing waits."""
        self._edge = 0
        """No message waits below this position of the log. Rows are added only at its end, so it never moves back."""
        self._added: list[TimerName] = []
        self._removed: set[TimerName] = set()
        """Of the run."""

    # -- any thread

    @property
    def earliest(self) -> int:
        """The earliest due time; NEVER if nothing waits."""
        return self.first[0]

    def due(self, now_ms: int, after: TimerName | None = None) -> Iterator[TimerRow]:
        """The rows that are due at `now_ms` of log time, in the order of due time and position; those behind the row
        `after` if it is given, whether it is still there or not."""
        first = self.first
        start = keys.timer_key(*first) if after is None or after < first else keys.timer_key(*after) + b"\0"
        end = keys.timer_due_end(now_ms)
        if start < end:
            for key, value in self._kv.scan(TIMER, start, end):
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

    def lowest_position(self, trim_position: int, end_position: int) -> int | None:
        """The lowest position at which a row of waiting messages begins; None if none waits. After millions of rows
        have gone, and after a start, it may take more than one call to find it: then it is a lower one.

        `trim_position`: where the log begins; `end_position`: as far as it is applied, of the moment before the call.
        """
        if not self.counts.pending:
            return None
        edge = max(self._edge, trim_position)
        for _ in range(EDGE_STEPS_MAX):
            end = keys.timer_position_key(edge + EDGE_STEP_BYTES)
            found = self._kv.first(TIMER, keys.timer_position_key(edge), end)
            if found is not None:
                edge = keys.timer_position(found[0])
            elif edge + EDGE_STEP_BYTES < end_position:
                edge += EDGE_STEP_BYTES
                continue
            break
        self._edge = edge
        return edge

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
        self._added.append((due_ms, position))

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
            self._remove_row(stage, due_ms, position, value)
            _, count, size = _measured(value[keys.TIMER_QUEUE.size :])
            counts = self._staged
            field, so_far = ("delivered", counts.delivered) if delivered else ("dropped", counts.dropped)
            left = counts._replace(pending=counts.pending - count, pending_bytes=counts.pending_bytes - size)
            self._count(stage, left._replace(**{field: so_far + count}))
            removed += count
        return done(removed)

    def recall(self, stage: Stage, due_ms: Any, position: Any, message_position: Any) -> CommandResult:
        """Takes one message out of a row; the row keeps its name. `not_found` if it does not wait there (any more)."""
        due_ms, position = _checked([due_ms, position])
        message_position = checked_int(message_position, "message_position", 0, keys.U64_MAX)
        key = keys.timer_key(due_ms, position)
        value = stage.get(TIMER, key)
        items = b"" if value is None else value[keys.TIMER_QUEUE.size :]
        left, size = _without(items, message_position)
        if value is None or not size:
            return not_found(f"no message at position {message_position} waits until {due_ms}")
        if left:
            if key not in stage.rows[TIMER]:
                stage.before[TIMER][key] = value
            stage.put(TIMER, key, value[: keys.TIMER_QUEUE.size] + left)
        else:
            self._remove_row(stage, due_ms, position, value)
        counts = self._staged
        pending, pending_bytes = counts.pending - 1, counts.pending_bytes - size
        recalled = counts.recalled + 1
        self._count(stage, counts._replace(pending=pending, pending_bytes=pending_bytes, recalled=recalled))
        return done()

    def stage_front(self, stage: Stage) -> None:
        """Stages which row is the first; called when all else of the run is staged."""
        if not self._added and not self._removed and self._staged == self.counts:
            return
        first = min([self.first, *self._added])
        if first in self._removed:
            first = self._staged_first_row(stage, first)
        self._staged_first = first
        row = keys.pack_timer_counts(self._staged) + keys.TIMER_FRONT.pack(*first)
        stage.put(META, keys.TIMER_FRONT_KEY, row)

    def publish(self) -> None:
        """Publishes the run's changes; called when its batch is written."""
        if self._staged is not self.counts:
            self.first, self.counts = self._staged_first, self._staged
            self._added, self._removed = [], set()

    def _remove_row(self, stage: Stage, due_ms: int, position: int, value: bytes) -> None:
        """`value`: of the row as of the stage."""
        key, position_key = keys.timer_key(due_ms, position), keys.timer_position_key(position)
        before = stage.before[TIMER]
        if before.get(key) is None:
            stage.unput(TIMER, key)
        else:
            stage.delete(TIMER, key)  # a message of it was recalled in this run
        stage.unput(TIMER, position_key)
        before.setdefault(key, value)
        before.setdefault(position_key, keys.U64.pack(due_ms))
        self._removed.add((due_ms, position))

    def _count(self, stage: Stage, counts: TimerCounts) -> None:
        self._staged = counts
        stage.put(TIMER, keys.TIMER_COUNTS_KEY, keys.pack_timer_counts(counts))

    def _staged_first_row(self, stage: Stage, start: TimerName) -> TimerName:
        """The first row as of the stage, which has none before `start`."""
        added = [name for name in self._added if name not in self._removed]
        end = keys.TIMER_DUE_END
        for key, _ in self._kv.scan(TIMER, keys.timer_key(*start), end):
            name = keys.parse_timer_key(key)
            if name not in self._removed:
                added.append(name)
                break
        return min(added, default=_NO_ROW)

    def _stored_first(self, counts: bytes | None) -> TimerName:
        """The first row as it was kept. A release that did not keep it may have written since: then the counters, of
        which one rises with every change, are not those it was kept with, and it is searched."""
        if counts is None:
            return _NO_ROW
        row = self._kv.get(META, keys.TIMER_FRONT_KEY)
        if row is not None and row[: -keys.TIMER_FRONT.size] == counts:
            due_ms, position = keys.TIMER_FRONT.unpack(row[-keys.TIMER_FRONT.size :])
            return due_ms, position
        found = self._kv.first(TIMER, keys.timer_key(0, 0), keys.TIMER_DUE_END)
        return _NO_ROW if found is None else keys.parse_timer_key(found[0])


def _row(key: bytes, value: bytes) -> TimerRow:
    topic_id, queue_id = keys.TIMER_QUEUE.unpack_from(value)
    return TimerRow(*keys.parse_timer_key(key), topic_id, queue_id, value[keys.TIMER_QUEUE.size :])


def _measured(items: bytes) -> tuple[int, int, int]:
    """(position of the first, messages, their bytes)."""
    first: int = ITEM.unpack_from(items)[0]
    return first, len(items) // ITEM.size, sum([item[1] for item in ITEM.iter_unpack(items)])


def _without(items: bytes, message_position: int) -> tuple[bytes, int]:
    """The items without the one at that position, and the size of its message; 0 if there is none."""
    for at in range(0, len(items), ITEM.size):
        position, size, *_ = ITEM.unpack_from(items, at)
        if position == message_position:
            return items[:at] + items[at + ITEM.size :], size
    return items, 0


def _checked(row: Any) -> tuple[int, int]:
    if type(row) is not list or len(row) != 2:
        raise InvalidCommandError(f"a row is [due, position], not {row!r}")
    return checked_int(row[0], "due", 0, keys.U64_MAX), checked_int(row[1], "position", 0, keys.U64_MAX)
