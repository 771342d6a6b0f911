"""Delivery of scheduled messages: the leader copies what is due into its queue.

A row of `statemachine.timers` is a unit: its copies and the command that removes it are in one entry, so each message
is delivered once, whoever leads. What is in flight is known only to the leader that proposed it; the next one opens its
writes when everything before its term is applied or will never be, and begins from the rows that are left. Copies share
the send queue and the entries of clients; ROWS_MAX and BYTES_MAX bound how many wait there, so that clients are not
kept waiting when many are due.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker.copies import NoClient, copied, submit_copies
from cluster.broker.delays import DELAY, without
from cluster.broker.log_reads import read_intact
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.wire.message_format import MessageFormatError, decode_message
from statemachine.commands import DELIVER_TIMERS, DROP_TIMERS
from statemachine.payload import RowKind

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.message_batch import TopicSlot
    from cluster.replication.proposals import Proposals
    from statemachine.timers import TimerRow

logger = logging.getLogger(__name__)

ROWS_MAX = 256
BYTES_MAX = 2 << 20
"""In flight at once; one more row may pass it."""
PASSED_MAX = 1024
"""Rows that are looked at in one turn and cannot be delivered now."""
AGAIN_MS = 1_000
"""After this a row is tried again whose messages could not be read, or whose copies were refused."""

_Name = tuple[int, int]
"""(due, position) of a row."""


class _Term:
    """What this node has in flight in one term as leader."""

    def __init__(self) -> None:
        self.inflight: dict[_Name, int] = {}
        """Row -> bytes of its copies."""
        self.bytes = 0
        self.unknown: set[_Name] = set()
        """Of those, the ones whose outcome was not known in time: they end when the row is gone."""
        self.not_before: dict[_Name, int] = {}
        """Rows that are tried again, and when."""

    def begin(self, name: _Name, size: int) -> None:
        self.inflight[name] = size
        self.bytes += size

    def end(self, name: _Name) -> None:
        self.bytes -= self.inflight.pop(name, 0)
        self.unknown.discard(name)


class TimerDelivery:
    """Delivers what is due while this node leads. Event loop only."""

    def __init__(self, services: Services, proposals: Proposals) -> None:
        self._services = services
        self._proposals = proposals
        self._client = NoClient()
        self._term = _Term()
        self._planned = False

    def writes_opened(self) -> None:
        """A new term of leadership: nothing is in flight."""
        self._term = _Term()
        self._soon()

    def tick(self, _now_ms: int) -> None:
        """Delivers what is due. While nothing is, this costs one comparison."""
        services = self._services
        if not services.writes_open() or services.state.timers.earliest > services.log_time_ms():
            return
        if self._proposals.refusing or services.fenced():
            return
        self._deliver(self._term, services.log_time_ms(), services.monotonic_ms())

    def _deliver(self, term: _Term, log_time_ms: int, now_ms: int) -> None:
        state = self._services.state
        for name in [name for name in term.unknown if state.timers.get(*name) is None]:
            term.end(name)
        passed = 0
        dropped: list[list[int]] = []
        for row in state.timers.due(log_time_ms):
            if len(term.inflight) >= ROWS_MAX or term.bytes >= BYTES_MAX or passed >= PASSED_MAX:
                break
            name = (row.due_ms, row.position)
            if name in term.inflight:
                continue
            if term.not_before.get(name, now_ms) > now_ms:
                passed += 1
                continue
            term.not_before.pop(name, None)
            topic = state.topics_by_id.get(row.topic_id)
            if topic is None or row.position < state.trim_position:
                term.begin(name, 0)
                dropped.append(list(name))
                continue
            slot = self._proposals.slot(topic.name)
            if slot is None or slot.topic_id != row.topic_id:
                passed += 1  # a change of the topic is under way
            elif not self._submit(term, row, slot):
                term.not_before[name] = now_ms + AGAIN_MS
                passed += 1
        if dropped:
            self._drop(term, dropped)

    def _submit(self, term: _Term, row: TimerRow, slot: TopicSlot) -> bool:
        """Queues the copies of a row; False if a message cannot be read now."""
        services, items = self._services, row.messages()
        pieces = read_intact(services, items)
        if len(pieces) < len(items):
            bad = items[len(pieces)]
            logger.error("a scheduled message at position %d cannot be read; it is tried again", bad.position)
            services.report_damage(bad.position, bad.size)
            return False
        queue_id = row.queue_id if row.queue_id < slot.queues else row.queue_id % slot.write_queues
        copies = []
        for piece in pieces:
            try:
                message, _ = decode_message(piece)
            except MessageFormatError:
                logger.exception("a scheduled message of the row at position %d cannot be decoded", row.position)
                return False
            copies.append(copied(message, without(message.properties, DELAY), slot, queue_id))
        name = (row.due_ms, row.position)
        done = partial(self._settled, term, name)
        effect = (DELIVER_TIMERS, list(name))
        term.begin(name, 0)
        size = submit_copies(self._proposals, self._client, copies, slot, queue_id, RowKind.DELIVERED, effect, done)
        term.begin(name, size)
        return True

    def _settled(self, term: _Term, name: _Name, outcome: Outcome) -> None:
        if outcome is Outcome.UNKNOWN:
            term.unknown.add(name)
            return
        term.end(name)
        if outcome is Outcome.FAIL:
            term.not_before[name] = self._services.monotonic_ms() + AGAIN_MS
        elif term is self._term:
            self._soon()

    def _drop(self, term: _Term, rows: list[list[int]]) -> None:
        """Nobody can have these messages any more: their topic was deleted, or the log does not reach down to them."""
        logger.warning("%d rows of scheduled messages are dropped: their topic or the messages are gone", len(rows))

        def done(result: ProposeResult) -> None:
            for due_ms, position in rows:
                self._settled(term, (due_ms, position), result.outcome)

        self._services.propose([[DROP_TIMERS, rows]], done)

    def _soon(self) -> None:
        """Looks again in a moment, once for all that ended in this turn."""
        if not self._planned:
            self._planned = True
            self._services.call_later(0, self._again)

    def _again(self) -> None:
        self._planned = False
        self.tick(0)
