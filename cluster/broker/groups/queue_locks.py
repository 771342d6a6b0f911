"""Decides on the leader which queue locks a client gets, for every protocol and with few entries in the log.

A lock lives in the log's state (`statemachine.consuming.queue_locks`). A client asks again and again for the queues
that it holds, and for queues that other clients hold. Neither needs an entry: a lock is not renewed while enough time
of it is left, and a lock of another client is not taken before it ends.

Anybody can name any client. A client therefore gets a lock only if heartbeats over the same connection have named it as
a member of the group. From OWNERS_LEVEL on a lock names the user too: two users with one client id are two clients.

A client that connects again, because the node was restarted, sends its heartbeat within 30 s and must not lose its
queues meanwhile: in the first 35 s of a connection it may renew the locks that the log says the client holds, by 35 s
in all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial

from cluster.broker.groups.group_members import FIRST_HEARTBEAT_MS, Members
from cluster.broker.refusal import Reason, Refused, not_written, when_confirmed
from cluster.broker.services import Services, propose_in_parts, rows_in_parts
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.environment import LOCK_TTL_MS
from statemachine.access.users import NOBODY
from statemachine.commands import Command
from statemachine.consuming.queue_locks import (
    QUEUES_MAX,
    LockQueues,
    LockQueuesOf,
    QueueLock,
    UnlockQueues,
    UnlockQueuesOf,
)
from statemachine.levels import OWNERS_LEVEL
from statemachine.rows.keys import Queue

Granted = frozenset[Queue]
"""The queues that a client holds now."""


class Standing(StrEnum):
    """Says whether heartbeats have named the client that asks for locks, over the connection by which it asks. Values
    are on the wire between nodes."""

    MEMBER = "member"
    """Heartbeats over the connection named the client for the group."""
    NEW = "new"
    """No heartbeat has named the client yet, but one may still come, because the connection is younger than
    FIRST_HEARTBEAT_MS."""
    STRANGER = "stranger"


def other_holder(
    services: Services, members: Members, group: str, queue: Queue, user: int, clients: Callable[[], Collection[str]]
) -> str | None:
    """Returns the id of the client that holds the queue's lock, if it is a member of the group and none of the user's
    `clients`: commits of these clients would undo its work. `clients` returns their ids, and is called only if a member
    holds the lock. Returns None if there are no such clients, the queue is not locked, or the holder is no longer a
    member. Leader only."""
    lock = services.state.locks_of_group(group).get(queue)
    if lock is None or lock.expires_ms <= services.log_time_ms():
        return None
    if not members.is_consumer(group, lock.client_id, lock.user):
        return None
    named = clients()
    return lock.client_id if named and not any(lock.is_of(client_id, user) for client_id in named) else None


class QueueLocks:
    """Grants and ends locks. Leader only; callers forward requests to the leader."""

    def __init__(self, node: Services, ttl_ms: int = LOCK_TTL_MS) -> None:
        """`ttl_ms`: milliseconds of log time for which a lock is granted."""
        self._node = node
        self._ttl_ms = ttl_ms
        self._fresh_ms = ttl_ms * 5 // 6
        """A lock with more milliseconds left than this is not renewed, so that one entry per client in 10 s is
        enough."""
        self._unheard = Unheard(ttl_ms)

    def topic_id(self, name: str) -> int | None:
        """Returns the topic's id; None if it does not exist."""
        topic = self._node.state.topics.get(name)
        return None if topic is None else topic.id

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[Queue],
        standing: Standing,
        done: Callable[[Granted | Refused], None],
        user: int = NOBODY,
    ) -> None:
        """Locks the queues for the user's client as far as they are free. Calls `done` with those of the queues that
        the client now holds, for at least half of a lock's time, or with a Refused."""
        wanted = frozenset(queues)
        if len(wanted) > QUEUES_MAX:
            done(Refused(Reason.INVALID, f"{len(wanted)} queues, {QUEUES_MAX} are allowed"))
            return
        when_confirmed(self._node, partial(self._lock, group, client_id, wanted, standing, done, user), done)

    def _lock(
        self,
        group: str,
        client_id: str,
        wanted: frozenset[Queue],
        standing: Standing,
        done: Callable[[Granted | Refused], None],
        user: int = NOBODY,
    ) -> None:
        node = self._node
        if standing is Standing.STRANGER or group not in node.state.groups:
            done(frozenset())
            return
        now_ms, locks = node.log_time_ms(), node.state.locks_of_group(group)
        held = {queue: locks[queue] for queue in wanted if queue in locks}
        expires_ms = now_ms + self._ttl_ms
        if standing is Standing.NEW:
            mine = {q: lock for q, lock in held.items() if lock.is_of(client_id, user) and lock.expires_ms > now_ms}
            fresh, asked, expires_ms = self._unheard.renewed(group, mine, now_ms)
            self._propose(group, client_id, user, now_ms, expires_ms, sorted(asked), frozenset(fresh), done)
            return
        self._unheard.heard(group, [queue for queue, lock in held.items() if lock.is_of(client_id, user)])
        later_ms = now_ms + self._fresh_ms
        fresh = {q for q, lock in held.items() if lock.is_of(client_id, user) and lock.expires_ms > later_ms}
        taken = {q for q, lock in held.items() if not lock.is_free_for(client_id, user, now_ms)}
        asked = sorted(queue for queue in wanted - fresh - taken if self._exists(queue))
        self._propose(group, client_id, user, now_ms, expires_ms, asked, frozenset(fresh), done)

    def _propose(
        self,
        group: str,
        client_id: str,
        user: int,
        now_ms: int,
        expires_ms: int,
        asked: list[Queue],
        fresh: Granted,
        done: Callable[[Granted | Refused], None],
    ) -> None:
        """Proposes locks of the queues `asked`. Calls `done` with the granted ones and `fresh`: the client's locks that
        need no renewal."""
        if not asked:
            done(fresh)
            return
        command: Command
        if self._names(user):
            command = LockQueuesOf(user, group, client_id, now_ms, expires_ms, asked)
        else:
            command = LockQueues(group, client_id, now_ms, expires_ms, asked)

        def applied(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                # The entry was lost, or its outcome is unknown. The client asks again, and then gets any lock that the
                # entry has granted.
                done(not_written(result.outcome, result.remark, unknown="no leader took it"))
                return
            answer = result.results[0]
            granted = {(row[0], row[1]) for row in answer.value} if answer.ok else set()
            done(frozenset(granted | fresh))

        self._node.propose([command], applied)

    def unlock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[Queue] | None,
        done: Callable[[ProposeResult], None],
        user: int = NOBODY,
    ) -> None:
        """Ends the locks of the user's client on these queues; with None, all its locks in the group. Calls `done` with
        the result.

        Like `lock`, it first waits until this node is confirmed as leader, so that it does not overtake an earlier lock
        request. A second copy of a lock request may still arrive, if it was forwarded to this leader before the former
        leader's answer came. If that copy were carried out after the unlock, it would lock the queues for a client that
        no longer wants them (seed 790000066).
        """

        def refuse(refused: Refused) -> None:
            done(ProposeResult(Outcome.FAIL, [], None, refused.remark))

        when_confirmed(self._node, partial(self._unlock, group, client_id, queues, done, user), refuse)

    def _unlock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[Queue] | None,
        done: Callable[[ProposeResult], None],
        user: int,
    ) -> None:
        locks = self._node.state.locks_of_group(group)
        wanted = set(locks) if queues is None else set(queues)
        mine = sorted(queue for queue in wanted if queue in locks and locks[queue].is_of(client_id, user))
        if not mine:
            done(ProposeResult(Outcome.OK, [], None, ""))
            return
        runs: Iterator[list[Command]]
        if self._names(user):
            runs = ([UnlockQueuesOf(user, group, client_id, part)] for part in rows_in_parts(mine))
        else:
            runs = ([UnlockQueues(group, client_id, part)] for part in rows_in_parts(mine))
        propose_in_parts(self._node, runs, done)

    def _names(self, user: int) -> bool:
        """Returns True if locks of this user record the user."""
        return user != NOBODY and self._node.state.level >= OWNERS_LEVEL

    def _exists(self, queue: Queue) -> bool:
        topic = self._node.state.topics_by_id.get(queue[0])
        return topic is not None and queue[1] < topic.queues


