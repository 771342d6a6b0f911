"""Finishes attempts at staged writes: the leader copies the committed messages, and removes the discarded ones.

The leader goes through attempts by number, and through their rows in the order in which they were staged, each once. A
row that is left behind, because it cannot be read or its entry was lost, is looked at again after AGAIN_MS. Nothing is
remembered beyond a term.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.message_copies import copies_of, queue_for
from cluster.broker.reads.log_reads import read_body
from cluster.broker.timers.due_reads import RowReads, is_gone
from cluster.broker.timers.row_delivery import RowDelivery, RowTerm
from cluster.broker.transactions.staged_writes import DISCARDED_MAX, StagedMetrics
from cluster.replication.internal_sends import submit_own
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.findings import Code
from cluster.runtime.service_lifecycle import Part
from raftlog.work import ITEM_UNITS, charge
from statemachine.delivery.staged_writes import AttemptState, DiscardAttempts
from statemachine.delivery.timers import DeliverTimers, DropStaged
from statemachine.payload import ITEM, RowKind

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.message_batch import BatchMessage
    from cluster.replication.proposals import Proposals
    from cluster.runtime.alarms import Alarms
    from cluster.runtime.lanes import LaneRunner
    from cluster.runtime.turns.work import WorkSteps
    from statemachine.delivery.timers import TimerName, TimerRow
    from statemachine.queue_reads import QueueItem

logger = logging.getLogger(__name__)

DROP_ROWS = 256
"""The most rows that one command removes."""
EXPIRE_EVERY_MS = 10_000
WRITE_LEFT = Code("write_left", "warning", "raftmq writes list")
"""Key of the alarm about attempts that have waited for a commit for half of the time after which they are discarded."""


class StagedAsk(NamedTuple):
    """A request for rows of an attempt. A lane (a thread of its own, `cluster.runtime.lanes`) answers it."""

    term: object
    """The term of the leader that asks, which the answer repeats."""
    attempt: int
    due_ms: int
    after: int | None
    """The position behind which the wanted rows begin; None to begin with the first."""
    passed: frozenset[TimerName]
    """Rows to skip."""
    rows_max: int
    bytes_max: int
    """The most bytes of messages in the answer. The last row may exceed it."""


class StagedRow(NamedTuple):
    """A row with copies of its messages. If a message cannot be read, `copies` is None and `bad` is the first
    unreadable one."""

    row: TimerRow
    copies: tuple[BatchMessage, ...] | None
    size: int
    """The stored bytes of the row's messages."""
    bad: QueueItem | None


class StagedFound(NamedTuple):
    """The answer to a StagedAsk."""

    ask: StagedAsk
    rows: list[StagedRow]
    last: int | None
    """The position of the last row that was looked at; the `after` of the request if there was none."""
    more: bool


class StagedReads(RowReads):
    """The lane that reads the rows of an attempt. It raises KVError if the database is damaged, which stops the
    node."""

    def drain(self, batch: Sequence[StagedAsk]) -> list[StagedFound]:
        """Returns the answers to the requests, in their order."""
        return [self._find(ask) for ask in batch]

    def _find(self, ask: StagedAsk) -> StagedFound:
        found: list[StagedRow] = []
        last, size = ask.after, 0
        for row in self.state.timers.staged(ask.due_ms, ask.after):
            if row.name not in ask.passed:
                if len(found) >= ask.rows_max or size >= ask.bytes_max:
                    return StagedFound(ask, found, last, more=True)
                staged = self._read(self.fresh(row))
                size += staged.size
                if staged.copies is not None or not self.ended(row):
                    found.append(staged)
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


MakeStagedLane = Callable[[StagedReads, Callable[[list[StagedFound]], None]], "LaneRunner[StagedAsk]"]


class _WritesTerm(RowTerm):
    """The rows that this node has in flight in one term as leader, and its progress."""

    def __init__(self) -> None:
        super().__init__()
        self.after: dict[int, int | None] = {}
        """Attempt -> the position of the last row that was looked at; None before the first."""
        self.passed: set[int] = set()
        """Attempts whose rows were all looked at."""
        self.dropping = False


