"""Delivers waiting messages: the leader copies the messages that a row names into their queue.

A row of `statemachine.delivery.timers` is delivered as a whole: its copies and the command that removes it are in one
entry, so each message comes into its queue once, whichever node leads. Only the leader that proposed copies knows that
they are in flight. The next leader opens its writes when every entry of earlier terms is applied or lost, and begins
from the rows that remain. Copies share the send queue and the entries of clients. ROWS_MAX and BYTES_MAX bound the
copies that wait there, so that clients do not wait when there are many rows.

The kind of delivery decides which rows are next: rows that are due (`timer_delivery`), rows of committed writes
(`cluster.broker.transactions.staged_delivery`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from cluster.broker.timers.due_reads import is_gone
from cluster.replication.internal_sends import NoClient
from cluster.replication.outcome import Outcome
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.service_lifecycle import Part
from statemachine.delivery.timers import DropTimers

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.message_batch import TopicSlot
    from cluster.replication.outcome import ProposeResult
    from cluster.replication.proposals import Proposals
    from cluster.runtime.lanes import LaneRunner
    from statemachine.delivery.timers import TimerName, TimerRow, Timers
    from statemachine.queue_reads import QueueItem

logger = logging.getLogger(__name__)

ROWS_MAX = 256
BYTES_MAX = 2 << 20
"""The most rows, and bytes of copies, in flight at once. The last row may exceed the bytes."""
AGAIN_MS = 1_000
"""Milliseconds after which rows are tried again if their copies were refused, or if they could not be read."""
REPORTS_MAX = 8
"""The most damaged messages that are reported at once. The repair of one mostly repairs its neighbours too."""


class RowTerm:
    """The rows whose copies are in flight in one term of leadership."""

    def __init__(self) -> None:
        self.inflight: dict[TimerName, int] = {}
        """Row -> the bytes of its copies, for rows whose copies are in flight."""
        self.bytes = 0
        self.unknown: set[TimerName] = set()
        """Rows in flight whose outcome is unknown. A row leaves this table when it no longer exists."""
        self.paused_until_ms = 0

    def begin(self, name: TimerName, size: int) -> None:
        """Records that copies of the row with `size` bytes are in flight."""
        self.inflight[name] = size
        self.bytes += size

    def end(self, name: TimerName) -> None:
        """Records that copies of the row are no longer in flight."""
        self.bytes -= self.inflight.pop(name, 0)
        self.unknown.discard(name)

    def end_gone(self, timers: Timers) -> None:
        """Ends the deliveries of unknown outcome whose row no longer exists in `timers`."""
        for name in [name for name in self.unknown if timers.get(*name) is None]:
            self.end(name)

    def refused(self, name: TimerName, now_ms: int) -> None:
        """Handles that the copies of the row were not stored. Does nothing here; subclasses may override it."""

    def pause(self, now_ms: int) -> None:
        """Stops reading rows for AGAIN_MS."""
        self.paused_until_ms = now_ms + AGAIN_MS


class AskOfTerm(Protocol):
    """A request to the lane for rows."""

    @property
    def term(self) -> object:
        """The term of the leader that asks."""


class DueAnswer(Protocol):
    """The lane's answer to a request for rows."""

    @property
    def ask(self) -> AskOfTerm:
        """The request that is answered."""


Term = TypeVar("Term", bound=RowTerm)
LaneAsk = TypeVar("LaneAsk", bound=AskOfTerm)
LaneFound = TypeVar("LaneFound", bound=DueAnswer)
MakeLane = Callable[[Callable[[list[LaneFound]], None]], "LaneRunner[LaneAsk]"]


