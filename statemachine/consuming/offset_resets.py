"""Resets of consumer offsets of which the consumers have not been told yet (RocketMQ: assignResetOffset, 222).

A reset moves the committed offset of a queue. It stays as a row until the queue's consumer continues from that offset.
Until then the group's commits for the queue are left out: they would undo the reset with an older offset.

Invariant: while a queue has such a row, the group's committed offset of the queue is the row's offset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from statemachine.commands import CommandResult, InvalidCommandError, checked_int, done
from statemachine.consuming.groups import check_group_name
from statemachine.consuming.queue_rows import Queue, QueueRows
from statemachine.removals import Removals
from statemachine.rows import keys
from statemachine.rows.kv import KV, RESETS
from statemachine.rows.write_batch import Stage
from statemachine.topics import Topics

OFFSET_MAX = 2**63 - 1
QUEUES_MAX = 4096
"""The most queues that one command may reset."""


class OffsetReset(NamedTuple):
    """One reset of a queue: the offset at which its consumer has to continue, and the reset's number."""

    offset: int
    number: int
    """The number of the reset, above that of every earlier reset of the queue in the group, so that ending one reset
    does not end the next. It is the log time of the proposal in milliseconds, or one more than the number before if
    that is larger."""


class OffsetResets(QueueRows[OffsetReset]):
    """The pending offset resets of all groups, by group and queue."""

    def __init__(self, kv: KV, removals: Removals) -> None:
        self._new: set[Queue] = set()
        super().__init__(kv, RESETS, lambda row: OffsetReset(*keys.RESET.unpack(row)), removals)

    def covers(self, group: str, queue: Queue) -> bool:
        """Returns True if the group's queue has a pending reset, so that a commit for it must be left out (apply thread
        only)."""
        return queue[1] in self._current(group, queue[0])

    def reset(self, stage: Stage, group: str, now_ms: Any, rows: Any, topics: Topics) -> list[tuple[Queue, int]]:
        """Adds resets for those queues in `rows` that exist, and returns these queues with their offsets. If a queue is
        named twice, the last offset counts. Raises InvalidCommandError."""
        now_ms = checked_int(now_ms, "now_ms", 0, keys.U64_MAX)
        offsets = {queue: offset for queue, offset in _check_rows(rows, "offset") if topics.has_queue(*queue)}
        for queue, offset in offsets.items():
            before = self._value(group, queue)
            number = now_ms if before is None else max(now_ms, before.number + 1)
            self._put(stage, group, queue, OffsetReset(offset, number), keys.RESET.pack(offset, number))
        self._new |= offsets.keys()
        return list(offsets.items())

    def end(self, stage: Stage, group: Any, rows: Any) -> CommandResult:
        """Ends the resets with these numbers, once the queues' consumers have been told of them. A later reset of a
        queue stays. The result's value is the number of ended resets."""
        group = check_group_name(group)
        told = set()
        for queue, number in _check_rows(rows, "number"):
            reset = self._value(group, queue)
            if reset is not None and reset.number == number:
                told.add(queue)
        self._drop(stage, group, told)
        return done(len(told))

    def publish_new(self) -> set[Queue]:
        """Shows the changes of the applied batch to readers as `publish` does, and returns the queues that the batch
        has reset."""
        self.publish()
        new, self._new = self._new, set()
        return new


def _check_rows(rows: Any, what: str) -> list[tuple[Queue, int]]:
    """Checks the rows of a command, [[topic_id, queue_id, number], ...]; returns the queues with their numbers. Raises
    InvalidCommandError."""
    if type(rows) is not list or len(rows) > QUEUES_MAX:
        raise InvalidCommandError(f"rows must be a list of at most {QUEUES_MAX}")
    found = []
    for row in rows:
        if type(row) is not list or len(row) != 3:
            raise InvalidCommandError(f"a row is [topic_id, queue_id, {what}], not {row!r}")
        queue = checked_int(row[0], "topic_id", 0, keys.U32_MAX), checked_int(row[1], "queue_id", 0, keys.U32_MAX)
        found.append((queue, checked_int(row[2], what, 0, OFFSET_MAX)))
    return found
