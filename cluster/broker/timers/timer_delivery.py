"""Delivers scheduled messages: the leader copies due messages into their queues.

A cursor (`_DueTerm.after`) moves along the rows in the order of delivery, and each row is read once. A row whose
messages cannot be read is left behind the cursor, so that it delays no other row. A sweep reads these rows again, a few
a second, and delivers them when their bytes are repaired.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker.delivery_time import DELAY
from cluster.broker.message_copies import copied, queue_for
from cluster.broker.timers.due_reads import DueAsk, DueFound, DueReads, DueRow
from cluster.broker.timers.row_delivery import AGAIN_MS, RowDelivery, RowTerm
from cluster.replication.internal_sends import submit_copies
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.service_lifecycle import Part
from raftmq_wire.properties import without
from statemachine.broker_state import BrokerState
from statemachine.delivery.timers import DeliverTimers
from statemachine.payload import RowKind

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.message_batch import TopicSlot
    from cluster.replication.proposals import Proposals
    from cluster.runtime.lanes import LaneRunner
    from raftmq_wire.message_format import Message
    from statemachine.delivery.timers import TimerCounts, TimerName, TimerRow


logger = logging.getLogger(__name__)

TURN_MESSAGES = 128
"""The number of messages that are copied in one turn of the event loop. The messages of a row are not divided."""
SWEEP_ROWS = 64
"""The number of rows that a sweep reads at once."""
LEFT_MAX = 4_096
"""The most unreadable rows whose names are remembered. Further ones are found by the sweep only."""

MakeDueLane = Callable[[DueReads, Callable[[list[DueFound]], None]], "LaneRunner[DueAsk]"]


class _DueTerm(RowTerm):
    """The rows that this node has in flight in one term as leader, and its progress."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[TimerName, int] = {}
        """Row -> the number of changes of it in progress. Such rows are not delivered."""
        self.after: TimerName | None = None
        """The cursor: the last row that was read; None before the first."""
        self.left: set[TimerName] = set()
        """Rows before the cursor that could not be read, at most LEFT_MAX of them."""
        self.swept: TimerName | None = None
        """The last row that the present sweep has read; None between two sweeps."""
        self.sweep_ms = 0

    def back_to(self, name: TimerName) -> None:
        """Moves the cursor back to before this row, if it has passed the row."""
        if self.after is not None and name <= self.after:
            due_ms, position = name
            self.after = (due_ms, position - 1) if position else (due_ms - 1, 1 << 63)

    def awaits(self, name: TimerName) -> bool:
        """Returns True if it is known why the row, which the cursor has passed, still exists: it is in flight, held or
        unreadable. Also returns True if `left` is full, because the row may then be an unreadable one."""
        return name in self.inflight or name in self.held or name in self.left or len(self.left) >= LEFT_MAX

    def refused(self, name: TimerName, now_ms: int) -> None:
        """Makes the row be tried again after AGAIN_MS."""
        self.back_to(name)
        self.pause(now_ms)