class RowDelivery(ABC, Generic[Term, LaneAsk, LaneFound]):
    """Delivers rows of waiting messages while this node leads. Runs on the event loop, except for the reads, which run
    on a lane (a thread of its own, `cluster.runtime.lanes`)."""

    RECORDS: str
    """The name of the rows in the log lines of the node."""

    def __init__(
        self,
        services: Services,
        proposals: Proposals,
        make_term: Callable[[], Term],
        make_lane: MakeLane[LaneFound, LaneAsk],
    ) -> None:
        """`make_lane` makes the lane for the reads, which may wait for the disk, and connects its answers. It is called
        for the first row, so that a node without any has no thread for them."""
        self._services = services
        self._proposals = proposals
        self._make_term, self._make_lane = make_term, make_lane
        self._lane: LaneRunner[LaneAsk] | None = None
        self._client = NoClient(proposals.gate)
        self._term = make_term()
        self._asked = False
        """True from a request for rows until all rows of its answer are handled."""
        self._planned = False

    def _part(self, name: str, metrics: ServiceMetrics) -> Part:
        return Part(
            name=name,
            close=lambda: asyncio.get_running_loop().run_in_executor(None, self.close),
            tick=self.tick,
            opened=self.writes_opened,
            metrics=(metrics,),
        )

    def close(self) -> None:
        """Stops the lane. Blocks until it has ended."""
        if self._lane is not None:
            self._lane.close()

    def writes_opened(self) -> None:
        """Begins a new term of leadership, in which nothing is in flight."""
        self._term = self._make_term()
        self._soon()

    # --- what each kind of delivery defines --------------------------------------------------------------------------

    @abstractmethod
    def _has_due(self) -> bool:
        """Returns True if there are rows to deliver now. It is cheap if there are none."""

    @abstractmethod
    def _next(self, term: Term, now_ms: int, rows_max: int, bytes_max: int) -> LaneAsk | None:
        """Returns a request for the next rows; None if there are none to read."""

    @abstractmethod
    def _take(self, term: Term, found: LaneFound) -> None:
        """Handles rows of the present term that were read. `_taken` must be called when all are handled."""

    # --- looking -----------------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """Returns True if this node may deliver rows now, and there are some."""
        services = self._services
        return services.writes_open() and self._has_due() and not self._proposals.refusing and not services.fenced()

    def tick(self, _now_ms: int) -> None:
        """Starts to read the next rows on the lane, if some are due and there is room for their copies. Called several
        times a second, and as soon as there is room again."""
        if not self._is_due():
            return
        term, now_ms = self._term, self._services.monotonic_ms()
        term.end_gone(self._services.state.timers)
        rows_max, bytes_max = ROWS_MAX - len(term.inflight), BYTES_MAX - term.bytes
        if self._asked or rows_max <= 0 or bytes_max <= 0 or now_ms < term.paused_until_ms:
            return
        ask = self._next(term, now_ms, rows_max, bytes_max)
        if ask is not None:
            if self._lane is None:
                self._lane = self._make_lane(self._found)
            self._asked = True
            self._lane.submit(ask)

    def _found(self, answers: list[LaneFound]) -> None:
        (found,) = answers  # only one request is in progress at a time
        if found.ask.term is self._term:
            self._take(self._term, found)
        else:
            self._taken(more=True)

    def _taken(self, *, more: bool) -> None:
        """Ends the handling of the rows that were read. `more`: True if the next rows may be read at once."""
        self._asked = False
        if more:
            self._soon()

    def _report(self, unreadable: Sequence[QueueItem]) -> None:
        """Reports messages that cannot be read, at most REPORTS_MAX, so that the node repairs them."""
        for item in unreadable[:REPORTS_MAX]:
            self._services.report_damage(item.position, item.size)

    def _soon(self) -> None:
        """Calls `tick` in the next turn of the loop, once, however many rows end in this turn."""
        if not self._planned:
            self._planned = True
            self._services.call_later(0, self._again)

    def _again(self) -> None:
        self._planned = False
        self.tick(0)

    # --- ending rows -------------------------------------------------------------------------------------------------

    def _is_gone(self, row: TimerRow) -> bool:
        """Returns True if the row's messages can no longer be delivered."""
        return is_gone(self._services.state, row)

    def _slot(self, row: TimerRow) -> TopicSlot | None:
        """Returns the slot of the row's topic; None while a change of the topic is in progress."""
        topic = self._services.state.topics_by_id.get(row.topic_id)
        slot = None if topic is None else self._proposals.topics.slot(topic.name)
        return slot if slot is not None and slot.topic_id == row.topic_id else None

    def _settled(self, term: Term, name: TimerName, outcome: Outcome) -> None:
        """Handles the outcome of the copies of a row, or of its removal."""
        if outcome is Outcome.UNKNOWN:
            term.unknown.add(name)
            return
        term.end(name)
        if outcome is Outcome.FAIL:
            term.refused(name, self._services.monotonic_ms())
        if term is self._term:
            self._soon()

    def _drop(self, term: Term, names: Iterable[TimerName]) -> None:
        """Removes rows whose messages can no longer be delivered."""
        dropped = list(names)
        if not dropped:
            return
        logger.warning("%d rows of %s are dropped: their topic or the messages are gone", len(dropped), self.RECORDS)
        for name in dropped:
            term.begin(name, 0)
        self._services.propose([DropTimers(dropped)], partial(self._dropped, term, dropped))

    def _dropped(self, term: Term, names: list[TimerName], result: ProposeResult) -> None:
        for name in names:
            self._settled(term, name, result.outcome)
