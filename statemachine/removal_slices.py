"""Begins removals of many rows (removals.py) and carries out their slices, by calling the families whose rows are
removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from statemachine.cluster_wide.truth_journal import TruthJournal, TruthKind
from statemachine.commands import U64, Command, CommandResult, done
from statemachine.consume_queue import ConsumeQueues
from statemachine.consuming.consumer_offsets import ConsumerOffsets
from statemachine.consuming.groups import Groups
from statemachine.consuming.offset_resets import OffsetResets
from statemachine.consuming.queue_locks import QueueLocks
from statemachine.dedup import Dedup
from statemachine.delivery.staged_writes import StagedWrites
from statemachine.family import Families, Family, applies, overridden
from statemachine.removals import SESSIONS, Done, Losers, Removal, RemovalKind, Removals
from statemachine.rows.kv import CQ, DEDUP, LOCKS, OFFSETS, RESETS
from statemachine.topics.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from statemachine.consuming.queue_rows import QueueRows
    from statemachine.rows.write_batch import Stage
    from statemachine.topics.topics import TopicConfig


class DeleteTopic(Command, tag="delete_topic", frozen=True):
    """Deletes a topic with all its messages. Slices remove its rows."""

    OF_TRUTH: ClassVar[bool] = True
    name: str


class DeleteGroup(Command, tag="delete_group", frozen=True):
    """Deletes a consumer group with its locks and resets, and with its committed offsets if `clean_offsets` is set.
    Slices remove its rows."""

    OF_TRUTH: ClassVar[bool] = True
    name: str
    clean_offsets: bool


class Expire(Command, tag="expire", frozen=True):
    """Forgets the producer sessions, unique rows and queue locks that were not used since log time `before_ms`. Slices
    remove them."""

    before_ms: U64


class RemovalSlices(Family):
    """Begins removals of many rows, and carries out their slices. It has no rows of its own."""

    changed = False

    def __init__(self, families: Families) -> None:
        self._topics, self._groups = families[Topics], families[Groups]
        self._removals, self._journal = families[Removals], families[TruthJournal]
        self._writes = families[StagedWrites]
        self._queues, self._dedup, self._locks = families[ConsumeQueues], families[Dedup], families[QueueLocks]
        self._topic_deleted: list[Callable[[Stage, int, int], None]] = []
        """The hooks of all families for the end of a topic (`Family.topic_deleted`)."""
        self._rows: Mapping[str, QueueRows[Any]] = {
            OFFSETS: families[ConsumerOffsets],
            LOCKS: self._locks,
            RESETS: families[OffsetResets],
        }

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this part of a state. `families` has the families whose rows it removes."""
        return cls(families)

    def joined(self, families: tuple[Family, ...]) -> None:
        """Collects the methods `topic_deleted` of all families that override it."""
        self._topic_deleted = overridden(families, Family.topic_deleted)

    @applies(DeleteTopic)
    def delete_topic(self, stage: Stage, command: DeleteTopic) -> CommandResult:
        """Deletes a topic: begins the removal of its rows, and calls `topic_deleted` of each family, which hides or
        removes the family's rows. The result's value is its last TopicConfig. The result is `not_found` if there is no
        such topic."""
        result = self._topics.delete(stage, command.name)
        if result.ok:
            topic: TopicConfig = result.value
            self._removals.begin(stage, Removal(RemovalKind.TOPIC, topic.id))
            for topic_deleted in self._topic_deleted:
                topic_deleted(stage, topic.id, topic.queues)
        return result

    @applies(DeleteGroup)
    def delete_group(self, stage: Stage, command: DeleteGroup) -> CommandResult:
        """Deletes a group: hides its locks and resets, with `clean_offsets` its offsets too, and begins their removal.
        The result's value is its last GroupConfig. The result is `not_found` if there is no such group."""
        result = self._groups.delete(stage, command.name)
        if result.ok:
            self._remove_group(stage, command.name, offsets=command.clean_offsets)
            if command.clean_offsets:
                self._journal.end(stage, TruthKind.OFFSETS, command.name)
        return result

    def clean_offsets(self, stage: Stage, group: str) -> None:
        """Deletes the group if it still exists, and removes its locks, resets and committed offsets in any case. Called
        in groups of brokers other than the first, when they copy the effect of the first group's `delete_group`."""
        self._groups.delete(stage, group)
        self._remove_group(stage, group, offsets=True)

    def _remove_group(self, stage: Stage, group: str, *, offsets: bool) -> None:
        removal = Removal(RemovalKind.GROUP, group, offsets)
        self._removals.begin(stage, removal)
        for family in removal.steps:
            self._rows[family].forget_group(group)

    @applies(Expire)
    def expire(self, stage: Stage, command: Expire) -> CommandResult:
        """Begins to remove the producer sessions, unique rows and queue locks that were not used since log time
        `before_ms`. Does nothing while another such removal is pending; the leader asks again later."""
        if not self._removals.expires:
            self._removals.begin(stage, Removal(RemovalKind.EXPIRE, command.before_ms))
        return done()

    def go_on(self, stage: Stage, rows_max: int) -> None:
        """Carries out the next slice of the first removal; if that removal ends, the slice continues with the following
        ones. Each step counts as at least one row. The batch must contain nothing else, because the slice reads the
        store, without the batch's own changes."""
        removals = self._removals
        while rows_max > 0 and removals.first is not None:
            reached = self._step(stage, removals.first, rows_max)
            rows_max -= max(1, reached.rows)
            removals.go_on(stage, reached.at)

    def _step(self, stage: Stage, removal: Removal, rows_max: int) -> Done:
        place, kind, what = self._removals.place, removal.kind, removal.what
        step, at = removal.steps[place.step], place.at
        if kind is RemovalKind.TOPIC:
            rows = self._queues if step == CQ else self._dedup if step == DEDUP else self._rows[step]
            return rows.remove_topic(stage, what, at, rows_max)
        if kind is RemovalKind.GROUP:
            last = self._removals.is_last_of_group(what)
            return self._rows[step].remove_group(stage, what, at, rows_max, last=last)
        if kind is RemovalKind.WRITE:
            return self._writes.discard_losers(stage, Losers(*what), at, rows_max)
        if step == LOCKS:
            return self._locks.expire_slice(stage, what, at, rows_max)
        expire = self._dedup.expire_sessions if step == SESSIONS else self._dedup.expire_unique
        return expire(stage, what, at, rows_max)
