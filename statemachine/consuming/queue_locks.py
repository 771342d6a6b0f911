"""Queue locks: they let one client of a group consume a queue in order (RocketMQ: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ).

A lock is a row of the replicated state, not a value in one node's memory, so a new leader knows every holder. Times are
log time, which the leader stamps on a command when it proposes it: apply compares numbers and reads no clock.

A client is a user and a client id. A client may have no authenticated user. Its lock may be taken over by the first
authenticated user that asks with the same client id, and such a client may take any lock of its client id. Where access
control is enforced, every client has an authenticated user.

Invariant: from the moment a client is granted a lock until that grant's `expires_ms`, no other client is granted the
lock, unless the holder gave it up, or its group or topic was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple, Self

from msgspec import Meta

from statemachine.commands import (
    NO_OWNER,
    U32,
    U64,
    Command,
    CommandResult,
    InvalidCommandError,
    NumberFrom1,
    done,
    is_same,
    not_found,
)
from statemachine.consuming.groups import GroupName, Groups
from statemachine.consuming.queue_rows import QueueRows
from statemachine.family import Families, LaterRows, Reads, applies, family_of
from statemachine.levels import OWNERS_LEVEL
from statemachine.removals import Done, Removals
from statemachine.rows import keys
from statemachine.rows.keys import Queue
from statemachine.rows.kv import KV, LOCKS
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import Topics

CLIENT_LENGTH_MAX = 512
QUEUES_MAX = 4096
"""The most queues that one command may lock or unlock."""
_OWNED = b"\xff"
"""The byte after the time in a row with an owner. No client id in UTF-8 begins like that."""

ClientId = Annotated[str, Meta(min_length=1, max_length=CLIENT_LENGTH_MAX)]
QueueList = Annotated[Sequence[tuple[U32, U32]], Meta(max_length=QUEUES_MAX)]
"""Queues: [(topic_id, queue_id), ...]."""


class LockQueues(Command, tag="lock_queues", frozen=True):
    """Asks for the locks of queues until the log time `expires_ms`. `now_ms` is the log time of the proposal."""

    group: str
    client_id: ClientId
    now_ms: U64
    expires_ms: U64
    queues: QueueList


class LockQueuesOf(Command, tag="lock_queues_of", frozen=True):
    """Asks for locks as `LockQueues` does, for a client with an authenticated user."""

    LEVEL: ClassVar[int] = OWNERS_LEVEL
    user: NumberFrom1
    group: str
    client_id: ClientId
    now_ms: U64
    expires_ms: U64
    queues: QueueList


class UnlockQueues(Command, tag="unlock_queues", frozen=True):
    """Releases a client's locks of the queues in `queues`; None means all locks that the client has in the group."""

    group: GroupName
    client_id: ClientId
    queues: QueueList | None


class UnlockQueuesOf(Command, tag="unlock_queues_of", frozen=True):
    """Releases locks as `UnlockQueues` does, for a client with an authenticated user."""

    LEVEL: ClassVar[int] = OWNERS_LEVEL
    user: NumberFrom1
    group: GroupName
    client_id: ClientId
    queues: QueueList | None


class QueueLock(NamedTuple):
    """The lock of one queue: the client that holds it, and the log time in milliseconds at which it expires."""

    client_id: str
    expires_ms: int
    user: int = NO_OWNER
    """Id of the client's user; NO_OWNER if the client was not authenticated."""

    def is_of(self, client_id: str, user: int) -> bool:
        """Returns True if the client holds the lock, or held it last."""
        return self.client_id == client_id and is_same(self.user, user)

    def is_free_for(self, client_id: str, user: int, now_ms: int) -> bool:
        """Returns True if the client may take the lock: the client holds it already, or it has expired."""
        return self.is_of(client_id, user) or self.expires_ms <= now_ms


