"""Resets of consumer offsets that the consumers have not learned of yet (RocketMQ: assignResetOffset, 222).

A reset moves the committed offset of a queue. It stays as a row until the queue's consumer continues from that offset.
Until then the group's commits for the queue are ignored: they would undo the reset with an older offset.

Invariant: while a queue has such a row, the group's committed offset of the queue is the row's offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, Self

from msgspec import Meta

from statemachine.commands import U32, U63, Command, CommandResult, done
from statemachine.consuming.groups import GroupName
from statemachine.consuming.queue_rows import QueueRows
from statemachine.family import Families, Reads, applies, family_of
from statemachine.removals import Removals
from statemachine.rows import keys
from statemachine.rows.keys import Queue
from statemachine.rows.kv import KV, RESETS
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import Topics

QUEUES_MAX = 4096
"""The most queues that one command may reset."""
ResetRows = Annotated[Sequence[tuple[U32, U32, U63]], Meta(max_length=QUEUES_MAX)]
"""Queues, each with a number that is an offset or the number of a reset: [(topic_id, queue_id, number), ...]."""


class EndResets(Command, tag="end_resets", frozen=True):
    """Ends the resets with these numbers, because the queues' consumers continue from the reset offsets."""

    group: GroupName
    rows: ResetRows


class OffsetReset(NamedTuple):
    """One reset of a queue: the offset at which its consumer has to continue, and the reset's number."""

    offset: int
    number: int
    """The number of the reset, above that of every earlier reset of the queue in the group, so that ending one reset
    does not end the next. It is the log time of the proposal in milliseconds, or one more than the number before if
    that is larger."""


class OffsetResets(QueueRows[OffsetReset]):
    """The pending offset resets of all groups, by group and queue."""

    ROWS = ((RESETS, b""),)

    def __init__(self, kv: KV, removals: Removals, topics: Topics) -> None:
        self._topics = topics
        self._new: set[Queue] = set()
        self.grown: set[Queue] = set()
        """The queues that the last applied batch has reset."""
        super().__init__(kv, RESETS, lambda row: OffsetReset(*keys.RESET.unpack(row)), removals)

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[Removals], families[Topics])

    def covers(self, group: str, queue: Queue) -> bool:
        """Returns True if the group's queue has a pending reset, so that a commit for it must be left out (apply thread
        only)."""
        return queue[1] in self._current(group, queue[0])

    def reset(self, stage: Stage, group: str, now_ms: int, rows: ResetRows) -> dict[Queue, int]:
        """Adds resets for those queues in `rows` that exist, and returns these queues with their offsets. If a queue is
        named twice, the last offset counts."""
        has = self._topics.has_queue
        offsets = {(topic_id, queue_id): offset for topic_id, queue_id, offset in rows if has(topic_id, queue_id)}
        for queue, offset in offsets.items():
            before = self._value(group, queue)
            number = now_ms if before is None else max(now_ms, before.number + 1)
            self._put(stage, group, queue, OffsetReset(offset, number), keys.RESET.pack(offset, number))
        self._new |= offsets.keys()
        return offsets

    @applies(EndResets)
    def end(self, stage: Stage, command: EndResets) -> CommandResult:
        """Ends the resets with these numbers, because the queues' consumers have learned of them. A later reset of a
        queue stays. The result's value is the number of ended resets."""
        group, told = command.group, set()
        for topic_id, queue_id, number in command.rows:
            reset = self._value(group, (topic_id, queue_id))
            if reset is not None and reset.number == number:
                told.add((topic_id, queue_id))
        self._drop(stage, group, told)
        return done(len(told))

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        super().publish()
        self.grown, self._new = self._new, set()
        self.changed = self.changed or bool(self.grown)


class ResetReads(Reads):
    """Read access to what a state holds about offset resets."""

    _resets = family_of(OffsetResets)

    def resets_of_group(self, group: str) -> Mapping[Queue, OffsetReset]:
        """Returns queue -> reset for those of the group's offset resets that its consumers have not learned of."""
        return self._resets.of_group(group)

    @property
    def has_resets(self) -> bool:
        """True if any group has an offset reset that its consumers have not learned of."""
        return not self._resets.is_empty
