"""Scheduled messages: those that wait in no queue until log time has come to their due time.

A run of kind SCHEDULED becomes one row, which is a unit: the entry that holds the copies of its messages removes it, by
the command `deliver_timers`. A row by position finds the message that waits, and tells below what the log must not be
trimmed.

Millions of rows come and go, and what was removed costs a scan almost as much as what is there until RocksDB has
compacted it. So no read begins at the first key of the family: the first row by due time is known in memory and kept
in a row of its own, with the counters, and the edge below which no position waits only moves up.

A row keeps its name, due time and the position at which its first message was first stored, also when its messages are
carried forward (docs/adr/0054) and lie elsewhere: it is found by the old position.

Staged messages (staged_writes.py) are rows here as well, behind all others: their due times are no times. They are
counted there and not here, and are never the first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from raftlog.errors import InvariantViolationError
from statemachine.commands import CommandResult, InvalidCommandError, checked_int, done, not_found
from statemachine.delivery.staged_writes import STAGED_DUE, AttemptState, StagedWrites, attempt_of
from statemachine.payload import ITEM
from statemachine.query import QueueItem
from statemachine.rows import keys
from statemachine.rows.kv import KV, META, TIMER
from statemachine.rows.stage import Stage

RUN_MAX = 256
"""Messages of a row."""
LOOK_MAX = 4096
"""Rows that a search by position looks at: an entry holds the messages of as many rows side by side
(`limits.batch_messages_max`), so the one that begins next below a position may be another."""
NEVER = keys.U64_MAX
"""Later than every due time."""
EDGE_STEP_BYTES, EDGE_STEPS_MAX = 1 << 20, 1024
"""Bytes that a search for the lowest position looks at in one step, and the most steps of one search. Together they
pass so many bytes of removed messages in a few ms."""

TimerName = tuple[int, int]
"""(due_ms, position) of a row; in the order of delivery."""
_NO_ROW: TimerName = (NEVER, keys.U64_MAX)
_TIMES_END = keys.timer_due_end(STAGED_DUE - 1)
"""A key above the keys of all rows that are due at a time, and below those of staged messages."""


_MOVED = struct.Struct(">QB")


class TimerCounts(NamedTuple):
    """Messages, by what became of them."""

    pending: int = 0
    pending_bytes: int = 0
    delivered: int = 0
    dropped: int = 0
    """Messages whose topic was deleted, or to which the log does not reach down any more."""
    recalled: int = 0


class TimerRow(NamedTuple):
    """Messages of one entry for one queue that are due together; `items` as in a consume queue."""

    due_ms: int
    position: int
    """The position at which the first message, which may have been recalled, was first stored: with `due_ms`, the row's
    name."""
    topic_id: int
    queue_id: int
    items: bytes
    """The present places of the messages."""
    origins: bytes = b""
    """The position u64 of each message when it was first stored, if they were carried forward."""
    moved_to: int | None = None
    """The position at which the first of them was stored then, if they were carried forward."""

    @property
    def place(self) -> int:
        """The position at which the messages begin: the log is kept from there on."""
        return self.position if self.moved_to is None else self.moved_to

    def first_positions(self) -> list[int]:
        """Returns the positions at which the messages were first stored."""
        if not self.origins:
            return [item[0] for item in ITEM.iter_unpack(self.items)]
        return [position for (position,) in keys.U64.iter_unpack(self.origins)]

    @property
    def name(self) -> TimerName:
        """The row's name in commands."""
        return self.due_ms, self.position

    def messages(self) -> list[QueueItem]:
        """Returns the places of the messages; their queue offset is 0, as they are in no queue."""
        return [QueueItem(0, *item) for item in ITEM.iter_unpack(self.items)]


