"""Carries forward what pins the log: messages that wait are appended once more, so that retention can go on.

Retention says up to where it would trim if nothing waited. The rows that lie below that are read on its lane, slice by
slice, and queued like the sends of clients; one slice is on its way into the log at a time. The entry that holds the
messages of a row is what moves it (docs/adr/0054). So nothing is remembered: a row that was delivered meanwhile
is not moved, and what a lost leader left undone is found where it lies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cluster.replication.message_batch import BatchMessage
from cluster.replication.outcome import Outcome
from cluster.replication.own_sends import NoClient, submit_copies
from cluster.retention.pinned import Gather, PinnedRow, Slice
from statemachine.commands import Command

if TYPE_CHECKING:
    from cluster.replication.proposals import Proposals
    from cluster.retention.metrics import RetentionMetrics
    from raftlog.core.raw_node import RawNode
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)


class _Round:
    """One round of carrying: a look of retention begins it, and it goes on slice by slice up to `end`."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.left = 0
        """Rows of the slice that are on their way."""
        self.next_position = 0
        self.failed = False
        self.carried = 0
        """Messages."""
        self.dropped = False


class Carrier:
    """Does something only while retention asks it to, on the node that leads. Event loop only."""

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
        """`gather` has the lane read a slice, the answer comes to `on_slice`; `ended` is called when a round has moved
        something. `report_damage` is told of a message that cannot be read intact: position and size."""
        self._raw = raw
        self._state = state
        self._proposals = proposals
        self._report_damage = report_damage
        self._metrics = metrics
        self._gather, self._ended = gather, ended
        self._client = NoClient(proposals.in_flight.clients)
        self._round: _Round | None = None

    @property
    def busy(self) -> bool:
        """True while a round is in progress."""
        return self._round is not None and self._proposals.open

    def carry(self, end: int) -> None:
        """Carries what lies below `end`, unless a round is under way."""
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
        """The lane has read one."""
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