class StagedDelivery(RowDelivery[_WritesTerm, StagedAsk, StagedFound]):
    """Finishes attempts while this node leads."""

    RECORDS = "a committed write"

    def __init__(self, services: Services, proposals: Proposals, alarms: Alarms, make_lane: MakeStagedLane) -> None:
        """`make_lane`: the argument of that name of `RowDelivery`."""

        def lane(found: Callable[[list[StagedFound]], None]) -> LaneRunner[StagedAsk]:
            return make_lane(StagedReads(services.state, services.read_log), found)

        super().__init__(services, proposals, _WritesTerm, lane)
        self._alarms = alarms
        self._expire_ms = 0
        self._expiring = False

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return self._part("staged writes", StagedMetrics(self._services.state.writes))

    def tick(self, now_ms: int) -> None:
        """Continues with the attempts that must end. It is cheap while there are none."""
        services = self._services
        if now_ms >= self._expire_ms and not self._expiring:
            self._expire_ms = now_ms + EXPIRE_EVERY_MS
            self._expiring = True
            services.turns.begin(self, self._expire())
        if services.state.writes.draining:
            super().tick(now_ms)

    def _has_due(self) -> bool:
        return bool(self._services.state.writes.draining)

    # -- attempts that nobody commits

    def _expire(self) -> WorkSteps:
        """Discards attempts that were idle for too long. The leader raises an alarm when half of that time has
        passed."""
        try:
            yield from self._look_for_idle()
        finally:
            self._expiring = False

    def _look_for_idle(self) -> WorkSteps:
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

    def _next(self, term: _WritesTerm, now_ms: int, rows_max: int, bytes_max: int) -> StagedAsk | None:
        writes = self._services.state.writes
        for number in writes.draining:
            attempt = writes.get(number)
            if attempt is None or number in term.passed:
                continue
            if attempt.state is AttemptState.DISCARDED:
                self._drop_staged(term, number)
                continue
            after = term.after.get(number)
            return StagedAsk(term, number, attempt.due_ms, after, frozenset(term.inflight), rows_max, bytes_max)
        if term.passed and not term.inflight:  # the rows that were passed over are looked at again
            term.passed.clear()
            term.after.clear()
            term.pause(now_ms)
        return None

    def _take(self, term: _WritesTerm, found: StagedFound) -> None:
        if self._services.writes_open():
            number = found.ask.attempt
            term.after[number] = found.last
            if not found.more:
                term.passed.add(number)
            self._leave([staged.bad for staged in found.rows if staged.bad is not None])
            dropped: list[TimerName] = []
            for staged in found.rows:
                if self._is_gone(staged.row):
                    dropped.append(staged.row.name)
                elif staged.copies is not None:
                    self._copy(term, staged)
            self._drop(term, dropped)
        self._taken(more=True)

    def _leave(self, unreadable: list[QueueItem]) -> None:
        self._report(unreadable)
        if unreadable:
            logger.error(
                "%d rows of a committed write cannot be read (the first at position %d): they come into their queues "
                "when they can, and keep the log from being trimmed until then",
                len(unreadable),
                unreadable[0].position,
            )

    # -- ending rows

    def _copy(self, term: _WritesTerm, staged: StagedRow) -> None:
        name, copies, slot = staged.row.name, staged.copies or (), self._slot(staged.row)
        if slot is None:
            return
        queue_id = queue_for(staged.row.queue_id, slot)
        term.begin(name, staged.size)
        done = partial(self._settled, term, name)
        effect = (DeliverTimers, name)
        # An upper bound: a copy has the name of its topic in place of STAGED_TOPIC.
        size = staged.size + len(copies) * len(slot.field)
        submit_own(
            self._proposals, self._client, size, slot, queue_id, RowKind.DELIVERED, done, batch=copies, effect=effect
        )

    def _drop_staged(self, term: _WritesTerm, number: int) -> None:
        if term.dropping:
            return
        term.dropping = True

        def done(result: ProposeResult) -> None:
            term.dropping = False
            if term is self._term and result.outcome is Outcome.OK:
                self._soon()

        self._services.propose([DropStaged(number, DROP_ROWS)], done)
