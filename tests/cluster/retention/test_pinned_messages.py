"""Slices of what pins the log, and the alarm about it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from google_crc32c import value as crc32c

from cluster.broker.reads.log_reads import read_intact
from cluster.retention.pinned_messages import (
    LOG_PINNED,
    PATIENCE_MS,
    SLICE_BYTES,
    SLICE_ROWS,
    Gather,
    Pin,
    PinAlarm,
    Slice,
    gather,
)
from cluster.runtime.alarms import Alarms
from raftlog.errors import OutOfRangeError
from statemachine.delivery.half_messages import EndHalves, HalfMessage
from statemachine.delivery.timers import DropTimers, TimerRow
from statemachine.payload import ITEM, RowKind

ALL = 1 << 62


class Log:
    """Bytes by position."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}

    def add(self, position: int, size: int) -> bytes:
        """The item of a message."""
        self.stored[position] = bytes([position % 251]) * size
        return ITEM.pack(position, size, crc32c(self.stored[position]), 7, 1)

    def read_at(self, position: int, size: int) -> bytes:
        if position not in self.stored:
            raise OutOfRangeError(f"{position}")
        return self.stored[position][:size]


class Waiting:
    """Rows where they lie."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows

    def pinned(self, first: int, end: int) -> list[Any]:
        return [row for row in self._rows if first <= row.place < end]


def state_of(timers: Sequence[TimerRow] = (), halves: Sequence[HalfMessage] = ()) -> Any:
    return SimpleNamespace(timers=Waiting(timers), halves=Waiting(halves))


def rows_of(log: Log, count: int, size: int = 10, due_ms: int = 50) -> list[TimerRow]:
    return [TimerRow(due_ms, at * 1000, 1, 0, log.add(at * 1000, size)) for at in range(count)]


def taken(state: Any, log: Any, first: int = 0, end: int = ALL, due_after_ms: int = 0) -> Slice:
    return gather(state, log, Gather(first, end, due_after_ms), read_intact)


def test_slices_are_bounded_in_rows_and_follow_each_other() -> None:
    log = Log()
    state = state_of(rows_of(log, SLICE_ROWS + 5))
    first = taken(state, log)
    second = taken(state, log, first.next_position)
    names = [row.name for row in (*first.rows, *second.rows)]
    assert (len(first.rows), second.next_position) == (SLICE_ROWS, ALL)
    assert names == [at * 1000 for at in range(SLICE_ROWS + 5)]


def test_slices_are_bounded_in_bytes_and_a_row_is_not_cut() -> None:
    log = Log()
    large = b"".join(log.add(5500 + at, SLICE_BYTES) for at in range(3))
    state = state_of([TimerRow(50, 5500, 1, 0, large), *rows_of(log, 9)[6:]])
    found = taken(state, log)
    assert [len(row.messages) for row in found.rows] == [3]
    assert found.next_position == 6000


def test_rows_come_in_the_order_in_which_they_lie_with_what_ends_them() -> None:
    log = Log()
    timer = rows_of(log, 3)[2]
    item = log.add(1500, 20)
    half = HalfMessage(900, 4, 3, 20, ITEM.unpack(item)[2], 99, 1, moved_to=1500)
    found = taken(state_of([timer], [half]), log).rows
    assert [(row.kind, row.name, row.topic_id, row.queue_id) for row in found] == [
        (RowKind.CARRIED_HALF, 900, 4, 3),
        (RowKind.CARRIED_TIMERS, 2000, 1, 0),
    ]
    assert [row.drop for row in found] == [EndHalves([900]), DropTimers([(50, 2000)])]
    assert [row.messages for row in found] == [(log.stored[1500],), (log.stored[2000],)]


def test_what_is_due_is_left_to_its_delivery() -> None:
    log = Log()
    state = state_of(rows_of(log, 1, due_ms=50))
    assert taken(state, log, due_after_ms=50).rows == []
    assert len(taken(state, log, due_after_ms=49).rows) == 1


def test_what_cannot_be_read_is_named_and_the_others_are_taken() -> None:
    log = Log()
    state = state_of(rows_of(log, 4))
    log.stored[1000] = b"rot"
    del log.stored[2000]
    found = taken(state, log)
    assert [row.name for row in found.rows] == [0, 3000]
    assert [item.position for item in found.damaged] == [1000, 2000]


# --- the alarm -----------------------------------------------------------------------------------------------------


def test_the_alarm_says_what_holds_the_log_when_it_does_so_for_long() -> None:
    alarms = Alarms(lambda: 0)
    counts = SimpleNamespace(pending=12)
    state: Any = SimpleNamespace(
        timers=SimpleNamespace(counts=counts),
        halves=SimpleNamespace(pending=SimpleNamespace(count=3)),
        writes=SimpleNamespace(left=0),
    )
    alarm, here = PinAlarm(alarms, state, segment_size=100), Pin(5, None)

    def look(now_ms: int, held: int, pin: Pin | None = here) -> bool:
        alarm.look(now_ms, pin, held, "node 2 is old")
        return alarms.raised(LOG_PINNED)

    assert not look(0, 101)
    assert not look(PATIENCE_MS - 1, 101)
    assert not look(PATIENCE_MS, 100), "a segment is allowed"
    assert not look(PATIENCE_MS + 1, 101), "and the time begins anew"
    assert look(2 * PATIENCE_MS + 1, 101)
    (text,) = [one.text for one in alarms.all() if one.key == LOG_PINNED]
    for part in ("12 wait until they are due", "3 for the end", "node 2 is old", "raftmq retention"):
        assert part in text
    assert not look(2 * PATIENCE_MS + 2, 500, None), "nothing waits"