class Timers:
    """Written by apply. `earliest`, `counts` and the reads below may be used on any thread."""

    def __init__(self, kv: KV, writes: StagedWrites) -> None:
        """`writes` counts what is staged."""
        self._kv = kv
        self._writes = writes
        row = kv.get(TIMER, keys.TIMER_COUNTS_KEY)
        self.counts = self._staged = TimerCounts() if row is None else TimerCounts(*keys.unpack_timer_counts(row))
        """Replaced as a whole."""
        self.first = self._staged_first = self._stored_first(row)
        """The name of the first row by due time; `due_ms` of it is NEVER if nothing waits."""
        self._edge = 0
        """No message waits below this position of the log. Rows are added only at its end, so it never moves back."""
        self._dropped: dict[int, int] = {}
        """Discarded attempt -> the row that went last, as of the run. None is left below it, and what was removed would
        have to be passed again for each slice."""
        self._added: list[TimerName] = []
        self._removed: set[TimerName] = set()
        """Rows that the run has removed."""

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

    def staged(self, due_ms: int, after: int | None = None) -> Iterator[TimerRow]:
        """The rows of an attempt (`Attempt.due_ms`), in the order of their positions; those behind `after`."""
        start = keys.timer_key(due_ms, 0) if after is None else keys.timer_key(due_ms, after) + b"\0"
        for key, value in self._kv.scan(TIMER, start, keys.timer_due_end(due_ms)):
            yield _row(key, value)

    def get(self, due_ms: int, position: int) -> TimerRow | None:
        """The row; None if it was delivered or dropped."""
        key = keys.timer_key(due_ms, position)
        value = self._kv.get(TIMER, key)
        return None if value is None else _row(key, value)

    def at(self, position: int) -> tuple[TimerRow, QueueItem] | None:
        """The message whose first byte is at `position`, or was when it was first stored, and its row; None if none
        waits."""
        for row in self._rows_below(*keys.timer_position_range(position)):
            item = next((item for item in row.messages() if item.position == position), None)
            if item is not None:
                return row, item
        for row in self._rows_below(*keys.timer_origin_range(position)):
            positions = row.first_positions()
            if position in positions:
                return row, row.messages()[positions.index(position)]
        return None

    def pinned(self, first: int, end: int) -> Iterator[TimerRow]:
        """Rows whose first message lies at `first` or above and below `end`, lowest first."""
        if first < end:
            for key, value in self._kv.scan(TIMER, *keys.timer_position_range(end - 1, first)):
                row = self.get(*_name(key, value))
                if row is not None:  # else it was delivered since the scan began
                    yield row

    def lowest_position(self, trim_position: int, end_position: int) -> int | None:
        """The lowest position at which a row of waiting messages begins; None if none waits. After millions of rows
        have gone, and after a start, it may take more than one call to find it: then it is a lower one.

        `trim_position`: where the log begins; `end_position`: as far as it is applied, of the moment before the call.
        """
        if not self.counts.pending and not self._writes.left:
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

    def add(self, stage: Stage, topic_id: int, queue_id: int, due_ms: int, items: bytes, now_ms: int) -> None:
        """A run of scheduled messages, or of staged ones. `now_ms`: log time."""
        if not 0 < len(items) <= RUN_MAX * ITEM.size:
            raise InvariantViolationError(f"a run of {len(items) // ITEM.size} scheduled messages")
        position, count, size = _measured(items)
        attempt = attempt_of(due_ms)
        if attempt is not None and not self._writes.stage(stage, attempt, count, size, now_ms):
            return
        stage.put_new(TIMER, keys.timer_key(due_ms, position), keys.TIMER_QUEUE.pack(topic_id, queue_id) + items)
        stage.put_new(TIMER, keys.timer_position_key(position), keys.U64.pack(due_ms))
        if attempt is not None:
            return
        counts = self._staged
        self._count(stage, counts._replace(pending=counts.pending + count, pending_bytes=counts.pending_bytes + size))
        self._added.append((due_ms, position))

    def carry(self, stage: Stage, name: int, items: bytes) -> None:
        """The messages of the row lie where `items` say. Nothing changes if it is gone, or has other messages than the
        leader read: it was delivered, or one was recalled, in an entry between."""
        row = self._staged_row(stage, name)
        if row is None or len(row.items) != len(items):
            return
        stage.unput(TIMER, keys.timer_position_key(row.place))
        place, _, _ = _measured(items)
        if row.moved_to is None:
            stage.put_new(TIMER, keys.timer_origin_key(name), keys.U64.pack(row.due_ms))
        origins = b"".join([keys.U64.pack(position) for position in row.first_positions()])
        moved = row._replace(items=items, origins=origins, moved_to=place)
        stage.put_new(TIMER, keys.timer_position_key(place), keys.U64.pack(row.due_ms) + _moved_name(moved))
        self._rewrite(stage, moved)

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
            row = _row(key, value)
            self._remove_row(stage, row)
            _, count, size = _measured(row.items)
            removed += count
            attempt = attempt_of(due_ms)
            if attempt is not None:
                self._writes.remove(stage, attempt, count, size)
                continue
            counts = self._staged
            field, so_far = ("delivered", counts.delivered) if delivered else ("dropped", counts.dropped)
            left = counts._replace(pending=counts.pending - count, pending_bytes=counts.pending_bytes - size)
            self._count(stage, left._replace(**{field: so_far + count}))
        return done(removed)

    def drop_staged(self, stage: Stage, number: Any, rows_max: Any) -> CommandResult:
        """Removes rows of an attempt that was discarded, at most so many; value: how many messages they had."""
        number = checked_int(number, "attempt", 0, STAGED_DUE - 1)
        rows_max = checked_int(rows_max, "rows", 1, keys.U32_MAX)
        attempt = self._writes.current(number)
        if attempt is None or attempt.state is not AttemptState.DISCARDED:
            return done(0)
        start = keys.timer_key(attempt.due_ms, self._dropped.get(number, 0))
        end = keys.timer_due_end(attempt.due_ms)
        rows = stage.rows[TIMER]
        stored = (key for key, _ in self._kv.scan(TIMER, start, end) if key not in rows)
        added = sorted([key for key, value in rows.items() if start <= key < end and value is not None])
        there = (list(keys.parse_timer_key(key)) for key in merge(stored, added))
        names = list(islice(there, rows_max))
        result = self.remove(stage, names, delivered=False)
        if self._writes.current(number) is None:
            self._dropped.pop(number, None)
        elif names:
            self._dropped[number] = names[-1][1]
        return result

    def recall(self, stage: Stage, due_ms: Any, position: Any, message_position: Any) -> CommandResult:
        """Takes one message out of a row, which keeps its name; `message_position` is where the message was first
        stored. `not_found` if it does not wait there (any more)."""
        due_ms, position = _checked([due_ms, position])
        message_position = checked_int(message_position, "message_position", 0, keys.U64_MAX)
        key = keys.timer_key(due_ms, position)
        value = stage.get(TIMER, key) if attempt_of(due_ms) is None else None
        row = None if value is None else _row(key, value)
        if row is None or message_position not in row.first_positions():
            return not_found(f"no message at position {message_position} waits until {due_ms}")
        left, size = _without(row, row.first_positions().index(message_position))
        if left.items:
            self._rewrite(stage, left)
        else:
            self._remove_row(stage, row)
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

    def _rewrite(self, stage: Stage, row: TimerRow) -> None:
        key = keys.timer_key(*row.name)
        if key not in stage.rows[TIMER]:
            stage.before[TIMER][key] = stage.get(TIMER, key)
        stage.put(TIMER, key, _value(row))

    def _remove_row(self, stage: Stage, row: TimerRow) -> None:
        """`row`: as of the stage."""
        key, position_key = keys.timer_key(*row.name), keys.timer_position_key(row.place)
        before = stage.before[TIMER]
        if before.get(key) is None:
            stage.unput(TIMER, key)
        else:
            stage.delete(TIMER, key)  # it was rewritten in this run
        stage.unput(TIMER, position_key)
        before.setdefault(key, _value(row))
        before.setdefault(position_key, keys.U64.pack(row.due_ms) + _moved_name(row))
        if row.moved_to is not None:
            stage.unput(TIMER, keys.timer_origin_key(row.position))
        if row.due_ms < STAGED_DUE:
            self._removed.add(row.name)

    def _count(self, stage: Stage, counts: TimerCounts) -> None:
        self._staged = counts
        stage.put(TIMER, keys.TIMER_COUNTS_KEY, keys.pack_timer_counts(counts))

    def _staged_row(self, stage: Stage, name: int) -> TimerRow | None:
        due = stage.get(TIMER, keys.timer_origin_key(name)) or stage.get(TIMER, keys.timer_position_key(name))
        if due is None or len(due) != keys.U64.size:
            return None
        key = keys.timer_key(keys.U64.unpack(due)[0], name)
        value = stage.get(TIMER, key)
        return None if value is None else _row(key, value)

    def _rows_below(self, low: bytes, high: bytes) -> Iterator[TimerRow]:
        """The rows that keys of this range lead to, the highest first."""
        for _ in range(LOOK_MAX):
            found = self._kv.seek_last(TIMER, low, high)
            if found is None:
                return
            high = found[0]
            row = self.get(*_name(*found))
            if row is not None:
                yield row

    def _staged_first_row(self, stage: Stage, start: TimerName) -> TimerName:
        """The first row as of the stage, which has none before `start`."""
        added = [name for name in self._added if name not in self._removed]
        end = _TIMES_END
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
        found = self._kv.first(TIMER, keys.timer_key(0, 0), _TIMES_END)
        return _NO_ROW if found is None else keys.parse_timer_key(found[0])


