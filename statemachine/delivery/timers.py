"""Scheduled messages: they are in no queue until log time reaches their due time.

A run of messages of kind SCHEDULED becomes one row, which is delivered as a whole: the entry with the copies of its
messages removes the row, by the command `deliver_timers`. A second row, by position, finds the message while it waits,
and tells where the log must not be trimmed.

Millions of rows come and go, and until RocksDB has compacted removed rows, a scan over them costs almost as much as
over existing ones. No read therefore begins at the first key of the family. The first row by due time is known in
memory and kept in a row of its own, with the counters; and the edge, the position below which no message waits, only
moves up.

A row is named by its due time and the position at which its first message was first stored. It keeps that name when its
messages are carried forward (docs/adr/0054), that is, stored again at a later position: the old position still finds
it.

Staged messages (staged_writes.py) are rows here as well, behind all others: their due times are not times.
`staged_writes.py` counts them, this module does not, and none of them is ever the first row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Annotated, NamedTuple, Self

from msgspec import Meta

from raftlog.errors import InvariantViolationError
from statemachine.commands import U63, U64, Command, CommandResult, done, not_found
from statemachine.delivery.staged_writes import STAGED_DUE, AttemptState, StagedWrites, attempt_of
from statemachine.family import Families, Family, Reads, applies, family_of
from statemachine.payload import ITEM
from statemachine.queue_reads import QueueItem
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META, TIMER
from statemachine.rows.write_batch import Stage

RUN_MAX = 256
"""The most scheduled messages in one row."""
LOOK_MAX = 4096
"""The most rows that a search for the message at a position looks at. An entry holds the messages of up to
`limits.batch_messages_max` rows next to each other, so the row that begins just below a position may be another one."""
NEVER = keys.U64_MAX
"""A time later than every due time."""
EDGE_STEP_BYTES, EDGE_STEPS_MAX = 1 << 20, 1024
"""The bytes of log that a search for the lowest position covers in one step, and the most steps of one search. One
search thus covers up to 1 GiB of removed messages, in a few milliseconds."""

TimerName = tuple[U64, U64]
"""The name of a row of scheduled messages: (due_ms, position). Names sort in the order of delivery."""
_NO_ROW: TimerName = (NEVER, keys.U64_MAX)
_TIMES_END = keys.timer_due_end(STAGED_DUE - 1)
"""A key above the keys of all rows with a due time, and below those of staged messages."""
_MOVED = struct.Struct(">QB")


class DeliverTimers(Command, tag="deliver_timers", frozen=True):
    """Removes rows of scheduled messages whose copies are in the same entry."""

    names: Sequence[TimerName]


class DropTimers(Command, tag="drop_timers", frozen=True):
    """Removes rows of scheduled messages without making copies: their messages are never delivered."""

    names: Sequence[TimerName]


class DropStaged(Command, tag="drop_staged", frozen=True):
    """Removes at most `rows_max` rows of a discarded attempt at a staged write."""

    attempt: U63
    rows_max: Annotated[int, Meta(ge=1, le=keys.U32_MAX)]


class RecallTimer(Command, tag="recall_timer", frozen=True):
    """Removes one scheduled message from the row (due_ms, position): it is not delivered. `message_position` is where
    the message was first stored."""

    due_ms: U64
    position: U64
    message_position: U64


class TimerCounts(NamedTuple):
    """The number of scheduled messages that wait, were delivered, were dropped or were recalled."""

    pending: int = 0
    pending_bytes: int = 0
    delivered: int = 0
    dropped: int = 0
    """The number of messages that were never delivered because their topic was deleted or their bytes were trimmed from
    the log."""
    recalled: int = 0


class TimerRow(NamedTuple):
    """One row of scheduled messages: those of one entry for one queue that are due together. `items` has the form of a
    consume queue's items."""

    due_ms: int
    position: int
    """The position at which the row's first message (which may have been recalled) was first stored. With `due_ms` it
    names the row."""
    topic_id: int
    queue_id: int
    items: bytes
    """The present positions and sizes of the messages."""
    origins: bytes = b""
    """The position (u64) at which each message was first stored, if the messages were carried forward; otherwise empty.
    """
    moved_to: int | None = None
    """The position at which the first message was stored again, if the messages were carried forward; otherwise None.
    """

    @property
    def place(self) -> int:
        """The present position of the first message. The log must be kept from there on."""
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
        """Returns the messages as queue items. Their queue offset is 0, because they are in no queue."""
        return [QueueItem(0, *item) for item in ITEM.iter_unpack(self.items)]