class Unheard:
    """Remembers locks that were renewed before a heartbeat confirmed that their client is there. Only the leader
    remembers them; the next leader begins with none.

    Invariant: all such renewals of a lock together extend it by at most FIRST_HEARTBEAT_MS beyond the end that its
    client got as a member.
    """

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._ends_ms: dict[tuple[str, Queue], int] = {}
        """(group, queue) of a lock -> log time at which it ends if no heartbeat comes."""
        self._look_at = 1024
        """The number of remembered locks at which those that have ended are removed."""

    def renewed(
        self, group: str, mine: Mapping[Queue, QueueLock], now_ms: int
    ) -> tuple[Collection[Queue], Collection[Queue], int]:
        """Divides the client's locks `mine`. Returns (queues whose locks last long enough, queues whose locks are to be
        renewed, log time up to which they are renewed or 0)."""
        enough_ms = now_ms + self._ttl_ms // 2
        fresh = {queue for queue, lock in mine.items() if lock.expires_ms >= enough_ms}
        ends_ms = {queue: self._end(group, queue, lock, now_ms) for queue, lock in mine.items() if queue not in fresh}
        renewed = [queue for queue, end_ms in ends_ms.items() if end_ms >= enough_ms]
        return fresh, renewed, min((ends_ms[queue] for queue in renewed), default=0)

    def _end(self, group: str, queue: Queue, lock: QueueLock, now_ms: int) -> int:
        self._forget_ended(now_ms)
        end_ms = self._ends_ms.setdefault((group, queue), lock.expires_ms + FIRST_HEARTBEAT_MS)
        if lock.expires_ms > end_ms:  # the lock was granted again since then, to any client
            end_ms = self._ends_ms[group, queue] = lock.expires_ms + FIRST_HEARTBEAT_MS
        return min(end_ms, now_ms + self._ttl_ms)

    def heard(self, group: str, queues: Iterable[Queue]) -> None:
        """Forgets the locks of these queues, because the client that holds them has asked as a member."""
        if self._ends_ms:
            for queue in queues:
                self._ends_ms.pop((group, queue), None)

    def _forget_ended(self, now_ms: int) -> None:
        if len(self._ends_ms) >= self._look_at:
            self._ends_ms = {at: end_ms for at, end_ms in self._ends_ms.items() if end_ms > now_ms}
            self._look_at = 2 * len(self._ends_ms) + 1024
