"""One client of queue locks on raw connections: heartbeat, lock, unlock, commit, leave, delete; judged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from jepsen_like.hostile.fields import beat_body, group_body, place_of, pull_fields, topic_fields
from jepsen_like.hostile.wire import Answer
from jepsen_like.sim.clients.asking import ask, dial
from jepsen_like.sim.clients.client_machines import ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection, Report
from jepsen_like.sim.locks.lock_judge import LockJudge, Queue
from raftmq_wire.codes import RequestCode, ResponseCode

TELL_S = 0.5
"""Seconds that a client waits, before it does anything, until every node has heard of it."""


class LockClient:
    """A member of one group that locks queues of one topic, by one client id."""

    def __init__(self, client_id: str, group: str, topic: str, host: ClientHost, judge: LockJudge) -> None:
        self.client_id, self.group, self.topic = client_id, group, topic
        self._host, self.judge = host, judge
        self.connection: RawConnection | None = None
        self.node = ""
        self._others: dict[str, RawConnection] = {}
        """Node -> where it heard of this client too: consumers tell every node."""
        self._telling: asyncio.Task[None] | None = None
        judge.watch(client_id, self.is_known)

    async def connect(self, node: str, report: Report) -> bool:
        """Connects to the node anew, and says there who it is: a lock is for those who did. False if that fails."""
        self._report = report
        made = await self._dial(node)
        if made is None:
            return False
        self.connection, self.node = made, node
        telling = self.tell_others()
        if not (await self._says_who(made) and await self._make_group()):
            return False
        await asyncio.wait([telling], timeout=TELL_S)
        return not made.closed

    def tell_others(self) -> asyncio.Task[None]:
        """Heartbeats to the nodes that have not heard of the client over an open connection; in a task of its own."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell_others())
        return self._telling

    async def _tell_others(self) -> None:
        await asyncio.gather(*(self._tell(node) for node in self._unaware()))

    async def _tell(self, node: str) -> None:
        made = await self._dial(node)
        if made is not None and await self._says_who(made):
            self._others[node] = made

    def _unaware(self) -> list[str]:
        """Nodes that may not know the client, but for the one that it asks."""
        return [n for n in self._host.nodes if n != self.node and (n not in self._others or self._others[n].closed)]

    def is_known(self) -> bool:
        """Returns True if every node has heard of it over a connection that stands."""
        return self.connection is not None and not self.connection.closed and not self._unaware()

    async def _make_group(self) -> bool:
        """The leader does that for the first heartbeat that it hears itself."""
        answer = await self._ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_body(self.group))
        return answer is not None and answer.code == ResponseCode.SUCCESS

    async def _dial(self, node: str) -> RawConnection | None:
        return await dial(self._host, node, f"{self.client_id} at {node}", self._report)

    async def _says_who(self, connection: RawConnection) -> bool:
        body = beat_body(self.client_id, [self.group], [self.topic])
        answer = await ask(self._host, connection, RequestCode.HEART_BEAT, {}, body)
        return answer is not None and answer.code == ResponseCode.SUCCESS

    def vanish(self) -> None:
        """Ends its connections without a word."""
        self.judge.stops_reading(self.client_id)
        if self._telling is not None:
            self._telling.cancel()
        for connection in (self.connection, *self._others.values()):
            if connection is not None:
                connection.transport.abort()

    def queue(self, queue_id: int) -> Queue:
        """Returns the judge's name of the queue."""
        return self.group, self.topic, queue_id

    async def _ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer | None:
        return None if self.connection is None else await ask(self._host, self.connection, code, ext, body)

    # --- locks -------------------------------------------------------------------------------------------------------

    async def lock(self, queue_ids: Iterable[int]) -> frozenset[int]:
        """The queues that the client holds now, as far as it was told."""
        queue_ids = list(queue_ids)
        asked = self.judge.asks(self.client_id, map(self.queue, queue_ids))
        answer = await self._ask(RequestCode.LOCK_BATCH_MQ, {}, self._body(queue_ids))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self.judge.lost(asked)
            return frozenset()
        granted = frozenset(int(row["queueId"]) for row in json.loads(answer.body)["lockOKMQSet"])
        self.judge.answered(asked, {self.queue(queue_id) for queue_id in granted})
        return granted

    async def unlock(self, queue_ids: Iterable[int]) -> bool:
        """Gives up what it holds of them. False: that may happen later, and this client id is of no more use."""
        queue_ids = list(queue_ids)
        queues = [self.queue(queue_id) for queue_id in queue_ids]
        self.judge.stops_reading(self.client_id, queues)
        answer = await self._ask(RequestCode.UNLOCK_BATCH_MQ, {}, self._body(queue_ids))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return False
        self.judge.unlocked(self.client_id, queues)
        return True

    async def leave(self) -> None:
        """An orderly leave (35)."""
        self.judge.stops_reading(self.client_id)
        fields = {"clientID": self.client_id, "consumerGroup": self.group, "producerGroup": ""}
        told = (self.connection, *self._others.values())
        asked = [ask(self._host, one, RequestCode.UNREGISTER_CLIENT, fields) for one in told if one is not None]
        await asyncio.gather(*asked)

    def _body(self, queue_ids: list[int]) -> bytes:
        rows = [{"topic": self.topic, "brokerName": "b", "queueId": queue_id} for queue_id in queue_ids]
        return json.dumps({"consumerGroup": self.group, "clientId": self.client_id, "mqSet": rows}).encode()

    # --- offsets and messages ----------------------------------------------------------------------------------------

    async def commit(self, queue_id: int, offset: int) -> bool | None:
        """True: done. False: dropped, another holds the queue. None: unknown."""
        at_s = self._host.loop.now
        fields = place_of(*self.queue(queue_id)) | {"commitOffset": str(offset)}
        answer = await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        if answer.remark.startswith("not committed"):
            self.judge.dropped(self.client_id, self.queue(queue_id), at_s)
            return False
        self.judge.committed(self.client_id, self.queue(queue_id), at_s)
        return True

    async def committed(self, queue_id: int) -> int | None:
        """The group's offset, 0 if it has none; None: unknown."""
        fields = place_of(*self.queue(queue_id)) | {"setZeroIfNotFound": "false"}
        answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
            return 0
        return int(answer.ext["offset"]) if answer is not None and answer.code == ResponseCode.SUCCESS else None

    async def pull(self, queue_id: int, offset: int, count: int) -> Answer | None:
        """One pull that does not wait."""
        return await self._ask(RequestCode.PULL_MESSAGE, pull_fields(*self.queue(queue_id), offset, count=count))

    # --- what ends locks from outside --------------------------------------------------------------------------------

    async def delete_group(self) -> bool:
        """Deletes the group with its offsets, and makes it again. True if that is surely done."""
        since_s = self.judge.deletes(self.group)
        fields = {"groupName": self.group, "cleanOffset": "true"}
        answer = await self._ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        if answer is None or answer.code not in (ResponseCode.SUCCESS, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            return False
        made = await self._make_group()
        self.judge.deleted(self.group, since_s)
        return made

    async def remake_topic(self, queues: int) -> bool:
        """Deletes the topic, and makes it again. True if that is surely done."""
        since_s = self.judge.deletes(self.group, self.topic)
        gone = await self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": self.topic})
        if gone is None or gone.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
            return False
        made = await self.make_topic(queues)
        self.judge.deleted(self.group, since_s, self.topic)
        return made

    async def make_topic(self, queues: int) -> bool:
        """True if the topic is there."""
        answer = await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(self.topic, queues))
        return answer is not None and answer.code == ResponseCode.SUCCESS