class Timers(Family):
    """All scheduled messages. The apply thread changes them; any thread may read `first`, `earliest` and `counts`, and
    call the methods from `due` to `pinned_position`."""

    ROWS = ((TIMER, b""), (META, meta_keys.TIMER_FRONT_KEY))

    def __init__(self, kv: KV, writes: StagedWrites) -> None:
        """`writes` counts the staged messages, whose rows are stored here too."""
        self._kv = kv
        self._writes = writes
        row = kv.get(TIMER, keys.TIMER_COUNTS_KEY)
        self.counts = self._staged = TimerCounts() if row is None else TimerCounts(*keys.unpack_timer_counts(row))
        """The numbers of scheduled messages that wait, were delivered, dropped or recalled. The object is replaced as a
        whole."""
        self.first = self._staged_first = self._stored_first(row)
        """The name of the first row by due time; its `due_ms` is NEVER if no message waits."""
        self._edge = 0
        """The position of the log below which no message waits. Rows are added only at the log's end, so the edge never
        moves back."""
        self._dropped: dict[int, int] = {}
        """Number of a discarded attempt -> position of the row that was removed last, with the changes of the batch
        being applied. No row is left below it, so the next slice does not walk over the removed ones again."""
        self._added: list[TimerName] = []
        self._removed: set[TimerName] = set()
        """Names of the rows that the batch being applied has removed."""

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[StagedWrites])

    # -- any thread

    @property
    def earliest(self) -> int:
        """The earliest due time of a scheduled message; NEVER if none waits."""
        return self.first[0]

    def due(self, now_ms: int, after: TimerName | None = None) -> Iterator[TimerRow]:
        """Yields the rows that are due at `now_ms` of log time, in the order of due time and position. With `after`,
        only those after that row, whether it still exists or not."""
        first = self.first
        start = keys.timer_key(*first) if after is None or after < first else keys.timer_key(*after) + b"\0"
        end = keys.timer_due_end(now_ms)
        if start < end:
            for key, value in self._kv.scan(TIMER, start, end):
                yield _row(key, value)

    def staged(self, due_ms: int, after: int | None = None) -> Iterator[TimerRow]:
        """Yields the rows of an attempt at a staged write, in the order of their positions; with `after`, only those
        above that position. `due_ms`: the due time of the attempt's rows (`Attempt.due_ms`)."""
        start = keys.timer_key(due_ms, 0) if after is None else keys.timer_key(due_ms, after) + b"\0"
        for key, value in self._kv.scan(TIMER, start, keys.timer_due_end(due_ms)):
            yield _row(key, value)

    def get(self, due_ms: int, position: int) -> TimerRow | None:
        """Returns the row with this name; None if it was delivered or dropped."""
        key = keys.timer_key(due_ms, position)
        value = self._kv.get(TIMER, key)
        return None if value is None else _row(key, value)

    def at(self, position: int) -> tuple[TimerRow, QueueItem] | None:
        """Returns the waiting message whose first byte is at `position`, or was there when it was first stored, and its
        row; None if there is none."""
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
        """Yields the rows whose first message lies at `first` or above and below `end`, lowest first."""
        if first < end:
            for key, value in self._kv.scan(TIMER, *keys.timer_position_range(end - 1, first)):
                row = self.get(*_name(key, value))
                if row is not None:  # otherwise the row was removed since the scan began
                    yield row

    def lowest_position(self, trim_position: int, end_position: int) -> int | None:
        """Returns the lowest position at which a row of waiting messages begins; None if none waits. After millions of
        rows were removed, and after a start, it may take several calls to find it: until then the result is a lower
        position.

        `trim_position`: the position at which the log begins. `end_position`: the position up to which the log was
        applied at some moment before the call.
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

    def pinned_position(self, begin: int, end: int) -> int | None:
        """Returns `lowest_position`, which may be lower than any row's if the search ended early because it had too
        much to pass."""
        return self.lowest_position(begin, end)

    # -- apply

    def add(self, stage: Stage, topic_id: int, queue_id: int, due_ms: int, items: bytes, now_ms: int) -> None:
        """Adds a run of scheduled or staged messages, which become one row. Staged messages of an attempt that is not
        open are left out. `now_ms`: log time. Raises InvariantViolationError unless there are 1 to RUN_MAX messages."""
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
        """Records the new positions of the messages in the row at position `name`, which were carried forward. Changes
        nothing if the row no longer exists or has other messages than the leader read: it was delivered, or a message
        was recalled, by an earlier entry."""
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

    @applies(DeliverTimers)
    def deliver(self, stage: Stage, command: DeliverTimers) -> CommandResult:
        """Removes these rows as delivered. A row that does not exist is skipped, because a leader's mistake must not
        stop every node. The result's value is the number of messages in the removed rows."""
        return done(self._remove(stage, command.names, delivered=True))

    @applies(DropTimers)
    def drop(self, stage: Stage, command: DropTimers) -> CommandResult:
        """Removes these rows as `deliver` does, but counts their messages as dropped."""
        return done(self._remove(stage, command.names, delivered=False))

    def _remove(self, stage: Stage, names: Iterable[TimerName], *, delivered: bool) -> int:
        """Removes these rows, and returns the number of messages in them."""
        removed = 0
        for due_ms, position in names:
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
        return removed

    @applies(DropStaged)
    def drop_staged(self, stage: Stage, command: DropStaged) -> CommandResult:
        """Removes the next rows of a discarded attempt. The result's value is the number of their messages."""
        number = command.attempt
        attempt = self._writes.current(number)
        if attempt is None or attempt.state is not AttemptState.DISCARDED:
            return done(0)
        start = keys.timer_key(attempt.due_ms, self._dropped.get(number, 0))
        end = keys.timer_due_end(attempt.due_ms)
        rows = stage.rows[TIMER]
        stored = (key for key, _ in self._kv.scan(TIMER, start, end) if key not in rows)
        added = sorted([key for key, value in rows.items() if start <= key < end and value is not None])
        there = (keys.parse_timer_key(key) for key in merge(stored, added))
        names = list(islice(there, command.rows_max))
        removed = self._remove(stage, names, delivered=False)
        if self._writes.current(number) is None:
            self._dropped.pop(number, None)
        elif names:
            self._dropped[number] = names[-1][1]
        return done(removed)

    @applies(RecallTimer)
    def recall(self, stage: Stage, command: RecallTimer) -> CommandResult:
        """Removes one scheduled message from a row, which keeps its name. The result is `not_found` if the message does
        not wait there."""
        due_ms, message_position = command.due_ms, command.message_position
        key = keys.timer_key(due_ms, command.position)
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

    def end_run(self, stage: Stage) -> None:
        """Adds the row with the counters and the name of the first row to the batch. Called when everything else of the
        batch is staged."""
        if not self._added and not self._removed and self._staged == self.counts:
            return
        first = min([self.first, *self._added])
        if first in self._removed:
            first = self._staged_first_row(stage, first)
        self._staged_first = first
        row = keys.pack_timer_counts(self._staged) + meta_keys.TIMER_FRONT.pack(*first)
        stage.put(META, meta_keys.TIMER_FRONT_KEY, row)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if self._staged is not self.counts:
            self.first, self.counts = self._staged_first, self._staged
            self._added, self._removed = [], set()

    def _rewrite(self, stage: Stage, row: TimerRow) -> None:
        key = keys.timer_key(*row.name)
        if key not in stage.rows[TIMER]:
            stage.before[TIMER][key] = stage.get(TIMER, key)
        stage.put(TIMER, key, _value(row))

    def _remove_row(self, stage: Stage, row: TimerRow) -> None:
        """Removes a row. `row` is the row with the changes of the batch being applied."""
        key, position_key = keys.timer_key(*row.name), keys.timer_position_key(row.place)
        before = stage.before[TIMER]
        if before.get(key) is None:
            stage.unput(TIMER, key)
        else:
            stage.delete(TIMER, key)  # this run has rewritten the row
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
        """Yields the rows found by the keys (by position) in this range, highest first."""
        for _ in range(LOOK_MAX):
            found = self._kv.seek_last(TIMER, low, high)
            if found is None:
                return
            high = found[0]
            row = self.get(*_name(*found))
            if row is not None:
                yield row

    def _staged_first_row(self, stage: Stage, start: TimerName) -> TimerName:
        """Returns the name of the first row, with the changes of the batch being applied. No row exists before
        `start`."""
        added = [name for name in self._added if name not in self._removed]
        end = _TIMES_END
        for key, _ in self._kv.scan(TIMER, keys.timer_key(*start), end):
            name = keys.parse_timer_key(key)
            if name not in self._removed:
                added.append(name)
                break
        return min(added, default=_NO_ROW)

    def _stored_first(self, counts: bytes | None) -> TimerName:
        """Returns the name of the first row, from the row TIMER_FRONT_KEY if that is up to date. A release that does
        not write TIMER_FRONT_KEY may have changed timers since. Every change raises one of the counters, so `counts`
        then differs from the counters that are stored with the name, and the first row is searched for."""
        if counts is None:
            return _NO_ROW
        row = self._kv.get(META, meta_keys.TIMER_FRONT_KEY)
        if row is not None and row[: -meta_keys.TIMER_FRONT.size] == counts:
            due_ms, position = meta_keys.TIMER_FRONT.unpack(row[-meta_keys.TIMER_FRONT.size :])
            return due_ms, position
        found = self._kv.first(TIMER, keys.timer_key(0, 0), _TIMES_END)
        return _NO_ROW if found is None else keys.parse_timer_key(found[0])


