"""Consumer offsets: for each consumer group and queue, the queue offset that the group consumes next. Each offset is a
row; all of them are also in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from statemachine.commands import U32, U63, U64, Command, CommandResult, done, not_found
from statemachine.consuming.groups import GroupName, Groups
from statemachine.consuming.offset_resets import OffsetResets, ResetRows
from statemachine.consuming.queue_rows import QueueRows
from statemachine.family import Families, Reads, applies, family_of
from statemachine.removals import Removals
from statemachine.rows import keys
from statemachine.rows.keys import Queue
from statemachine.rows.kv import KV, OFFSETS
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import Topics

Commit = tuple[GroupName, U32, U32, U63]
"""A committed offset: (group, topic_id, queue_id, offset)."""


class CommitOffsets(Command, tag="commit_offsets", frozen=True):
    """Sets committed offsets of consumer groups. If a queue is named twice, the last value counts. An offset may move
    backwards, as in RocketMQ."""

    rows: Sequence[Commit]


class ResetOffsets(Command, tag="reset_offsets", frozen=True):
    """Moves committed offsets of a group. Later commits of the group for these queues are ignored until the queues'
    consumers have learned of the reset."""

    group: str
    now_ms: U64
    """Log time of the proposal."""
    rows: ResetRows


class ConsumerOffsets(QueueRows[int]):
    """The committed offsets of all consumer groups, by group and queue."""

    ROWS = ((OFFSETS, b""),)

    def __init__(self, kv: KV, removals: Removals, topics: Topics, groups: Groups, resets: OffsetResets) -> None:
        self._topics, self._groups, self._resets = topics, groups, resets
        super().__init__(kv, OFFSETS, lambda row: int(keys.U64.unpack(row)[0]), removals)

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[Removals], families[Topics], families[Groups], families[OffsetResets])

    def get(self, group: str, topic_id: int, queue_id: int) -> int | None:
        """Returns the group's committed offset of the queue; None if there is none."""
        topics = self._published.get(group)
        offsets = None if topics is None else topics.get(topic_id)
        return None if offsets is None or topic_id in self._removals.topics else offsets.get(queue_id)

    def sorted_of_group(self, group: str) -> list[tuple[int, int, int]]:
        """Returns (topic_id, queue_id, offset) of every queue for which the group has committed an offset,
        ascending."""
        return sorted([(*queue, offset) for queue, offset in self.of_group(group).items()])

    @applies(CommitOffsets)
    def commit(self, stage: Stage, command: CommitOffsets) -> CommandResult:
        """Stores the committed offsets, also lower ones than before. The result's value is the number of stored
        offsets. Offsets of deleted topics are left out (result not_found), because nothing would ever remove them.
        Offsets of queues that were reset are left out until their consumers know of the reset (result reset)."""
        exists, covers = self._topics.exists, self._resets.covers
        known = [commit for commit in command.rows if exists(commit[1])]
        kept = [commit for commit in known if not covers(commit[0], (commit[1], commit[2]))]
        for group, topic_id, queue_id, offset in kept:
            self.put(stage, group, (topic_id, queue_id), offset)
        if len(known) < len(command.rows):
            return CommandResult(False, "not_found", len(kept))
        return done(len(kept)) if len(kept) == len(known) else CommandResult(True, "reset", len(kept))

    @applies(ResetOffsets)
    def reset(self, stage: Stage, command: ResetOffsets) -> CommandResult:
        """Moves the offsets of those queues that exist. The result's value is their number. The result is `not_found`
        if there is no such group."""
        group = command.group
        if not self._groups.exists(group):
            return not_found(f"no group {group!r}")
        offsets = self._resets.reset(stage, group, command.now_ms, command.rows)
        for queue, offset in offsets.items():
            self.put(stage, group, queue, offset)
        return done(len(offsets))

    def put(self, stage: Stage, group: str, queue: Queue, offset: int) -> None:
        """Stores a group's offset of one queue, which must exist."""
        self._put(stage, group, queue, offset, keys.U64.pack(offset))


class OffsetReads(Reads):
    """Read access to what a state holds about committed offsets."""

    _offsets = family_of(ConsumerOffsets)

    def offset(self, group: str, topic_id: int, queue_id: int) -> int | None:
        """Returns the group's committed offset of the queue, the next to consume; None if the group never committed
        one."""
        return self._offsets.get(group, topic_id, queue_id)

    def offsets_of_group(self, group: str) -> list[tuple[int, int, int]]:
        """Returns (topic_id, queue_id, offset) of every queue for which the group has committed an offset,
        ascending."""
        return self._offsets.sorted_of_group(group)

    def offsets_by_topic(self, group: str) -> dict[int, Mapping[int, int]]:
        """Returns topic id -> queue id -> offset of every queue for which the group has committed an offset, in no
        order. Takes one step per topic."""
        return self._offsets.by_topic(group)
