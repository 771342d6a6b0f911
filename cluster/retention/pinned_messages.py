"""Reads, on a lane, the waiting messages that pin the log: those that wait for their time or their transaction
(docs/adr/0054). Raises an alarm if they hold the log for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import TYPE_CHECKING, NamedTuple

from cluster.runtime.findings import Code
from raftlog.errors import OutOfRangeError, StorageError
from raftlog.storage.log.segmented_log import SegmentedLog
from raftmq_wire.message_format import store_ms_of
from statemachine.broker_state import BrokerState
from statemachine.commands import Command
from statemachine.delivery.half_messages import EndHalves, HalfMessage
from statemachine.delivery.timers import DropTimers, TimerRow
from statemachine.payload import RowKind
from statemachine.queue_reads import QueueItem

if TYPE_CHECKING:
    from cluster.runtime.alarms import Alarms


SLICE_BYTES, SLICE_ROWS = 128 << 10, 64
"""The most bytes and rows that are carried at once. The last row may exceed the bytes."""
HEAD_BYTES = 76
"""Bytes read from the head of a stored message. The shortest message is longer, and the store time of any message lies
within them."""


class Gather(NamedTuple):
    """A job of the lane: read the rows whose messages lie at `first` or above and below `end`, as many as a slice
    holds."""

    first: int
    end: int
    due_after_ms: int
    """Log time. Messages due at this time or before are left out, because they are about to be delivered."""


class PinnedRow(NamedTuple):
    """One row of waiting messages, with the messages as they are stored."""

    kind: RowKind
    """The kind under which the messages are appended again."""
    name: int
    topic_id: int
    queue_id: int
    messages: tuple[bytes, ...]
    tag_hashes: tuple[int, ...]
    """One hash of the tag per message; 0 for half messages, whose hash is only needed in the copy that is delivered."""
    drop: Command
    """The command that removes this row. It is proposed if the row's topic was deleted."""


class Slice(NamedTuple):
    """The lane's answer to `Gather`."""

    rows: list[PinnedRow]
    next_position: int
    """The position at which the next slice begins; `end` or above if there is none."""
    damaged: list[QueueItem]
    """Places of messages that cannot be read intact. Their rows are not among `rows`."""


class LogBytes:
    """Gives a `ReadIntact` access to the log of this node."""

    def __init__(self, log: SegmentedLog) -> None:
        self.read_log = log.read_at


ReadIntact = Callable[[LogBytes, Sequence[QueueItem]], list[bytes]]
"""Reads messages, each compared with its CRC; ends before the first that cannot be read intact."""


class Pin(NamedTuple):
    """The lowest message that waits for its time, its transaction, or the commit of its write."""

    position: int
    stored_ms: int | None
    """The time when the message was first stored; None if it cannot be read now."""


def lowest(state: BrokerState, log: SegmentedLog) -> Pin | None:
    """Returns the lowest waiting message; None if none waits."""
    position = state.lowest_pinned_position()
    if position is None:
        return None
    try:
        item = next((items[0] for _, _, items in _rows(state, Gather(position, position + 1, -1))), None)
        stored = b"" if item is None else log.read_at(item.position, HEAD_BYTES)
    except (StorageError, OutOfRangeError):
        stored = b""
    return Pin(position, store_ms_of(stored) if len(stored) == HEAD_BYTES else None)


def gather(state: BrokerState, log: SegmentedLog, job: Gather, read_intact: ReadIntact) -> Slice:
    """Returns the first rows that `job` asks for, with their messages: at most SLICE_ROWS rows and about SLICE_BYTES. A
    row with a message that cannot be read intact is left out, and the message is listed in `damaged`."""
    rows: list[PinnedRow] = []
    damaged: list[QueueItem] = []
    size, bytes_of = 0, LogBytes(log)
    for place, row, items in _rows(state, job):
        if len(rows) == SLICE_ROWS or size >= SLICE_BYTES:
            return Slice(rows, place, damaged)
        messages = read_intact(bytes_of, items)
        if len(messages) < len(items):
            damaged.append(items[len(messages)])
        else:
            rows.append(row._replace(messages=tuple(messages)))
            size += sum(map(len, messages))
    return Slice(rows, job.end, damaged)


def _rows(state: BrokerState, job: Gather) -> Iterator[tuple[int, PinnedRow, list[QueueItem]]]:
    """Yields (position, row, places of its messages), lowest position first."""
    timers = (
        (row.place, _of_timers(row, items := row.messages()), items)
        for row in state.timers.pinned(job.first, job.end)
        if row.due_ms > job.due_after_ms
    )
    halves = ((half.place, _of_half(half), [half.stored]) for half in state.halves.pinned(job.first, job.end))
    return merge(timers, halves, key=lambda found: found[0])


def _of_timers(row: TimerRow, items: list[QueueItem]) -> PinnedRow:
    drop = DropTimers([row.name])
    tags = tuple([item.tag_hash for item in items])
    return PinnedRow(RowKind.CARRIED_TIMERS, row.position, row.topic_id, row.queue_id, (), tags, drop)


def _of_half(half: HalfMessage) -> PinnedRow:
    drop = EndHalves([half.position])
    return PinnedRow(RowKind.CARRIED_HALF, half.position, half.topic_id, half.queue_id, (), (0,), drop)


LOG_PINNED = Code("log_pinned", "warning", "raftmq retention")
"""Key of the alarm."""
PATIENCE_MS = 10 * 60_000
"""Milliseconds for which waiting messages may hold the log before the alarm is raised. Carrying takes seconds: an
obstacle that holds the log for longer does not go away by itself."""


class PinAlarm:
    """Raises the alarm that waiting messages hold the log. Retention calls it after each run. Event loop only."""

    def __init__(self, alarms: Alarms, state: BrokerState, segment_size: int) -> None:
        """`segment_size` is the number of bytes of log that may be held without an alarm."""
        self._alarms = alarms
        self._state = state
        self._allowed = segment_size
        self._since_ms: int | None = None

    def look(self, now_ms: int, pin: Pin | None, held_bytes: int, why: str) -> None:
        """Records the result of one run of retention, and raises or clears the alarm. `held_bytes`: the bytes of log
        that would be removed if no message waited there. `why`: the reason why the messages are not carried forward, ""
        if it is not known."""
        if pin is None or held_bytes <= self._allowed:
            self._since_ms = None
            self._alarms.clear(LOG_PINNED)
            return
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms >= PATIENCE_MS and not self._alarms.raised(LOG_PINNED):
            self._alarms.raise_alarm(LOG_PINNED, self._text(why))

    def _text(self, why: str) -> str:
        timers, halves = self._state.timers.counts.pending, self._state.halves.pending.count
        why = why or "it does not come to an end, or one of them cannot be read: see the alarms about damage"
        return (
            f"messages that wait hold more than a segment of the log that retention wants to remove, for more than "
            f"{PATIENCE_MS // 60_000} minutes: {timers} wait until they are due, {halves} for the end of their "
            f"transaction, {self._state.writes.left} for the commit of a write (raftmq writes list). "
            f"Why they are not stored further on: {why}. "
            f"Shorten timer.max_delay_ms or the delays that producers ask for, end transactions, or enlarge "
            f"retention.bytes_max or the disk. Where the log is held: raftmq retention"
        )