class TimerReads(Reads):
    """Read access to what a state holds about messages that wait for a time."""

    timers = family_of(Timers)
    """Scheduled messages, which wait until they are due, and the rows of messages of staged writes."""


def _row(key: bytes, value: bytes) -> TimerRow:
    topic_id, queue_id = keys.TIMER_QUEUE.unpack_from(value)
    row = TimerRow(*keys.parse_timer_key(key), topic_id, queue_id, value[keys.TIMER_QUEUE.size :])
    if len(row.items) % ITEM.size == 0:
        return row
    size = len(row.items) // (ITEM.size + keys.U64.size) * ITEM.size
    items, origins = row.items[:size], row.items[size : -_MOVED.size]
    return row._replace(items=items, origins=origins, moved_to=_MOVED.unpack_from(row.items, size + len(origins))[0])


def _value(row: TimerRow) -> bytes:
    """Returns the stored value of a row. An odd length marks a row whose messages were carried forward."""
    moved = b"" if row.moved_to is None else row.origins + _MOVED.pack(row.moved_to, 1)
    return keys.TIMER_QUEUE.pack(row.topic_id, row.queue_id) + row.items + moved


def _moved_name(row: TimerRow) -> bytes:
    """Returns the position in the row's name, to be stored under the row's key by position; b"" if that key has the
    same position."""
    return b"" if row.moved_to is None else keys.U64.pack(row.position)


def _name(key: bytes, value: bytes) -> tuple[int, int]:
    """Returns the name, (due_ms, position), of the row that a stored key by position refers to."""
    due_ms: int = keys.U64.unpack_from(value)[0]
    name: int = keys.U64.unpack_from(value, 8)[0] if len(value) > keys.U64.size else keys.timer_position(key)
    return due_ms, name


def _measured(items: bytes) -> tuple[int, int, int]:
    """Returns the position of the first message in packed items, the number of messages, and their total size in
    bytes."""
    first: int = ITEM.unpack_from(items)[0]
    return first, len(items) // ITEM.size, sum([item[1] for item in ITEM.iter_unpack(items)])


def _without(row: TimerRow, at: int) -> tuple[TimerRow, int]:
    """Returns the row without its message number `at`, and the size of that message in bytes."""
    size: int = ITEM.unpack_from(row.items, at * ITEM.size)[1]
    items = row.items[: at * ITEM.size] + row.items[(at + 1) * ITEM.size :]
    origins = row.origins[: at * keys.U64.size] + row.origins[(at + 1) * keys.U64.size :]
    return row._replace(items=items, origins=origins), size
