"""Reads due messages on a lane (a thread of its own, `cluster.runtime.lanes`): rows of the state, and the messages in
the log that they name.

These messages were stored long ago, so their bytes come from the disk rather than from the page cache. The seek to the
first row and each step to the next are short: see `statemachine.delivery.timers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.reads.log_reads import read_intact
from cluster.runtime.lanes import NeverIdle
from raftmq_wire.message_format import Message, MessageFormatError, decode_message

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState
    from statemachine.delivery.timers import TimerName, TimerRow
    from statemachine.queue_reads import QueueItem


logger = logging.getLogger(__name__)


class DueAsk(NamedTuple):
    """A request for due rows, which the lane answers."""

    term: object
    """The term of the leader that asks, which the answer repeats."""
    now_ms: int
    """The log time, in milliseconds, up to which rows are due."""
    after: TimerName | None
    """The row behind which the wanted rows begin; None to begin with the first."""
    until: TimerName | None
    """The last wanted row, for rows that an earlier request could not read; None for no end."""
    passed: frozenset[TimerName]
    """Rows to skip."""
    rows_max: int
    bytes_max: int
    """The most bytes of messages in the answer. The last row may exceed it."""


class DueRow(NamedTuple):
    """A due row with its messages. If they cannot be read, `messages` is None and `bad` is the first unreadable one."""

    row: TimerRow
    messages: list[Message] | None
    bad: QueueItem | None


class DueFound(NamedTuple):
    """The answer to a DueAsk."""

    ask: DueAsk
    rows: list[DueRow]
    last: TimerName | None
    """The last row that was looked at; the `after` of the request if there was none."""
    more: bool
    """True if there are more due rows behind it."""


class RowReads(NeverIdle):
    """The base of lanes that read rows of the family `timer` and the messages that they name."""

    def __init__(self, state: BrokerState, read_log: Callable[[int, int], bytes]) -> None:
        """`read_log`: `Services.read_log`, which is called on the lane here."""
        self.state = state
        self.read_log = read_log

    def fresh(self, row: TimerRow) -> TimerRow:
        """Returns the row with its present place. If the log was trimmed past the row's place, the row's messages were
        carried forward (stored again at a later position), and the row is read again. Otherwise, or if the row no
        longer exists, it is returned unchanged."""
        if row.place >= self.state.trim_position:
            return row
        return self.state.timers.get(*row.name) or row

    def ended(self, row: TimerRow) -> bool:
        """Returns True if the state no longer has the row. Asked after a message of the row could not be read: a newer
        leader may have delivered the row, and this log may have been trimmed past it, so nothing is damaged."""
        return self.state.timers.get(*row.name) is None

    def read(self, row: TimerRow, items: list[QueueItem], *, again: bool = False) -> DueRow:
        """Returns the row with its messages. They are an empty list if they can no longer be delivered (`is_gone`), and
        None with the first unreadable item if they cannot be read intact. `again`: True if they could not be read
        before; a failure is then logged at level DEBUG."""
        now = self.fresh(row)
        if now is not row:
            row, items = now, now.messages()
        if is_gone(self.state, row):
            return DueRow(row, [], None)
        pieces = read_intact(self, items, told=logging.DEBUG if again else logging.ERROR)
        if len(pieces) < len(items):
            return DueRow(row, None, items[len(pieces)])
        messages = []
        for item, piece in zip(items, pieces, strict=True):
            try:
                messages.append(decode_message(piece)[0])
            except MessageFormatError:
                if not again:
                    logger.exception("a scheduled message at position %d cannot be decoded", item.position)
                return DueRow(row, None, item)
        return DueRow(row, messages, None)


class DueReads(RowReads):
    """The lane that finds due rows. It raises KVError if the database is damaged, which stops the node."""

    def drain(self, batch: Sequence[DueAsk]) -> list[DueFound]:
        """Returns the answers to the requests, in their order."""
        return [self._find(ask) for ask in batch]

    def _find(self, ask: DueAsk) -> DueFound:
        found: list[DueRow] = []
        last, size = ask.after, 0
        for row in self.state.timers.due(ask.now_ms, ask.after):
            if ask.until is not None and row.name > ask.until:
                break
            if row.name not in ask.passed:
                if len(found) >= ask.rows_max or size >= ask.bytes_max:
                    return DueFound(ask, found, last, more=True)
                items = row.messages()
                size += sum([item.size for item in items])
                due = self.read(row, items, again=ask.until is not None)
                if due.messages is not None or not self.ended(row):
                    found.append(due)
            last = row.name
        return DueFound(ask, found, last, more=False)


def is_gone(state: BrokerState, row: TimerRow) -> bool:
    """Returns True if the row's messages can no longer be delivered: their topic was deleted, or the log no longer has
    them. Returns False if the row itself no longer exists."""
    if row.topic_id not in state.topics_by_id:
        return True
    trim_position = state.trim_position
    if row.place >= trim_position:
        return False
    # The row may have been carried forward since it was read, and the log trimmed behind it. So the row is read again,
    # after `trim_position` was read: a row that still lies below that position is never carried forward any more.
    now = state.timers.get(*row.name)
    return now is not None and now.place < trim_position
