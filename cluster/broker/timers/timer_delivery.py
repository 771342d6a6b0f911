"""Delivery of scheduled messages: the leader copies due messages into their queues.

A row of `statemachine.delivery.timers` is delivered as a whole: its copies and the command that removes it are in one
entry, so each message is delivered once, whoever leads. Only the leader that proposed copies knows that they are in
flight. The next leader opens its writes when everything before its term is applied or will never be, and begins from
the remaining rows. Copies share the send queue and the entries of clients. ROWS_MAX and BYTES_MAX bound the copies that
wait there, so that clients do not wait when many messages are due.

Rows are looked at once, in the order of delivery, and a cursor (`_Term.after`) moves along: a row whose messages cannot
be read is left behind the cursor and delays no other. A sweep reads these rows again, a few a second; they are
delivered when their bytes are repaired.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

from cluster.broker.delivery_time import DELAY
from cluster.broker.message_copies import copied, queue_for
from cluster.broker.timers.due_reads import DueAsk, DueFound, DueReads, DueRow, RowsInFlight, is_gone
from cluster.replication.internal_sends import NoClient, submit_copies
from cluster.replication.outcome import Outcome, ProposeResult
from raftmq_wire.properties import without
from statemachine.delivery.timers import DeliverTimers, DropTimers
from statemachine.payload import RowKind

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.message_batch import TopicSlot
    from cluster.replication.proposals import Proposals
    from cluster.runtime.lanes import LaneRunner
    from raftmq_wire.message_format import Message
    from statemachine.delivery.timers import TimerCounts, TimerName, TimerRow, Timers


logger = logging.getLogger(__name__)

ROWS_MAX = 256
BYTES_MAX = 2 << 20
"""The most rows, and bytes of copies, in flight at once. The last row may exceed the bytes."""
TURN_MESSAGES = 128
"""The number of messages copied in one turn of the event loop. A row is not divided."""
AGAIN_MS = 1_000
"""Milliseconds after which rows are tried again whose copies were refused, and the next ones of those that could not be
read."""
SWEEP_ROWS = 64
"""The number of rows that a sweep reads at once."""
LEFT_MAX = 4_096
"""The most names of unreadable rows that are remembered. Only the sweep finds further ones."""
REPORTS_MAX = 8
"""The most damaged messages that one look reports: the repair of one mostly covers its neighbours."""

MakeLane = Callable[[DueReads, Callable[[list[DueFound]], None]], "LaneRunner[DueAsk]"]


class _Term(RowsInFlight):
    """The rows that this node has in flight in one term as leader, and its progress."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[TimerName, int] = {}
        """Rows that are being changed, and the number of changes. They are not delivered meanwhile."""
        self.after: TimerName | None = None
        """Every row up to this one was looked at."""
        self.left: set[TimerName] = set()
        """Rows up to the cursor that could not be read. The table does not have all of them."""
        self.paused_until_ms = 0
        self.swept: TimerName | None = None
        """The last row that the present sweep has looked at."""
        self.sweep_ms = 0

    def back_to(self, name: TimerName) -> None:
        """Moves the cursor back before this row, if it has passed it."""
        if self.after is not None and name <= self.after:
            due_ms, position = name
            self.after = (due_ms, position - 1) if position else (due_ms - 1, 1 << 63)

    def awaits(self, name: TimerName) -> bool:
        """Returns True if the cursor has passed the row and there is a reason why the row still exists."""
        return name in self.inflight or name in self.held or name in self.left or len(self.left) >= LEFT_MAX


