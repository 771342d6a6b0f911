"""Queue locks: they let one client of a group consume a queue in order (RocketMQ: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ).

A lock is a row of the replicated state, not a value in one node's memory, so a new leader knows every holder. Times are
log time, which the leader stamps on a command when it proposes it: apply compares numbers and reads no clock.

A client is a user and a client id. A lock that nobody proven took belongs to the first proven user who asks with its
client id, and a client without a proven user may have any lock of its client id: there is none where users are judged.

Invariant: from the moment a client is granted a lock until that grant's `expires_ms`, no other client is granted the
lock, unless the holder gave it up, or its group or topic was deleted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from statemachine.commands import NO_OWNER, CommandResult, InvalidCommandError, checked_int, checked_str, done, is_same
from statemachine.consuming.groups import check_group_name
from statemachine.consuming.queue_rows import Queue, QueueRows
from statemachine.removals import Done, Removals
from statemachine.rows import keys
from statemachine.rows.kv import KV, LOCKS
from statemachine.rows.write_batch import Stage
from statemachine.topics import Topics

CLIENT_LENGTH_MAX = 512
QUEUES_MAX = 4096
"""The most queues that one command may lock or unlock."""


class QueueLock(NamedTuple):
    """The lock of one queue: the client that holds it, and the log time in milliseconds at which it expires."""

    client_id: str
    expires_ms: int
    user: int = NO_OWNER
    """Id of the user whose client it is; NO_OWNER if none was proven."""

    def is_of(self, client_id: str, user: int) -> bool:
        """Returns True if the client holds the lock, or held it last."""
        return self.client_id == client_id and is_same(self.user, user)

    def is_free_for(self, client_id: str, user: int, now_ms: int) -> bool:
        """Returns True if the client may take the lock: the client holds it already, or it has expired."""
        return self.is_of(client_id, user) or self.expires_ms <= now_ms


class QueueLocks(QueueRows[QueueLock]):
    """The queue locks of all groups, by group and queue."""

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
        user: int = NO_OWNER,
    ) -> CommandResult:
        """Grants the client the locks of those queues that no other client holds. The result's value lists the queues
        that the client now holds, [[topic_id, queue_id], ...]. Expired locks that nobody takes are removed by
        `expire_slice`."""
        group, client_id = check_group_name(group), _check_client(client_id)
        now_ms = checked_int(now_ms, "now_ms", 0, keys.U64_MAX)
        expires_ms = checked_int(expires_ms, "expires_ms", now_ms, keys.U64_MAX)
        granted = []
        for queue in _check_queues(queues):
            held = self._value(group, queue)
            if topics.has_queue(*queue) and (held is None or held.is_free_for(client_id, user, now_ms)):
                granted.append(queue)
        for queue in granted:
            lock = QueueLock(client_id, expires_ms, user)
            self._put(stage, group, queue, lock, _encode(lock))
        return done([list(queue) for queue in granted])

    def unlock(self, stage: Stage, group: Any, client_id: Any, queues: Any, user: int = NO_OWNER) -> CommandResult:
        """Gives up the client's locks of these queues; all of its locks in the group if `queues` is None. Locks of
        other clients stay. The result's value is the number of locks given up."""
        group, client_id = check_group_name(group), _check_client(client_id)
        wanted = self._all(group) if queues is None else _check_queues(queues)
        mine = set()
        for queue in wanted:
            held = self._value(group, queue)
            if held is not None and held.is_of(client_id, user):
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


_OWNED = b"\xff"
"""The byte after the time in a row with an owner. No client id in UTF-8 begins like that."""


def _encode(lock: QueueLock) -> bytes:
    owner = _OWNED + keys.U64.pack(lock.user) if lock.user != NO_OWNER else b""
    return keys.U64.pack(lock.expires_ms) + owner + lock.client_id.encode()


def _decode(row: bytes) -> QueueLock:
    expires_ms = keys.U64.unpack_from(row)[0]
    if row[8:9] == _OWNED:
        return QueueLock(row[17:].decode(), expires_ms, keys.U64.unpack_from(row, 9)[0])
    return QueueLock(row[8:].decode(), expires_ms)


def checked_user(user: Any) -> int:
    """Returns the id of a user in a command. Raises InvalidCommandError."""
    return checked_int(user, "user", NO_OWNER + 1, keys.U64_MAX)


def _check_client(client_id: Any) -> str:
    client = checked_str(client_id, "client_id")
    if not 0 < len(client) <= CLIENT_LENGTH_MAX:
        raise InvalidCommandError(f"a client id has 1 to {CLIENT_LENGTH_MAX} characters, not {len(client)}")
    return client


def _check_queues(queues: Any) -> list[Queue]:
    """Returns the queues of a command, [[topic_id, queue_id], ...], each once, in their order. Raises
    InvalidCommandError."""
    if type(queues) is not list or len(queues) > QUEUES_MAX:
        raise InvalidCommandError(f"queues must be a list of at most {QUEUES_MAX}")
    found: dict[Queue, None] = {}
    for row in queues:
        if type(row) is not list or len(row) != 2:
            raise InvalidCommandError(f"a queue is [topic_id, queue_id], not {row!r}")
        found[checked_int(row[0], "topic_id", 0, keys.U32_MAX), checked_int(row[1], "queue_id", 0, keys.U32_MAX)] = None
    return list(found)
