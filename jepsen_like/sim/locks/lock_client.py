"""One client of queue locks on raw connections: it sends heartbeats, locks, unlocks, commits, leaves and deletes, and
tells the lock judge every request and answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from jepsen_like.checkers.history_steps import GroupQueue
from jepsen_like.client_kit.fields import beat_body, group_body, place_of, pull_fields, topic_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import ask, dial
from jepsen_like.sim.locks.lock_judge import LockJudge
from raftmq_wire.codes import RequestCode, ResponseCode

TELL_S = 0.5
"""Longest time in seconds that a new client waits for every node to have received its heartbeat before it goes on."""


class LockClient:
    """A consumer of one group, with one client id, that locks queues of one topic."""

    def __init__(self, client_id: str, group: str, topic: str, host: ClientHost, judge: LockJudge) -> None:
        self.client_id, self.group, self.topic = client_id, group, topic
        self._host, self.judge = host, judge
        self.connection: RawConnection | None = None
        self.node = ""
        self._others: dict[str, RawConnection] = {}
        """Node address -> the further connection over which this client sent that node its heartbeat. Consumers send
        heartbeats to every node."""
        self._telling: asyncio.Task[None] | None = None
        judge.watch(client_id, self.is_known)

    async def connect(self, node: str, report: Report) -> bool:
        """Opens a new connection to the node, sends a heartbeat with the client's id (only clients that have sent one
        get locks), and creates the group. Then waits up to TELL_S seconds while the other nodes get heartbeats. Returns
        False if any of the first three steps fails, or if the connection is closed by then."""
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
        """Starts a task that sends heartbeats to the nodes that have no open connection with a heartbeat of this
        client. Returns the running task if there is one."""
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
        """Returns the nodes that may not know this client, except for the node to which it sends its requests."""
        return [n for n in self._host.nodes if n != self.node and (n not in self._others or self._others[n].closed)]

    def is_known(self) -> bool:
        """Returns True if every node has received this client's heartbeat over a connection that is still open."""
        return self.connection is not None and not self.connection.closed and not self._unaware()

    async def _make_group(self) -> bool:
        """Creates the consumer group. The leader does so itself only for the first heartbeat that it receives
        directly."""
        answer = await self._ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_body(self.group))
        return answer is not None and answer.code == ResponseCode.SUCCESS

    async def _dial(self, node: str) -> RawConnection | None:
        return await dial(self._host, node, f"{self.client_id} at {node}", self._report)

    async def _says_who(self, connection: RawConnection) -> bool:
        body = beat_body(self.client_id, [self.group], [self.topic])
        answer = await ask(self._host, connection, RequestCode.HEART_BEAT, {}, body)
        return answer is not None and answer.code == ResponseCode.SUCCESS

    def vanish(self) -> None:
        """Aborts all connections of the client without unlocking or unregistering."""
        self.judge.stops_reading(self.client_id)
        if self._telling is not None:
            self._telling.cancel()
        for connection in (self.connection, *self._others.values()):
            if connection is not None:
                connection.transport.abort()

    def queue(self, queue_id: int) -> GroupQueue:
        """Returns the queue as the judge names it: group, topic and queue id."""
        return self.group, self.topic, queue_id

    async def _ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer | None:
        return None if self.connection is None else await ask(self._host, self.connection, code, ext, body)

    # --- locks -------------------------------------------------------------------------------------------------------

    async def lock(self, queue_ids: Iterable[int]) -> frozenset[int]:
        """Asks for the locks of these queues and returns the ids of those that were granted; none if the answer is
        unknown."""
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
        """Unlocks these queues. Returns False if the outcome is unknown: the unlock may be carried out later, so this
        client id must not be used any more."""
        queue_ids = list(queue_ids)
        queues = [self.queue(queue_id) for queue_id in queue_ids]
        self.judge.stops_reading(self.client_id, queues)
        answer = await self._ask(RequestCode.UNLOCK_BATCH_MQ, {}, self._body(queue_ids))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return False
        self.judge.unlocked(self.client_id, queues)
        return True

    async def leave(self) -> None:
        """Unregisters the client at every node that it is connected to (UNREGISTER_CLIENT, code 35)."""
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
        """Commits an offset of the queue. Returns True if it was committed, False if it was dropped because another
        client holds the queue, None if the outcome is unknown."""
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
        """Returns the group's committed offset of the queue, 0 if it has none, and None if the answer is unknown."""
        fields = place_of(*self.queue(queue_id)) | {"setZeroIfNotFound": "false"}
        answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
            return 0
        return int(answer.ext["offset"]) if answer is not None and answer.code == ResponseCode.SUCCESS else None

    async def pull(self, queue_id: int, offset: int, count: int) -> Answer | None:
        """Sends one pull that is not parked; returns the answer, or None if none came."""
        return await self._ask(RequestCode.PULL_MESSAGE, pull_fields(*self.queue(queue_id), offset, count=count))

    # --- what ends locks from outside --------------------------------------------------------------------------------

    async def delete_group(self) -> bool:
        """Deletes the group with its offsets and creates it again. Returns True if both were surely done."""
        since_s = self.judge.deletes(self.group)
        fields = {"groupName": self.group, "cleanOffset": "true"}
        answer = await self._ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        if answer is None or answer.code not in (ResponseCode.SUCCESS, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            return False
        made = await self._make_group()
        self.judge.deleted(self.group, since_s)
        return made

    async def remake_topic(self, queues: int) -> bool:
        """Deletes the topic and creates it again. Returns True if both were surely done."""
        since_s = self.judge.deletes(self.group, self.topic)
        gone = await self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": self.topic})
        if gone is None or gone.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
            return False
        made = await self.make_topic(queues)
        self.judge.deleted(self.group, since_s, self.topic)
        return made

    async def make_topic(self, queues: int) -> bool:
        """Creates the topic; returns True if it surely exists."""
        answer = await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(self.topic, queues))
        return answer is not None and answer.code == ResponseCode.SUCCESS
