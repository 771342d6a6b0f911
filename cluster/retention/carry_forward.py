"""Carries forward the waiting messages that pin the log: they are appended once more, so that retention can trim the
log.

Retention computes the position up to which it would trim if no message waited for its time or its transaction. The
waiting rows (groups of such messages) that lie below that position are read on retention's lane, slice by slice, and
queued like the sends of clients; one slice at a time is in flight. The entry that holds the messages of a row also
moves the row (docs/adr/0054). The leader therefore remembers nothing: a row that was delivered in the meantime is not
moved, and the next leader finds the rows that a deposed leader did not carry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cluster.replication.internal_sends import NoClient, submit_copies
from cluster.replication.message_batch import BatchMessage
from cluster.replication.outcome import Outcome
from cluster.retention.pinned_messages import Gather, PinnedRow, Slice
from cluster.runtime.awaited import Question, Steps, answer_to, carry_out
from statemachine.commands import Command

if TYPE_CHECKING:
    from cluster.replication.proposals import Proposals
    from cluster.retention.metrics import RetentionMetrics
    from raftlog.core.raw_node import RawNode
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)


class _Appends:
    """Counts the appends of one slice that have no outcome yet."""

    def __init__(self, settled: Callable[[bool], None]) -> None:
        """`settled` is called once, when every append has an outcome: with True if all of them are in the log."""
        self._settled = settled
        self._left = 1  # `append` ends this one when all appends are queued, so that `settled` is not called earlier.
        self._failed = False

    def begin(self) -> None:
        """Adds one append, whose outcome is recorded by `end`."""
        self._left += 1

    def end(self, outcome: Outcome) -> None:
        """Records the outcome of one append. `Carrier.append` calls it once more, with OK, when all appends are
        queued."""
        self._left -= 1
        self._failed = self._failed or outcome is not Outcome.OK
        if not self._left:
            self._settled(not self._failed)


class Carrier:
    """Appends waiting messages again when retention asks for it, on the leader only. Event loop only."""

    def __init__(
        self,
        raw: RawNode,
        state: BrokerState,
        proposals: Proposals,
        *,
        report_damage: Callable[[int, int], None],
        metrics: RetentionMetrics,
        gather: Callable[[Gather], Question[Slice]],
        ended: Callable[[], None],
    ) -> None:
        """`gather` asks the lane for a slice. `ended` is called after a round that moved or dropped something.
        `report_damage` receives the position and the size of a message that cannot be read intact."""
        self._raw = raw
        self._state = state
        self._proposals = proposals
        self._report_damage = report_damage
        self._metrics = metrics
        self._gather, self._ended = gather, ended
        self._client = NoClient(proposals.gate)
        self._round: object = None
        """An object that stands for the round in progress; None if there is none. A round that was in progress when
        this node was deposed stops when it finds another object here."""
        self._moved = 0
        """The number of messages that the present round has carried."""

    @property
    def busy(self) -> bool:
        """True while a round is in progress."""
        return self._round is not None and self._proposals.open

    def carry(self, end: int) -> None:
        """Carries the waiting messages below the position `end`, unless a round is in progress."""
        if self.busy:
            return
        self._round = None
        if self._proposals.open:
            carry_out(self._carry(end))

    def _carry(self, end: int) -> Steps[None]:
        """Carries the messages below `end` slice by slice, and stops at a slice that could not be appended."""
        this = self._round = object()
        self._moved, dropped, position, appended = 0, False, 0, True
        while position < end and appended:
            # While this node refuses sends (a full disk), due messages are not delivered, so they are carried as well.
            due_after_ms = 0 if self._proposals.refusing else self._raw.log_time_ms()
            slice_ = yield from answer_to(self._gather(Gather(position, end, due_after_ms)))
            if this is not self._round:
                return
            if not self._proposals.open:  # the next leader finds the rows that are left
                self._round = None
                return
            position = slice_.next_position
            drops = self._rows_to_drop(slice_)
            dropped = dropped or bool(drops)
            appended = yield from answer_to(partial(self.append, slice_, drops))
            if this is not self._round:
                return
        self._round = None
        if self._moved:
            logger.info("%d messages that wait were carried forward from below %d", self._moved, end)
        if self._moved or dropped:
            self._ended()

    def _rows_to_drop(self, slice_: Slice) -> list[Command]:
        """Reports the damaged messages of the slice, and returns the commands that drop its rows of deleted topics."""
        for item in slice_.damaged:
            self._report_damage(item.position, item.size)
        drops: list[Command] = [row.drop for row in slice_.rows if row.topic_id not in self._state.topics_by_id]
        if drops:
            logger.warning("%d rows of messages that wait are dropped: their topic was deleted", len(drops))
        return drops

    def append(self, slice_: Slice, drops: list[Command], settled: Callable[[bool], None]) -> None:
        """Queues the rows of a slice and the commands `drops`. `settled` is called once, when all have an outcome: with
        True if all of them are in the log."""
        appends = _Appends(settled)
        for row in slice_.rows:
            topic = self._state.topics_by_id.get(row.topic_id)
            if topic is not None:
                self._submit(appends, row, topic.name)
        if drops:
            appends.begin()
            self._proposals.submit_commands(drops, lambda result: appends.end(result.outcome))
        appends.end(Outcome.OK)

    def _submit(self, appends: _Appends, row: PinnedRow, topic: str) -> None:
        appends.begin()
        slot = self._proposals.topics.slot(topic)
        if slot is None or slot.topic_id != row.topic_id:
            appends.end(Outcome.FAIL)  # a change of the topic is in progress
            return
        messages = [
            BatchMessage(0, message, b"", tag_hash, 0)
            for message, tag_hash in zip(row.messages, row.tag_hashes, strict=True)
        ]
        done = partial(self._settled, appends, len(messages), sum(map(len, row.messages)))
        submit_copies(self._proposals, self._client, messages, slot, row.queue_id, row.kind, None, done, row.name)

    def _settled(self, appends: _Appends, count: int, size: int, outcome: Outcome) -> None:
        if outcome is Outcome.OK:
            self._moved += count
            self._metrics.carried(count, size)
        appends.end(outcome)
