"""Consumer offsets: for each consumer group and queue, the queue offset that the group consumes next. Each offset is a
row; all of them are also in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from statemachine.commands import CommandResult, InvalidCommandError, checked_int, done
from statemachine.consuming.groups import check_group_name
from statemachine.consuming.offset_resets import OFFSET_MAX, OffsetResets
from statemachine.consuming.queue_rows import Queue, QueueRows
from statemachine.removals import Removals
from statemachine.rows import keys
from statemachine.rows.kv import KV, OFFSETS
from statemachine.rows.write_batch import Stage
from statemachine.topics import Topics


class _Commit(NamedTuple):
    group: str
    topic_id: int
    queue_id: int
    offset: int


class ConsumerOffsets(QueueRows[int]):
    """The committed offsets of all consumer groups, by group and queue."""

    def __init__(self, kv: KV, removals: Removals) -> None:
        super().__init__(kv, OFFSETS, lambda row: int(keys.U64.unpack(row)[0]), removals)

    def get(self, group: str, topic_id: int, queue_id: int) -> int | None:
        """Returns the group's committed offset of the queue; None if there is none."""
        topics = self._published.get(group)
        offsets = None if topics is None else topics.get(topic_id)
        return None if offsets is None or topic_id in self._removals.topics else offsets.get(queue_id)

    def sorted_of_group(self, group: str) -> list[tuple[int, int, int]]:
        """Returns (topic_id, queue_id, offset) of every queue for which the group has committed an offset,
        ascending."""
        return sorted([(*queue, offset) for queue, offset in self.of_group(group).items()])

    def commit(self, stage: Stage, rows: Any, topics: Topics, resets: OffsetResets) -> CommandResult:
        """Stores the committed offsets, also lower ones than before. The result's value is the number of stored
        offsets. Offsets of deleted topics are left out (result not_found), because nothing would ever remove them.
        Offsets of queues that were reset are left out until their consumers know of the reset (result reset)."""
        if type(rows) is not list:
            raise InvalidCommandError(f"offsets must be a list, not {rows!r}")
        commits = [_check_row(row) for row in rows]
        known = [commit for commit in commits if topics.exists(commit.topic_id)]
        kept = [commit for commit in known if not resets.covers(commit.group, (commit.topic_id, commit.queue_id))]
        for group, topic_id, queue_id, offset in kept:
            self.put(stage, group, (topic_id, queue_id), offset)
        if len(known) < len(commits):
            return CommandResult(False, "not_found", len(kept))
        return done(len(kept)) if len(kept) == len(known) else CommandResult(True, "reset", len(kept))

    def put(self, stage: Stage, group: str, queue: Queue, offset: int) -> None:
        """Stores a group's offset of one queue, which must exist."""
        self._put(stage, group, queue, offset, keys.U64.pack(offset))


def _check_row(row: Any) -> _Commit:
    if type(row) is not list or len(row) != 4:
        raise InvalidCommandError(f"an offset is [group, topic_id, queue_id, offset], not {row!r}")
    group, topic_id, queue_id, offset = row
    return _Commit(
        check_group_name(group),
        checked_int(topic_id, "topic_id", 0, keys.U32_MAX),
        checked_int(queue_id, "queue_id", 0, keys.U32_MAX),
        checked_int(offset, "offset", 0, OFFSET_MAX),
    )
