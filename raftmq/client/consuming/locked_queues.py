"""Queue locks of an ordered consumer: it reads a queue only while the cluster has confirmed recently that it holds the
queue's lock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from raftmq.client.cluster_view import ClusterView
from raftmq.client.connection import ConnectionPool
from raftmq.client.errors import Failed
from raftmq_wire.codes import RequestCode

CONFIRMED_S = 30.0
"""Seconds, counted from the request, for which a confirmed lock allows reading; the cluster keeps the lock for 60 s
(RocketMQ: REBALANCE_LOCK_MAX_LIVE_TIME of the client)."""
_CALL_S = 6.0


class _Queue(msgspec.Struct, rename="camel"):
    queue_id: int


class _Granted(msgspec.Struct):
    lockOKMQSet: list[_Queue] = []  # the protocol's name


class QueueLocks:
    """The locks that one client holds on queues of one topic."""

    def __init__(self, view: ClusterView, links: ConnectionPool, group: str, topic: str, client_id: str) -> None:
        """`links`: the connections that carry the client's heartbeats. The cluster grants no lock over others."""
        self._view = view
        self._links = links
        self._group = group
        self._topic = topic
        self._client_id = client_id
        self._now = asyncio.get_running_loop().time
        self._confirmed_s: dict[int, float] = {}
        """Queue id -> time of the last lock request that was granted, by the loop's clock."""

    def holds(self, queue_id: int) -> bool:
        """Returns True if the queue may be read now. Any thread may call it."""
        confirmed_s = self._confirmed_s.get(queue_id)
        return confirmed_s is not None and self._now() < confirmed_s + CONFIRMED_S

    async def lock(self, queue_ids: Iterable[int]) -> frozenset[int]:
        """Requests the locks of these queues, also of those whose lock it holds; returns the queues whose locks it now
        holds. Raises RaftMQError; then locks held before stay valid until they have not been confirmed for
        CONFIRMED_S."""
        queues = sorted(set(queue_ids))
        if not queues:
            return frozenset()
        asked_s = self._now()
        what = f"locks of group {self._group} on {self._topic}"
        reply = await self._view.call(
            RequestCode.LOCK_BATCH_MQ,
            {},
            self._body(queues),
            what=what,
            timeout_s=_CALL_S,
            attempt_s=_CALL_S / 2,
            links=self._links,
        )
        try:
            rows = msgspec.json.decode(reply.body, type=_Granted).lockOKMQSet
        except msgspec.DecodeError as error:
            raise Failed(f"{what}: the answer is not understood: {error}") from error
        granted = frozenset(row.queue_id for row in rows) & frozenset(queues)
        for queue_id in queues:
            if queue_id in granted:
                self._confirmed_s[queue_id] = asked_s
            else:
                self._confirmed_s.pop(queue_id, None)
        return granted

    async def unlock(self, queue_ids: Iterable[int]) -> None:
        """Releases the locks of these queues. Raises RaftMQError; then each lock ends when it expires."""
        queues = sorted(queue_ids)
        for queue_id in queues:
            self._confirmed_s.pop(queue_id, None)
        if queues:
            what = f"unlocking queues of {self._topic}"
            code, body = RequestCode.UNLOCK_BATCH_MQ, self._body(queues)
            await self._view.call(code, {}, body, what=what, timeout_s=_CALL_S, links=self._links)

    def _body(self, queues: list[int]) -> bytes:
        rows = [{"topic": self._topic, "brokerName": "", "queueId": queue_id} for queue_id in queues]
        return msgspec.json.encode({"consumerGroup": self._group, "clientId": self._client_id, "mqSet": rows})
