"""Queue locks: which client of a group consumes a queue in order (RocketMQ: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ).

A lock is a row of the log's state, not of one node's memory, so the leader that takes over knows every holder. Times
are log time, stamped when a command is proposed: apply compares numbers and reads no clock.

Invariant: between the moment a client is granted a lock and the `expires_ms` it was granted until, no other client is
granted it, unless the holder gave it up, or its group or topic was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from statemachine import keys
from statemachine.commands import CommandResult, InvalidCommandError, checked_int, checked_str, done
from statemachine.groups import check_group_name
from statemachine.kv import KV, LOCKS
from statemachine.stage import Stage
from statemachine.topics import Topics

CLIENT_LENGTH_MAX = 512
QUEUES_MAX = 4096
"""Queues of one command."""

Queue = tuple[int, int]
"""(topic_id, queue_id)."""


class QueueLock(NamedTuple):
    """Who holds a queue, and until when, log time in milliseconds."""

    client_id: str
    expires_ms: int

    def is_free_for(self, client_id: str, now_ms: int) -> bool:
        """Whether that client may take it: it holds it, or nobody does any more."""
        return self.client_id == client_id or self.expires_ms <= now_ms


class QueueLocks:
    """Locks by group. A group's map is replaced, never changed, so any thread may read it at any time."""

    def __init__(self, kv: KV) -> None:
        self._published: dict[str, Mapping[Queue, QueueLock]] = {}
        self._staged: dict[str, dict[Queue, QueueLock]] = {}
        for key, value in kv.scan(LOCKS, keys.FIRST, keys.LAST):
            group, topic_id, queue_id = keys.parse_offset_key(key)
            expires_ms = keys.U64.unpack_from(value)[0]
            self._staged.setdefault(group, {})[topic_id, queue_id] = QueueLock(value[8:].decode(), expires_ms)
        self.publish()

    def of_group(self, group: str) -> Mapping[Queue, QueueLock]:
        """Every lock of the group, also those that have expired and were not taken since."""
        return self._published.get(group, {})

    def lock(
        self, stage: Stage, group: Any, client_id: Any, now_ms: Any, expires_ms: Any, queues: Any, topics: Topics
    ) -> CommandResult:
        """Grants what nobody else holds; value: the queues that the client holds now, [[topic_id, queue_id], ...].
        Locks of the group that have expired go."""
        group, client_id = check_group_name(group), _check_client(client_id)
        now_ms = checked_int(now_ms, "now_ms", 0, keys.U64_MAX)
        expires_ms = checked_int(expires_ms, "expires_ms", now_ms, keys.U64_MAX)
        granted = []
        current = self._current(group)
        for queue in _check_queues(queues):
            held = current.get(queue)
            if topics.has_queue(*queue) and (held is None or held.is_free_for(client_id, now_ms)):
                granted.append(queue)
        writable = self._writable(group)
        expired = [queue for queue, held in writable.items() if held.expires_ms <= now_ms]
        self._drop(stage, group, set(expired) - set(granted))
        for queue in granted:
            writable[queue] = QueueLock(client_id, expires_ms)
            stage.put(LOCKS, keys.offset_key(group, *queue), keys.U64.pack(expires_ms) + client_id.encode())
        return done([list(queue) for queue in granted])

    def unlock(self, stage: Stage, group: Any, client_id: Any, queues: Any) -> CommandResult:
        """Gives up those of these queues that the client holds, all that it holds if `queues` is None; value: how
        many. Others' locks stay."""
        group, client_id = check_group_name(group), _check_client(client_id)
        current = self._current(group)
        wanted = current if queues is None else _check_queues(queues)
        mine = {queue for queue in wanted if queue in current and current[queue].client_id == client_id}
        self._drop(stage, group, mine)
        return done(len(mine))

    def delete_group(self, stage: Stage, group: str) -> None:
        """Forgets every lock of the group: one made again under that name inherits none."""
        self._staged[group] = {}
        stage.delete_range(LOCKS, *keys.offsets_range(group))

    def delete_topic(self, stage: Stage, topic_id: int) -> None:
        """Forgets every group's locks of the topic."""
        for group in sorted({*self._published, *self._staged}):
            self._drop(stage, group, {queue for queue in self._current(group) if queue[0] == topic_id})

    def publish(self) -> None:
        """Shows the run's changes to readers; called when its batch is written."""
        for group, locks in self._staged.items():
            if locks:
                self._published[group] = locks
            else:
                self._published.pop(group, None)
        self._staged = {}

    def _drop(self, stage: Stage, group: str, queues: Iterable[Queue]) -> None:
        for queue in sorted(queues):
            del self._writable(group)[queue]
            stage.delete(LOCKS, keys.offset_key(group, *queue))

    def _current(self, group: str) -> Mapping[Queue, QueueLock]:
        return self._staged.get(group, self._published.get(group, {}))

    def _writable(self, group: str) -> dict[Queue, QueueLock]:
        locks = self._staged.get(group)
        if locks is None:
            locks = self._staged[group] = dict(self._published.get(group, {}))
        return locks


def _check_client(client_id: Any) -> str:
    client = checked_str(client_id, "client_id")
    if not 0 < len(client) <= CLIENT_LENGTH_MAX:
        raise InvalidCommandError(f"a client id has 1 to {CLIENT_LENGTH_MAX} characters, not {len(client)}")
    return client


def _check_queues(queues: Any) -> list[Queue]:
    """The queues, each once, in their order."""
    if type(queues) is not list or len(queues) > QUEUES_MAX:
        raise InvalidCommandError(f"queues must be a list of at most {QUEUES_MAX}")
    found: dict[Queue, None] = {}
    for row in queues:
        if type(row) is not list or len(row) != 2:
            raise InvalidCommandError(f"a queue is [topic_id, queue_id], not {row!r}")
        found[checked_int(row[0], "topic_id", 0, keys.U32_MAX), checked_int(row[1], "queue_id", 0, keys.U32_MAX)] = None
    return list(found)
