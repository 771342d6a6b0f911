"""Carries forward the waiting messages that pin the log: they are appended once more, so that retention can go on.

Retention computes the position up to which it would trim if no message waited for its time or its transaction. The
waiting rows (groups of such messages) that lie below that position are read on retention's lane, slice by slice, and
queued like the sends of clients; one slice at a time is on its way into the log. The entry that holds the messages of a
row also moves the row (docs/adr/0054). The leader therefore remembers nothing: a row that was delivered meanwhile is
not moved, and the next leader finds the rows that a deposed leader did not carry.
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
from statemachine.commands import Command

if TYPE_CHECKING:
    from cluster.replication.proposals import Proposals
    from cluster.retention.metrics import RetentionMetrics
    from raftlog.core.raw_node import RawNode
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)


class _Round:
    """One round of carrying. A look of retention begins it, and it goes on slice by slice up to the position `end`."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.left = 0
        """Rows of the present slice whose appends have not been answered."""
        self.next_position = 0
        self.failed = False
        self.carried = 0
        """Messages that were carried so far."""
        self.dropped = False


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
        gather: Callable[[Gather], None],
        ended: Callable[[], None],
    ) -> None:
        """`gather` has the lane read a slice; the lane's answer comes to `on_slice`. `ended` is called when a round has
        moved something. `report_damage` receives the position and the size of a message that cannot be read intact."""
        self._raw = raw
        self._state = state
        self._proposals = proposals
        self._report_damage = report_damage
        self._metrics = metrics
        self._gather, self._ended = gather, ended
        self._client = NoClient(proposals.gate)
        self._round: _Round | None = None

    @property
    def busy(self) -> bool:
        """True while a round is in progress."""
        return self._round is not None and self._proposals.open

    def carry(self, end: int) -> None:
        """Carries the waiting messages below the position `end`, unless a round is under way."""
        if self.busy:
            return
        self._round = None
        if not self._proposals.open:
            return
        self._round = _Round(end)
        self._next(self._round)

    def _next(self, round_: _Round) -> None:
        # On a disk that is full nothing is delivered, so what is due is carried as well.
        due_after_ms = 0 if self._proposals.refusing else self._raw.log_time_ms()
        self._gather(Gather(round_.next_position, round_.end, due_after_ms))

    def on_slice(self, slice_: Slice) -> None:
        """Queues the rows of a slice that the lane has read."""
        round_ = self._round
        if round_ is None or not self._proposals.open:
            self._round = None
            return
        for item in slice_.damaged:
            self._report_damage(item.position, item.size)
        round_.next_position = slice_.next_position
        drops: list[Command] = []
        round_.left = 1  # until all of them are queued
        for row in slice_.rows:
            topic = self._state.topics_by_id.get(row.topic_id)
            if topic is None:
                drops.append(row.drop)
            else:
                self._submit(round_, row, topic.name)
        if drops:
            logger.warning("%d rows of messages that wait are dropped: their topic was deleted", len(drops))
            round_.left += 1
            round_.dropped = True
            self._proposals.submit_commands(drops, lambda result: self._settled(round_, 0, 0, result.outcome))
        self._settled(round_, 0, 0, Outcome.OK)

    def _submit(self, round_: _Round, row: PinnedRow, topic: str) -> None:
        slot = self._proposals.slot(topic)
        if slot is None or slot.topic_id != row.topic_id:
            round_.failed = True  # a change of the topic is under way
            return
        round_.left += 1
        messages = [
            BatchMessage(0, message, b"", tag_hash, 0)
            for message, tag_hash in zip(row.messages, row.tag_hashes, strict=True)
        ]
        done = partial(self._settled, round_, len(messages), sum(map(len, row.messages)))
        submit_copies(self._proposals, self._client, messages, slot, row.queue_id, row.kind, None, done, row.name)

    def _settled(self, round_: _Round, count: int, size: int, outcome: Outcome) -> None:
        round_.left -= 1
        if outcome is Outcome.OK:
            round_.carried += count
            if count:
                self._metrics.carried(count, size)
        else:
            round_.failed = True
        if round_.left or round_ is not self._round:
            return
        if round_.next_position < round_.end and not round_.failed:
            self._next(round_)
            return
        self._round = None
        if round_.carried:
            logger.info("%d messages that wait were carried forward from below %d", round_.carried, round_.end)
        if round_.carried or round_.dropped:
            self._ended()
