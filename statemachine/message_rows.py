"""Applies the rows of MESSAGES entries. Adds each run of messages to its queue, or to the family of waiting messages,
and records the producers' sessions and the keys by which messages are found."""

from __future__ import annotations

from typing import Self

from raftlog.errors import InvariantViolationError
from raftlog.types import Entry
from statemachine.cluster_wide.broker_groups import BrokerGroups
from statemachine.cluster_wide.closed_log import ClosedLog
from statemachine.consume_queue import ConsumeQueues
from statemachine.dedup import Dedup
from statemachine.delivery.half_messages import HalfMessages
from statemachine.delivery.timers import Timers
from statemachine.family import Families, Family
from statemachine.message_index import MessageIndex
from statemachine.payload import Payload, RowKind, Run
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import Topics

_IN_NO_QUEUE = int(RowKind.SCHEDULED)
"""The lowest RowKind of messages that are not in a queue yet; all higher kinds are such messages too."""
_CARRIED = int(RowKind.CARRIED_TIMERS)
"""The lowest RowKind of messages that are stored again at a later position. Their rows replace the earlier rows even if
the topic was deleted meanwhile; a later command removes the row in that case."""


class MessageRows(Family):
    """Applies the rows of MESSAGES entries. It has no rows of its own."""

    changed = False

    def __init__(self, families: Families) -> None:
        self._topics, self._queues = families[Topics], families[ConsumeQueues]
        self._timers, self._halves = families[Timers], families[HalfMessages]
        self._dedup, self._index = families[Dedup], families[MessageIndex]
        self._groups, self._closed_log = families[BrokerGroups], families[ClosedLog]

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this part of a state. `families` has the families to which it adds rows."""
        return cls(families)

    def add(self, stage: Stage, entry: Entry, decoded: Payload) -> None:
        """Adds the rows of an entry. `decoded`: the entry's payload. The leader decided the rows, so a row that
        contradicts the state raises InvariantViolationError."""
        topics, append = self._topics, self._queues.append
        run = None
        for run in decoded.decoded_runs():
            topic_id, queue_id, base, count, kind, items = run
            known = topics.exists(topic_id)
            if known and kind < _IN_NO_QUEUE:
                append(stage, topic_id, queue_id, base, count, items)
            elif known or kind >= _CARRIED:
                self._keep(stage, run, entry.timestamp_ms)
            else:
                raise InvariantViolationError(f"{count} rows for topic id {topic_id}, which does not exist")
        if run is not None and (self._groups.own_is_inactive or self._closed_log.is_shut):
            self._closed_log.stored(stage, entry.index)
        if decoded.sessions:
            self._dedup.add_sessions(stage, decoded.sessions, entry.index, entry.timestamp_ms)
        if decoded.unique:
            for row in decoded.iter_unique():
                self._dedup.add_unique(stage, row, entry.timestamp_ms)
        if decoded.keys:
            self._index.add(stage, entry.position, entry.end_position, entry.timestamp_ms, decoded.keys)

    def _keep(self, stage: Stage, run: Run, now_ms: int) -> None:
        """Stores a run of messages that are in no queue yet: scheduled or half messages. Raises
        InvariantViolationError for a kind that this version does not know."""
        if run.kind == RowKind.SCHEDULED:
            self._timers.add(stage, run.topic_id, run.queue_id, run.base_offset, run.items, now_ms)
        elif run.kind == RowKind.HALF:
            self._halves.add(stage, run.topic_id, run.queue_id, run.base_offset, run.items)
        elif run.kind == RowKind.CARRIED_TIMERS:
            self._timers.carry(stage, run.base_offset, run.items)
        elif run.kind == RowKind.CARRIED_HALF:
            self._halves.carry(stage, run.base_offset, run.items)
        else:
            raise InvariantViolationError(f"rows of kind {run.kind}: were they written by a newer RaftMQ?")