def _row(key: bytes, value: bytes) -> TimerRow:
    topic_id, queue_id = keys.TIMER_QUEUE.unpack_from(value)
    row = TimerRow(*keys.parse_timer_key(key), topic_id, queue_id, value[keys.TIMER_QUEUE.size :])
    if len(row.items) % ITEM.size == 0:
        return row
    size = len(row.items) // (ITEM.size + keys.U64.size) * ITEM.size
    items, origins = row.items[:size], row.items[size : -_MOVED.size]
    return row._replace(items=items, origins=origins, moved_to=_MOVED.unpack_from(row.items, size + len(origins))[0])


def _value(row: TimerRow) -> bytes:
    """The value of a row. An odd length tells a carried one."""
    moved = b"" if row.moved_to is None else row.origins + _MOVED.pack(row.moved_to, 1)
    return keys.TIMER_QUEUE.pack(row.topic_id, row.queue_id) + row.items + moved


def _moved_name(row: TimerRow) -> bytes:
    """Returns the name's position for a row's key by position; b"" if that key has the same position."""
    return b"" if row.moved_to is None else keys.U64.pack(row.position)


def _name(key: bytes, value: bytes) -> tuple[int, int]:
    """(due, position) of the row that one found by position leads to."""
    due_ms: int = keys.U64.unpack_from(value)[0]
    name: int = keys.U64.unpack_from(value, 8)[0] if len(value) > keys.U64.size else keys.timer_position(key)
    return due_ms, name


def _measured(items: bytes) -> tuple[int, int, int]:
    """(position of the first, messages, their bytes)."""
    first: int = ITEM.unpack_from(items)[0]
    return first, len(items) // ITEM.size, sum([item[1] for item in ITEM.iter_unpack(items)])


def _without(row: TimerRow, at: int) -> tuple[TimerRow, int]:
    """The row without that of its messages, and the bytes of the message."""
    size: int = ITEM.unpack_from(row.items, at * ITEM.size)[1]
    items = row.items[: at * ITEM.size] + row.items[(at + 1) * ITEM.size :]
    origins = row.origins[: at * keys.U64.size] + row.origins[(at + 1) * keys.U64.size :]
    return row._replace(items=items, origins=origins), size


def _checked(row: Any) -> tuple[int, int]:
    if type(row) is not list or len(row) != 2:
        raise InvalidCommandError(f"a row is [due, position], not {row!r}")
    return checked_int(row[0], "due", 0, keys.U64_MAX), checked_int(row[1], "position", 0, keys.U64_MAX)
