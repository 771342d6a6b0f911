"""Queue locks: they let one client of a group consume a queue in order (RocketMQ: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ).

A lock is a row of the log's state, not a value in one node's memory, so a new leader knows every holder. Times are log
time, stamped when a command is proposed: apply compares numbers and reads no clock.

Invariant: between the moment a client is granted a lock and the `expires_ms` it was granted until, no other client is
granted it, unless the holder gave it up, or its group or topic was deleted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from statemachine.commands import CommandResult, InvalidCommandError, checked_int, checked_str, done
from statemachine.consuming.groups import check_group_name
from statemachine.consuming.queue_rows import Queue, QueueRows
from statemachine.removals import Done, Removals
from statemachine.rows import keys
from statemachine.rows.kv import KV, LOCKS
from statemachine.rows.stage import Stage
from statemachine.topics import Topics

CLIENT_LENGTH_MAX = 512
QUEUES_MAX = 4096
"""The most queues in one command."""


class QueueLock(NamedTuple):
    """The client that holds a queue, and the log time in milliseconds at which the lock expires."""

    client_id: str
    expires_ms: int

    def is_free_for(self, client_id: str, now_ms: int) -> bool:
        """Returns True if the client may take the lock: it holds it, or the lock has expired."""
        return self.client_id == client_id or self.expires_ms <= now_ms


class QueueLocks(QueueRows[QueueLock]):
    """Locks by group and queue."""

    def __init__(self, kv: KV, removals: Removals) -> None:
        super().__init__(kv, LOCKS, _decode, removals)

    def lock(
        self,
        stage: Stage,
        group: Any,
        client_id: Any,
        now_ms: Any,
        expires_ms: Any,
        queues: Any,
        topics: Topics,
    ) -> CommandResult:
        """Grants the queues that no other client holds. Value: the queues that the client now holds, [[topic_id,
        queue_id], ...]. `expire_slice` removes expired locks that nobody takes."""
        group, client_id = check_group_name(group), _check_client(client_id)
        now_ms = checked_int(now_ms, "now_ms", 0, keys.U64_MAX)
        expires_ms = checked_int(expires_ms, "expires_ms", now_ms, keys.U64_MAX)
        granted = []
        for queue in _check_queues(queues):
            held = self._value(group, queue)
            if topics.has_queue(*queue) and (held is None or held.is_free_for(client_id, now_ms)):
                granted.append(queue)
        for queue in granted:
            lock = QueueLock(client_id, expires_ms)
            self._put(stage, group, queue, lock, keys.U64.pack(expires_ms) + client_id.encode())
        return done([list(queue) for queue in granted])

    def unlock(self, stage: Stage, group: Any, client_id: Any, queues: Any) -> CommandResult:
        """Gives up those of these queues that the client holds; all that it holds if `queues` is None. Value: their
        number. Locks of other clients stay."""
        group, client_id = check_group_name(group), _check_client(client_id)
        wanted = self._all(group) if queues is None else _check_queues(queues)
        mine = set()
        for queue in wanted:
            held = self._value(group, queue)
            if held is not None and held.client_id == client_id:
                mine.add(queue)
        self._drop(stage, group, mine)
        return done(len(mine))

    def expire_slice(self, stage: Stage, before_ms: int, at: bytes, rows_max: int) -> Done:
        """Walks over at most `rows_max` locks from the key `at` on, and removes those that expired before `before_ms`
        of log time. Locks of deleted groups are removed together with the group's other rows."""
        used = 0
        for key, row in self._kv.scan(LOCKS, at, keys.LAST):
            if used == rows_max:
                return Done(used, key)
            used += 1
            group, *queue = keys.parse_offset_key(key)
            held = self._value(group, (queue[0], queue[1]))
            if held is not None and held.expires_ms < before_ms:
                self._drop(stage, group, [(queue[0], queue[1])])
                stage.before[LOCKS][key] = row
        return Done(used, None)


def _decode(row: bytes) -> QueueLock:
    return QueueLock(row[8:].decode(), keys.U64.unpack_from(row)[0])


def _check_client(client_id: Any) -> str:
    client = checked_str(client_id, "client_id")
    if not 0 < len(client) <= CLIENT_LENGTH_MAX:
        raise InvalidCommandError(f"a client id has 1 to {CLIENT_LENGTH_MAX} characters, not {len(client)}")
    return client


def _check_queues(queues: Any) -> list[Queue]:
    """Returns the queues, each once, in their order."""
    if type(queues) is not list or len(queues) > QUEUES_MAX:
        raise InvalidCommandError(f"queues must be a list of at most {QUEUES_MAX}")
    found: dict[Queue, None] = {}
    for row in queues:
        if type(row) is not list or len(row) != 2:
            raise InvalidCommandError(f"a queue is [topic_id, queue_id], not {row!r}")
        found[checked_int(row[0], "topic_id", 0, keys.U32_MAX), checked_int(row[1], "queue_id", 0, keys.U32_MAX)] = None
    return list(found)
