"""Queue locks as any protocol front offers them: what a client is granted, on the leader, and what it costs the log.

A lock lives in the log's state (`statemachine.queue_locks`). A client asks again and again for what it holds, and for
what others hold; both are answered without an entry: the first while enough time is left, the second until it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

from cluster.broker.command_levels import raising
from cluster.broker.refusal import Reason, Refused, not_written, when_confirmed
from cluster.broker.services import Services
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.environment import LOCK_TTL_MS
from statemachine.commands import LOCK_QUEUES, LOCKS_LEVEL, PUT_GROUP, UNLOCK_QUEUES
from statemachine.queue_locks import QUEUES_MAX
from statemachine.queue_rows import Queue

Granted = frozenset[Queue]
"""The queues that a client holds now."""


def other_holder(services: Services, group: str, queue: Queue, clients: Callable[[], Collection[str]]) -> str | None:
    """Who holds the queue now, if that is none of these clients: what they commit of it would undo the holder's work.
    None if there are no such clients, or the queue is free. Leader only."""
    lock = services.state.locks_of_group(group).get(queue)
    if lock is None or lock.expires_ms <= services.log_time_ms():
        return None
    named = clients()
    return lock.client_id if named and lock.client_id not in named else None


class QueueLocks:
    """Grants and ends locks. The leader's; callers forward to it."""

    def __init__(self, node: Services, ttl_ms: int = LOCK_TTL_MS) -> None:
        """`ttl_ms`: how long a lock lasts, log time."""
        self._node = node
        self._ttl_ms = ttl_ms
        self._fresh_ms = ttl_ms * 5 // 6
        """A lock with more time left than this is not refreshed: one entry per client in 10 s is enough."""

    def topic_id(self, name: str) -> int | None:
        """The topic's id; None if it does not exist."""
        topic = self._node.state.topics.get(name)
        return None if topic is None else topic.id

    def lock(
        self, group: str, client_id: str, queues: Iterable[Queue], done: Callable[[Granted | Refused], None]
    ) -> None:
        """Tells which of the queues the client holds now, for at least half of the lock's time."""
        wanted = frozenset(queues)
        if len(wanted) > QUEUES_MAX:
            done(Refused(Reason.INVALID, f"{len(wanted)} queues, {QUEUES_MAX} are allowed"))
            return
        when_confirmed(self._node, partial(self._lock, group, client_id, wanted, done), done)

    def _lock(
        self, group: str, client_id: str, wanted: frozenset[Queue], done: Callable[[Granted | Refused], None]
    ) -> None:
        node = self._node
        now_ms, locks = node.log_time_ms(), node.state.locks_of_group(group)
        held = {queue: locks[queue] for queue in wanted if queue in locks}
        later_ms = now_ms + self._fresh_ms
        fresh = {q for q, lock in held.items() if lock.client_id == client_id and lock.expires_ms > later_ms}
        taken = {q for q, lock in held.items() if not lock.is_free_for(client_id, now_ms)}
        asked = sorted(queue for queue in wanted - fresh - taken if self._exists(queue))
        if not asked:
            done(frozenset(fresh))
            return
        run = list(raising(node, LOCKS_LEVEL, "queue locks"))
        if group not in node.state.groups:
            run.append([PUT_GROUP, {"name": group}, True])
        run.append([LOCK_QUEUES, group, client_id, now_ms, now_ms + self._ttl_ms, [list(queue) for queue in asked]])

        def applied(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                # Undecided: the client asks again, and what it may have been granted is its own.
                done(not_written(result.outcome, result.remark, unknown="no leader took it"))
                return
            answer = result.results[-1]
            granted = {(row[0], row[1]) for row in answer.value} if answer.ok else set()
            done(frozenset(granted | fresh))

        node.propose(run, applied)

    def unlock(
        self, group: str, client_id: str, queues: Iterable[Queue] | None, done: Callable[[ProposeResult], None]
    ) -> None:
        """Ends the client's locks of these queues, or all of the group's that it holds."""
        locks = self._node.state.locks_of_group(group)
        wanted = set(locks) if queues is None else set(queues)
        mine = sorted(queue for queue in wanted if queue in locks and locks[queue].client_id == client_id)
        if not mine:
            done(ProposeResult(Outcome.OK, [], None, ""))
            return
        self._node.propose([[UNLOCK_QUEUES, group, client_id, [list(queue) for queue in mine]]], done)

    def _exists(self, queue: Queue) -> bool:
        topic = self._node.state.topics_by_id.get(queue[0])
        return topic is not None and queue[1] < topic.queues