class TimerDelivery(RowDelivery[_DueTerm, DueAsk, DueFound]):
    """Delivers due messages while this node leads."""

    RECORDS = "scheduled messages"

    def __init__(self, services: Services, proposals: Proposals, make_lane: MakeDueLane) -> None:
        """`make_lane`: the argument of that name of `RowDelivery`."""

        def lane(found: Callable[[list[DueFound]], None]) -> LaneRunner[DueAsk]:
            return make_lane(DueReads(services.state, services.read_log), found)

        super().__init__(services, proposals, _DueTerm, lane)
        self._rows: deque[DueRow] = deque()

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return self._part("timers", TimerMetrics(self._services.state))

    def _has_due(self) -> bool:
        return self._services.state.timers.earliest <= self._services.log_time_ms()

    # --- rows that are changed by others -----------------------------------------------------------------------------

    def hold(self, name: TimerName) -> Callable[[], None] | None:
        """Keeps the row from being delivered until the returned function is called. Returns None if the row is being
        delivered already. Holds end with the term of leadership."""
        term = self._term
        if name in term.inflight:
            return None
        term.held[name] = term.held.get(name, 0) + 1

        def release() -> None:
            term.held[name] -= 1
            if not term.held[name]:
                del term.held[name]
            term.back_to(name)
            if term is self._term:
                self._soon()

        return release

    # --- looking -----------------------------------------------------------------------------------------------------

    def _next(self, term: _DueTerm, now_ms: int, rows_max: int, bytes_max: int) -> DueAsk:
        first = self._services.state.timers.first
        after, until = term.after, None
        if after is not None and first <= after:
            if not term.awaits(first):  # the row was added behind the cursor
                term.back_to(first)
                after = term.after
            elif now_ms >= term.sweep_ms:
                term.sweep_ms = now_ms + AGAIN_MS
                after, until, rows_max = term.swept, after, min(rows_max, SWEEP_ROWS)
        passed = frozenset(term.inflight) | term.held.keys()
        return DueAsk(term, self._services.log_time_ms(), after, until, passed, rows_max, bytes_max)

    def _take(self, term: _DueTerm, found: DueFound) -> None:
        if found.ask.until is None:
            term.after = found.last
        else:
            term.swept = found.last if found.more else None
        self._leave(term, [due for due in found.rows if due.messages is None], swept=found.ask.until is not None)
        self._rows.extend([due for due in found.rows if due.messages is not None])
        self._handle(term, more=found.more or found.ask.until is not None)

    def _leave(self, term: _DueTerm, unreadable: list[DueRow], *, swept: bool) -> None:
        """Leaves rows that cannot be delivered now behind the cursor, so that the rows after them are delivered."""
        bad = [due.bad for due in unreadable if due.bad is not None]
        self._report(bad)
        term.left.update([due.row.name for due in unreadable][: LEFT_MAX - len(term.left)])
        if bad and not swept:
            logger.error(
                "%d rows of scheduled messages are set aside, because messages cannot be read (the first at position "
                "%d): they are delivered when they can, and keep the log from being trimmed until then",
                len(bad),
                bad[0].position,
            )

    def _handle(self, term: _DueTerm, *, more: bool) -> None:
        """Delivers the rows that were read, a limited number of messages in each turn of the event loop."""
        if term is not self._term or not self._is_due():
            for due in self._rows:
                term.back_to(due.row.name)
            self._rows.clear()
        dropped: list[TimerName] = []
        messages = 0
        while self._rows and messages < TURN_MESSAGES:
            row, found, _ = self._rows.popleft()
            messages += 1 + len(found or ())
            if row.name in term.inflight or row.name in term.held:
                continue
            term.left.discard(row.name)
            if self._is_gone(row):
                dropped.append(row.name)
            elif (slot := self._slot(row)) is not None:
                self._deliver(term, row, found or [], slot)
        self._drop(term, dropped)
        if self._rows:
            self._services.call_later(0, partial(self._handle, term, more=more))
            return
        self._taken(more=more)

    # --- delivering --------------------------------------------------------------------------------------------------

    def _deliver(self, term: _DueTerm, row: TimerRow, messages: list[Message], slot: TopicSlot) -> None:
        """Queues the copies of a row for the log."""
        name = row.name
        queue_id = queue_for(row.queue_id, slot)
        copies = [copied(message, without(message.properties, DELAY)) for message in messages]
        done = partial(self._settled, term, name)
        effect = (DeliverTimers, name)
        term.begin(name, 0)
        size = submit_copies(self._proposals, self._client, copies, slot, queue_id, RowKind.DELIVERED, effect, done)
        term.begin(name, size)


class TimerMetrics(ServiceMetrics):
    """Metrics of scheduled messages, read from the state at each scrape, on any node."""

    def __init__(self, state: BrokerState) -> None:
        super().__init__()
        self._state = state
        gauge, counter = self.gauge, self.counter
        self._waiting = gauge("raftmq_delayed_messages", "Messages that wait until they are due")
        self._bytes = gauge("raftmq_delayed_message_bytes", "Stored bytes of messages that wait")
        self._lag = gauge(
            "raftmq_delayed_lag_seconds",
            "How long the earliest message that waits is due, in log time as of the last applied entry",
        )
        self._delivered = counter("raftmq_delayed_messages_delivered", "Delayed messages delivered")
        self._dropped = counter("raftmq_delayed_messages_dropped", "Delayed messages whose topic or bytes were gone")
        self._recalled = counter("raftmq_delayed_messages_recalled", "Delayed messages recalled")
        self._seen: TimerCounts | None = None

    def look(self) -> None:
        """Updates the metrics from the present state. Counters begin with the first call."""
        timers, applied_ms = self._state.timers, self._state.applied_mark.timestamp_ms
        counts, seen = timers.counts, self._seen
        self._waiting.set(counts.pending)
        self._bytes.set(counts.pending_bytes)
        self._lag.set(max(0, applied_ms - timers.earliest) / 1000)
        if seen is not None:
            self._delivered.inc(counts.delivered - seen.delivered)
            self._dropped.inc(counts.dropped - seen.dropped)
            self._recalled.inc(counts.recalled - seen.recalled)
        self._seen = counts