class TimerDelivery:
    """Delivers due messages while this node leads. Event loop only, except for the reads of its lane."""

    def __init__(self, services: Services, proposals: Proposals, make_lane: MakeLane) -> None:
        """`make_lane` makes the lane for the reads, which may wait for the disk, and connects its answers. It is called
        when the first message is due, so that a node without scheduled messages has no thread for them."""
        self._services = services
        self._proposals = proposals
        self._make_lane = make_lane
        self._lane: LaneRunner[DueAsk] | None = None
        self._client = NoClient(proposals.gate)
        self._term = _Term()
        self._planned = False
        self._asked = False
        """True while requested rows are not read yet, or not all handled."""
        self._rows: deque[DueRow] = deque()

    def close(self) -> None:
        """Ends the lane; blocks until it has."""
        if self._lane is not None:
            self._lane.close()

    def writes_opened(self) -> None:
        """Begins a new term of leadership, in which nothing is in flight."""
        self._term = _Term()
        self._soon()

    def tick(self, _now_ms: int) -> None:
        """Delivers what is due. While nothing is, this costs one comparison."""
        if self._is_due():
            self._look(self._term, self._services.monotonic_ms())

    def _is_due(self) -> bool:
        services = self._services
        if not services.writes_open() or services.state.timers.earliest > services.log_time_ms():
            return False
        return not self._proposals.refusing and not services.fenced()

    # --- rows that are changed by others -----------------------------------------------------------------------------

    def hold(self, name: TimerName) -> Callable[[], None] | None:
        """Keeps the row from being delivered until the returned function is called; None if it is being delivered. A
        new term of leadership begins without any."""
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

    def _look(self, term: _Term, now_ms: int) -> None:
        """Requests the next rows, if there is room for them."""
        state = self._services.state
        term.end_gone(state.timers)
        room = ROWS_MAX - len(term.inflight)
        if self._asked or room <= 0 or term.bytes >= BYTES_MAX or now_ms < term.paused_until_ms:
            return
        first = state.timers.first
        after, until = term.after, None
        if after is not None and first <= after:
            if not term.awaits(first):  # it was added when the cursor had passed already
                term.back_to(first)
                after = term.after
            elif now_ms >= term.sweep_ms:
                term.sweep_ms = now_ms + AGAIN_MS
                after, until, room = term.swept, after, min(room, SWEEP_ROWS)
        passed = frozenset(term.inflight) | term.held.keys()
        ask = DueAsk(term, self._services.log_time_ms(), after, until, passed, room, BYTES_MAX - term.bytes)
        if self._lane is None:
            self._lane = self._make_lane(DueReads(state, self._services.read_log), self._found)
        self._asked = True
        self._lane.submit(ask)

    def _found(self, answers: list[DueFound]) -> None:
        (found,) = answers  # one is asked at a time
        term = self._term
        if found.ask.term is not term:
            self._asked = False
            self._soon()
            return
        if found.ask.until is None:
            term.after = found.last
        else:
            term.swept = found.last if found.more else None
        self._leave(term, [due for due in found.rows if due.messages is None], swept=found.ask.until is not None)
        self._rows.extend([due for due in found.rows if due.messages is not None])
        self._handle(term, more=found.more or found.ask.until is not None)

    def _leave(self, term: _Term, unreadable: list[DueRow], *, swept: bool) -> None:
        """Leaves rows behind that cannot be delivered now, so that the others continue."""
        bad = [due.bad for due in unreadable if due.bad is not None]
        for item in bad[:REPORTS_MAX]:
            self._services.report_damage(item.position, item.size)
        term.left.update([due.row.name for due in unreadable][: LEFT_MAX - len(term.left)])
        if bad and not swept:
            logger.error(
                "%d rows of scheduled messages are set aside, because messages cannot be read (the first at position "
                "%d): they are delivered when they can, and keep the log from being trimmed until then",
                len(bad),
                bad[0].position,
            )

    def _handle(self, term: _Term, *, more: bool) -> None:
        """Delivers the rows that were read, some messages in each turn of the event loop."""
        if term is not self._term or not self._is_due():
            for due in self._rows:
                term.back_to(due.row.name)
            self._rows.clear()
        dropped: list[TimerName] = []
        messages = 0
        while self._rows and messages < TURN_MESSAGES:
            due = self._rows.popleft()
            messages += 1 + len(due.messages or ())
            if due.row.name in term.inflight or due.row.name in term.held:
                continue
            term.left.discard(due.row.name)
            topic = self._services.state.topics_by_id.get(due.row.topic_id)
            if topic is None or is_gone(self._services.state, due.row):
                dropped.append(due.row.name)
                continue
            slot = self._proposals.slot(topic.name)
            if slot is not None and slot.topic_id == due.row.topic_id:  # else a change of the topic is under way
                self._deliver(term, due.row, due.messages or [], slot)
        if dropped:
            self._drop(term, dropped)
        if self._rows:
            self._services.call_later(0, partial(self._handle, term, more=more))
            return
        self._asked = False
        if more:
            self._soon()

    # --- delivering --------------------------------------------------------------------------------------------------

    def _deliver(self, term: _Term, row: TimerRow, messages: list[Message], slot: TopicSlot) -> None:
        """Queues the copies of a row."""
        name = row.name
        queue_id = queue_for(row.queue_id, slot)
        copies = [copied(message, without(message.properties, DELAY)) for message in messages]
        done = partial(self._settled, term, name)
        effect = (DeliverTimers, name)
        term.begin(name, 0)
        size = submit_copies(self._proposals, self._client, copies, slot, queue_id, RowKind.DELIVERED, effect, done)
        term.begin(name, size)

    def _settled(self, term: _Term, name: TimerName, outcome: Outcome) -> None:
        if outcome is Outcome.UNKNOWN:
            term.unknown.add(name)
            return
        term.end(name)
        if outcome is Outcome.FAIL:
            term.back_to(name)
            term.paused_until_ms = self._services.monotonic_ms() + AGAIN_MS
        elif term is self._term:
            self._soon()

    def _drop(self, term: _Term, names: list[TimerName]) -> None:
        """Removes rows whose messages can no longer be delivered."""
        logger.warning("%d rows of scheduled messages are dropped: their topic or the messages are gone", len(names))
        for name in names:
            term.begin(name, 0)

        def done(result: ProposeResult) -> None:
            for name in names:
                self._settled(term, name, result.outcome)

        self._services.propose([DropTimers(names)], done)

    def _soon(self) -> None:
        """Looks again in a moment, once for all rows that ended in this turn."""
        if not self._planned:
            self._planned = True
            self._services.call_later(0, self._again)

    def _again(self) -> None:
        self._planned = False
        self.tick(0)


class TimerMetrics:
    """Metrics of scheduled messages, read from the state before a scrape, on any node."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
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

    def update(self, timers: Timers, applied_ms: int) -> None:
        """Takes the figures of the present state. `applied_ms`: log time of the last applied entry. Counters begin with
        the first call."""
        counts, seen = timers.counts, self._seen
        self._waiting.set(counts.pending)
        self._bytes.set(counts.pending_bytes)
        self._lag.set(max(0, applied_ms - timers.earliest) / 1000)
        if seen is not None:
            self._delivered.inc(counts.delivered - seen.delivered)
            self._dropped.inc(counts.dropped - seen.dropped)
            self._recalled.inc(counts.recalled - seen.recalled)
        self._seen = counts