class QueueLocks(QueueRows[QueueLock]):
    """The queue locks of all groups, by group and queue."""

    ROWS = ((LOCKS, b""),)
    LATER_ROWS = (LaterRows(OWNERS_LEVEL, LOCKS, is_later=lambda row: row[8:9] == _OWNED),)

    def __init__(self, kv: KV, removals: Removals, topics: Topics, groups: Groups) -> None:
        self._topics, self._groups = topics, groups
        super().__init__(kv, LOCKS, _decode, removals)

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[Removals], families[Topics], families[Groups])

    @applies(LockQueues)
    def lock(self, stage: Stage, command: LockQueues) -> CommandResult:
        """Grants the client the locks of those queues that exist and that no other client holds. The result's value
        lists them, [[topic_id, queue_id], ...]; the result is `not_found` if there is no such group. `expire_slice`
        removes expired locks that no client takes."""
        return self._lock(stage, command, NO_OWNER)

    @applies(LockQueuesOf)
    def lock_of(self, stage: Stage, command: LockQueuesOf) -> CommandResult:
        """Grants locks as `lock` does, to a client with an authenticated user."""
        return self._lock(stage, command, command.user)

    @applies(UnlockQueues)
    def unlock(self, stage: Stage, command: UnlockQueues) -> CommandResult:
        """Releases the client's locks of these queues. Locks of other clients stay. The result's value is the number of
        released locks."""
        return self._unlock(stage, command, NO_OWNER)

    @applies(UnlockQueuesOf)
    def unlock_of(self, stage: Stage, command: UnlockQueuesOf) -> CommandResult:
        """Releases locks as `unlock` does, for a client with an authenticated user."""
        return self._unlock(stage, command, command.user)

    def _lock(self, stage: Stage, command: LockQueues | LockQueuesOf, user: int) -> CommandResult:
        group, client_id, now_ms, expires_ms = command.group, command.client_id, command.now_ms, command.expires_ms
        if not self._groups.exists(group):
            return not_found(f"no group {group!r}")
        if expires_ms < now_ms:
            raise InvalidCommandError(f"a lock until {expires_ms} has expired at {now_ms}")
        granted = []
        for queue in dict.fromkeys(command.queues):
            held = self._value(group, queue)
            if self._topics.has_queue(*queue) and (held is None or held.is_free_for(client_id, user, now_ms)):
                granted.append(queue)
        for queue in granted:
            lock = QueueLock(client_id, expires_ms, user)
            self._put(stage, group, queue, lock, _encode(lock))
        return done([list(queue) for queue in granted])

    def _unlock(self, stage: Stage, command: UnlockQueues | UnlockQueuesOf, user: int) -> CommandResult:
        group, client_id = command.group, command.client_id
        wanted: Iterable[Queue] = self._all(group) if command.queues is None else command.queues
        mine = set()
        for queue in wanted:
            held = self._value(group, queue)
            if held is not None and held.is_of(client_id, user):
                mine.add(queue)
        self._drop(stage, group, mine)
        return done(len(mine))

    def expire_slice(self, stage: Stage, before_ms: int, at: bytes, rows_max: int) -> Done:
        """Examines at most `rows_max` locks from the key `at` on, and removes those that expired before `before_ms` of
        log time. Locks of deleted groups are removed together with the group's other rows."""
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


class LockReads(Reads):
    """Read access to what a state holds about queue locks."""

    _locks = family_of(QueueLocks)

    def locks_of_group(self, group: str) -> Mapping[Queue, QueueLock]:
        """Returns the queue locks of the consumer group by queue, expired ones included."""
        return self._locks.of_group(group)


def _encode(lock: QueueLock) -> bytes:
    owner = _OWNED + keys.U64.pack(lock.user) if lock.user != NO_OWNER else b""
    return keys.U64.pack(lock.expires_ms) + owner + lock.client_id.encode()


def _decode(row: bytes) -> QueueLock:
    expires_ms = keys.U64.unpack_from(row)[0]
    if row[8:9] == _OWNED:
        return QueueLock(row[17:].decode(), expires_ms, keys.U64.unpack_from(row, 9)[0])
    return QueueLock(row[8:].decode(), expires_ms)
