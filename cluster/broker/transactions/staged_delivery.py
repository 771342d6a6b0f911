"""Finishes attempts at staged writes: the leader copies the committed messages, and removes the discarded ones.

As with scheduled messages (`cluster.broker.timers.timer_delivery`), a row's copies and the command that removes it are
in one entry, so each message comes into its queue once, whoever leads. The leader goes through attempts by number, and
through their rows in the order in which they were staged, each once. A row that is left behind, because it cannot be
read or its entry was lost, is looked at again after AGAIN_MS. Nothing is remembered beyond a term.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.message_copies import copies_of, queue_for
from cluster.broker.reads.log_reads import read_body
from cluster.broker.timers.due_reads import RowReads, RowsInFlight, is_gone
from cluster.broker.timers.timer_delivery import AGAIN_MS, BYTES_MAX, REPORTS_MAX, ROWS_MAX
from cluster.broker.transactions.staged_writes import DISCARDED_MAX
from cluster.replication.internal_sends import NoClient, submit_own
from cluster.replication.outcome import Outcome, ProposeResult
from raftlog.work import ITEM_UNITS, charge
from statemachine.delivery.staged_writes import AttemptState, DiscardAttempts
from statemachine.delivery.timers import DeliverTimers, DropStaged, DropTimers
from statemachine.payload import ITEM, RowKind

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.message_batch import BatchMessage, TopicSlot
    from cluster.replication.proposals import Proposals
    from cluster.runtime.alarms import Alarms
    from cluster.runtime.lanes import LaneRunner
    from cluster.runtime.turns.work import Steps
    from statemachine.delivery.timers import TimerName, TimerRow
    from statemachine.queue_reads import QueueItem

logger = logging.getLogger(__name__)

DROP_ROWS = 256
"""Rows that one command removes."""
EXPIRE_EVERY_MS = 10_000
WRITE_LEFT = "write_left"
"""Key of the alarm about attempts that have waited for a commit for half of the time after which they are discarded."""


class StagedAsk(NamedTuple):
    """A request for rows."""

    term: object
    """The term of the leader that asks. The answer repeats it."""
    attempt: int
    due_ms: int
    after: int | None
    """Only rows behind this position are wanted."""
    passed: frozenset[TimerName]
    """Rows to skip."""
    rows_max: int
    bytes_max: int
    """The most bytes of messages. The last row may exceed it."""


class StagedRow(NamedTuple):
    """A row with copies of its messages. If one cannot be read, `copies` is None and `bad` is the first unreadable
    one."""

    row: TimerRow
    copies: tuple[BatchMessage, ...] | None
    size: int
    """Stored bytes of the messages."""
    bad: QueueItem | None


class StagedFound(NamedTuple):
    """The answer to a StagedAsk."""

    ask: StagedAsk
    rows: list[StagedRow]
    last: int | None
    """Every row up to this position was looked at."""
    more: bool


class StagedReads(RowReads):
    """The lane that reads the rows of an attempt. Raises KVError, because a damaged database stops the node."""

    def drain(self, batch: Sequence[StagedAsk]) -> list[StagedFound]:
        """Answers each request."""
        return [self._find(ask) for ask in batch]

    def _find(self, ask: StagedAsk) -> StagedFound:
        found: list[StagedRow] = []
        last, size = ask.after, 0
        for row in self.state.timers.staged(ask.due_ms, ask.after):
            if row.name not in ask.passed:
                if len(found) >= ask.rows_max or size >= ask.bytes_max:
                    return StagedFound(ask, found, last, more=True)
                found.append(self._read(self.fresh(row)))
                size += found[-1].size
            last = row.position
        return StagedFound(ask, found, last, more=False)

    def _read(self, row: TimerRow) -> StagedRow:
        if is_gone(self.state, row):
            return StagedRow(row, (), 0, None)
        stored, intact = read_body(self, row.items)
        copies = copies_of(stored, row.items)
        if len(copies) * ITEM.size == len(row.items):
            return StagedRow(row, copies, len(stored), None)
        bad = row.messages()[len(copies)]
        if len(copies) < intact:
            logger.error("a staged message at position %d cannot be decoded", bad.position)
        return StagedRow(row, None, 0, bad)


MakeLane = Callable[[StagedReads, Callable[[list[StagedFound]], None]], "LaneRunner[StagedAsk]"]


class _Term(RowsInFlight):
    """The rows that this node has in flight in one term as leader, and its progress."""

    def __init__(self) -> None:
        super().__init__()
        self.after: dict[int, int | None] = {}
        """Attempt -> every row up to this position was looked at."""
        self.passed: set[int] = set()
        """Attempts of which every row was looked at."""
        self.dropping = False
        self.again_ms = 0


class StagedDelivery:
    """Finishes attempts while this node leads. Event loop only, except for the reads of its lane."""

    def __init__(self, services: Services, proposals: Proposals, alarms: Alarms, make_lane: MakeLane) -> None:
        """`make_lane` makes the lane for the reads, which may wait for the disk. It is called for the first commit."""
        self._services = services
        self._proposals = proposals
        self._alarms = alarms
        self._make_lane = make_lane
        self._lane: LaneRunner[StagedAsk] | None = None
        self._client = NoClient(proposals.gate)
        self._term = _Term()
        self._asked = self._planned = False
        self._expire_ms = 0
        self._expiring = False

    def close(self) -> None:
        """Ends the lane; blocks until it has."""
        if self._lane is not None:
            self._lane.close()

    def writes_opened(self) -> None:
        """Begins a new term of leadership, in which nothing is in flight."""
        self._term = _Term()
        self._soon()

    def tick(self, now_ms: int) -> None:
        """Continues to end attempts. While there is nothing to do, this costs two comparisons."""
        services = self._services
        if now_ms >= self._expire_ms and not self._expiring:
            self._expire_ms = now_ms + EXPIRE_EVERY_MS
            self._expiring = True
            services.turns.begin(self, self._expire())
        if not services.writes_open():
            return
        if services.state.writes.draining and not self._proposals.refusing and not services.fenced():
            self._look(self._term, services.monotonic_ms())

    # -- what nobody commits

    def _expire(self) -> Steps:
        """Discards attempts that are idle for too long; the leader warns when half of that time has passed."""
        try:
            yield from self._look_for_idle()
        finally:
            self._expiring = False

    def _look_for_idle(self) -> Steps:
        services = self._services
        now_ms, expire_ms = services.log_time_ms() if services.writes_open() else 0, services.config.writes.expire_ms
        left: set[tuple[str, int]] = set()
        old: list[int] = []
        for one in services.state.writes.attempts():
            if not services.writes_open():
                break
            charge(ITEM_UNITS)
            if one.state is AttemptState.OPEN:
                if one.left and one.staged_ms < now_ms - expire_ms // 2:
                    left.add((one.name, one.write))
                if one.staged_ms < now_ms - expire_ms and len(old) < DISCARDED_MAX:
                    old.append(one.number)
            yield
        if not services.writes_open():
            self._alarms.clear(WRITE_LEFT)
            return
        if not left:
            self._alarms.clear(WRITE_LEFT)
        elif not self._alarms.raised(WRITE_LEFT):
            name, write = min(left)
            self._alarms.raise_alarm(
                WRITE_LEFT,
                f"{len(left)} staged writes wait for their commit, and nothing was staged for {expire_ms // 120_000} "
                f"minutes: write {write} of {name!r} is one. They keep their part of the log, and are discarded after "
                f"writes.expire_ms = {expire_ms}. raftmq writes list shows them; raftmq writes abort discards one",
            )
        if old:
            logger.warning("%d attempts at staged writes are discarded: nobody committed them in time", len(old))
            services.propose([DiscardAttempts(old)], lambda _: None)

    # -- looking

    def _look(self, term: _Term, now_ms: int) -> None:
        """Lets the lane read the next rows, or removes rows, if there is room for them."""
        state = self._services.state
        term.end_gone(state.timers)
        if self._asked or len(term.inflight) >= ROWS_MAX or term.bytes >= BYTES_MAX or now_ms < term.again_ms:
            return
        for number in state.writes.draining:
            attempt = state.writes.get(number)
            if attempt is None or number in term.passed:
                continue
            if attempt.state is AttemptState.DISCARDED:
                self._drop_staged(term, number)
                continue
            room, bytes_left = ROWS_MAX - len(term.inflight), BYTES_MAX - term.bytes
            passed = frozenset(term.inflight)
            ask = StagedAsk(term, number, attempt.due_ms, term.after.get(number), passed, room, bytes_left)
            if self._lane is None:
                self._lane = self._make_lane(StagedReads(state, self._services.read_log), self._found)
            self._asked = True
            self._lane.submit(ask)
            return
        if term.passed and not term.inflight:  # what is left of them is looked at again
            term.passed.clear()
            term.after.clear()
            term.again_ms = now_ms + AGAIN_MS

    def _found(self, answers: list[StagedFound]) -> None:
        (found,) = answers  # one is asked at a time
        self._asked = False
        term = self._term
        if found.ask.term is term and self._services.writes_open():
            number = found.ask.attempt
            term.after[number] = found.last
            if not found.more:
                term.passed.add(number)
            self._report([staged for staged in found.rows if staged.copies is None])
            self._take(term, [staged for staged in found.rows if staged.copies is not None])
        self._soon()

    def _report(self, unreadable: list[StagedRow]) -> None:
        bad = [staged.bad for staged in unreadable if staged.bad is not None]
        for item in bad[:REPORTS_MAX]:
            self._services.report_damage(item.position, item.size)
        if bad:
            logger.error(
                "%d rows of a committed write cannot be read (the first at position %d): they come into their queues "
                "when they can, and keep the log from being trimmed until then",
                len(bad),
                bad[0].position,
            )

    # -- ending rows

    def _take(self, term: _Term, rows: list[StagedRow]) -> None:
        dropped: list[TimerRow] = []
        for staged in rows:
            row = staged.row
            topic = self._services.state.topics_by_id.get(row.topic_id)
            if topic is None or is_gone(self._services.state, row):
                dropped.append(row)
                continue
            slot = self._proposals.slot(topic.name)
            if slot is not None and slot.topic_id == row.topic_id:  # else a change of the topic is under way
                self._copy(term, staged, slot)
        if dropped:
            self._drop_rows(term, dropped)

    def _copy(self, term: _Term, staged: StagedRow, slot: TopicSlot) -> None:
        name, copies = staged.row.name, staged.copies or ()
        queue_id = queue_for(staged.row.queue_id, slot)
        term.begin(name, staged.size)
        done = partial(self._settled, term, name)
        effect = (DeliverTimers, name)
        size = staged.size + len(copies) * len(slot.field)  # at most: what they are stored under now may be shorter
        submit_own(
            self._proposals, self._client, size, slot, queue_id, RowKind.DELIVERED, done, batch=copies, effect=effect
        )

    def _drop_rows(self, term: _Term, rows: list[TimerRow]) -> None:
        logger.warning("%d rows of a committed write are dropped: their topic was deleted", len(rows))
        for row in rows:
            term.begin(row.name, 0)

        def done(result: ProposeResult) -> None:
            for row in rows:
                self._settled(term, row.name, result.outcome)

        self._services.propose([DropTimers([row.name for row in rows])], done)

    def _settled(self, term: _Term, name: TimerName, outcome: Outcome) -> None:
        if outcome is Outcome.UNKNOWN:
            term.unknown.add(name)
            return
        term.end(name)
        if term is self._term:
            self._soon()

    def _drop_staged(self, term: _Term, number: int) -> None:
        if term.dropping:
            return
        term.dropping = True

        def done(result: ProposeResult) -> None:
            term.dropping = False
            if term is self._term and result.outcome is Outcome.OK:
                self._soon()

        self._services.propose([DropStaged(number, DROP_ROWS)], done)

    def _soon(self) -> None:
        """Looks again in a moment, once for all rows that ended in this turn."""
        if not self._planned:
            self._planned = True
            self._services.call_later(0, self._again)

    def _again(self) -> None:
        self._planned = False
        services = self._services
        if services.writes_open() and services.state.writes.draining and not self._proposals.refusing:
            self._look(self._term, services.monotonic_ms())
