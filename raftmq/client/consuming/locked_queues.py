"""Queue locks of an ordered consumer. It reads a queue only while a recent answer of the cluster confirms that it holds
the queue's lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

import msgspec

from raftmq.client.cluster_view import ClusterView
from raftmq.client.connection import ConnectionPool
from raftmq.client.errors import Failed
from raftmq.client.group_views import of_each
from raftmq_wire.codes import RequestCode
from raftmq_wire.queue_numbers import group_of, number_of, queue_in_group

CONFIRMED_S = 30.0
"""Seconds, counted from the request, for which a confirmed lock allows reading; the cluster keeps the lock for 60 s
(RocketMQ: REBALANCE_LOCK_MAX_LIVE_TIME of the client)."""
_CALL_S = 6.0


class _Queue(msgspec.Struct, rename="camel"):
    queue_id: int


class _Granted(msgspec.Struct):
    lockOKMQSet: list[_Queue] = []  # the protocol's field name


class QueueLocks:
    """The locks that one client holds on queues of one topic."""

    def __init__(
        self,
        view: ClusterView,
        links: Callable[[int], ConnectionPool],
        group: str,
        topic: str,
        client_id: str,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`links`: group of brokers -> the connections that carry the client's heartbeats. The cluster grants locks
        only over these. `now`: a clock in seconds; None means the running loop's clock."""
        self._view = view
        self._links = links
        self._group = group
        self._topic = topic
        self._client_id = client_id
        self._now = now or asyncio.get_running_loop().time
        self._confirmed_s: dict[int, float] = {}
        """Queue id -> time, in seconds, of the last lock request that was granted."""

    def holds(self, queue_id: int) -> bool:
        """Returns True if the queue may be read now. Any thread may call it."""
        confirmed_s = self._confirmed_s.get(queue_id)
        return confirmed_s is not None and self._now() < confirmed_s + CONFIRMED_S

    async def lock(self, queue_ids: Collection[int]) -> frozenset[int]:
        """Requests or renews the locks of these queues; returns the queues whose locks the client now holds. If it
        raises RaftMQError, locks held before stay valid for up to CONFIRMED_S after their last confirmation."""
        parts = _by_group(queue_ids)
        if len(parts) == 1:
            return await self._lock(*parts.popitem())
        found = await of_each({group: self._lock(group, queues) for group, queues in parts.items()})
        failures = [each for each in found.values() if isinstance(each, Exception)]
        if failures and len(failures) == len(parts):
            raise failures[0]
        # A group of brokers that does not answer takes no locks away, and does not affect the locks in other groups.
        without = [queue for group in parts if isinstance(found[group], Exception) for queue in parts[group]]
        granted = [queue for each in found.values() if not isinstance(each, Exception) for queue in each]
        return frozenset(granted) | {queue for queue in without if self.holds(queue)}

    async def _lock(self, group: int, queues: list[int]) -> frozenset[int]:
        asked_s = self._now()
        what = f"locks of group {self._group} on {self._topic}"
        view = self._view.groups.known(group)
        if view is None:  # this group of brokers has retired, and its queues with it
            for queue_id in queues:
                self._confirmed_s.pop(queue_id, None)
            return frozenset()
        reply = await view.call(
            RequestCode.LOCK_BATCH_MQ,
            {},
            self._body(queues),
            what=what,
            timeout_s=_CALL_S,
            attempt_s=_CALL_S / 2,
            links=self._links(group),
        )
        try:
            rows = msgspec.json.decode(reply.body, type=_Granted).lockOKMQSet
        except msgspec.DecodeError as error:
            raise Failed(f"{what}: the answer is not understood: {error}") from error
        granted = frozenset(number_of(group, row.queue_id) for row in rows) & frozenset(queues)
        for queue_id in queues:
            if queue_id in granted:
                self._confirmed_s[queue_id] = asked_s
            else:
                self._confirmed_s.pop(queue_id, None)
        return granted

    async def unlock(self, queue_ids: Iterable[int]) -> None:
        """Releases the locks of these queues, in each group of brokers that answers. Raises RaftMQError if a group does
        not answer; the locks there then end when they expire."""
        parts = _by_group(queue_ids)
        for queues in parts.values():
            for queue_id in queues:
                self._confirmed_s.pop(queue_id, None)
        if len(parts) == 1:
            await self._unlock(*parts.popitem())
            return
        found = await of_each({group: self._unlock(group, queues) for group, queues in parts.items()})
        if failures := [each for each in found.values() if each is not None]:
            raise failures[0]

    async def _unlock(self, group: int, queues: list[int]) -> None:
        what = f"unlocking queues of {self._topic}"
        view, body = self._view.groups.known(group), self._body(queues)
        if view is None:  # this group of brokers has retired, and its locks with it
            return
        code = RequestCode.UNLOCK_BATCH_MQ
        await view.call(code, {}, body, what=what, timeout_s=_CALL_S, links=self._links(group))

    def _body(self, queues: list[int]) -> bytes:
        rows = [{"topic": self._topic, "brokerName": "", "queueId": queue_in_group(queue_id)} for queue_id in queues]
        return msgspec.json.encode({"consumerGroup": self._group, "clientId": self._client_id, "mqSet": rows})


def _by_group(queue_ids: Iterable[int]) -> dict[int, list[int]]:
    """Returns group of brokers -> those of the queues that it has, ascending."""
    parts: dict[int, list[int]] = {}
    for queue_id in sorted(set(queue_ids)):
        parts.setdefault(group_of(queue_id), []).append(queue_id)
    return parts
