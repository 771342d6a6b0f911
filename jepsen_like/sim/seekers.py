"""Messages that are looked for by their key once they are acknowledged, through any node: none says that there is none.

A node may say that it does not know. Who says "not there" has asked how far the log is committed and applied that far
(docs/guarantees.md), also when it has begun to lead just now.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from cluster.wire.codes import RequestCode, ResponseCode
from jepsen_like.sim.asking import ask, dial
from jepsen_like.sim.clients import SEND_CODE, TOPIC, ClientHost, body_of, foreign_send
from jepsen_like.sim.raw_client import RawConnection, Report
from jepsen_like.sim.recorder import Recorder
from raftmq.client.errors import Unknown, error_of

RECENT = 6
"""Of so many messages that were acknowledged last one is looked for."""


class Seeker:
    """`stopped` ends it. `floor(queue)`: below this offset retention may have taken messages of the topic."""

    def __init__(self, host: ClientHost, recorder: Recorder, report: Report, floor: Callable[[int], int]) -> None:
        self.host, self._recorder, self._report, self._floor = host, recorder, report, floor
        self.stopped = False
        self.done = 0
        self._sent = 0
        self._stored: list[tuple[str, int, int]] = []
        """(id, queue, offset), oldest first."""

    def start(self) -> None:
        """Begins."""
        self.host.spawn(self._work)

    async def _work(self) -> None:
        await asyncio.gather(
            *(work(random.Random(self.host.rng.random())) for work in (self._send_on, self._seek_on, self._seek_on))
        )
        self.done = 1

    async def _send_on(self, rng: random.Random) -> None:
        connection: RawConnection | None = None
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.03, 0.15))
            if connection is None or connection.closed or rng.random() < 0.1:
                connection = await dial(self.host, rng, "a seeker that sends", self._report)
            if connection is not None:
                await self._send(connection, rng.randrange(self.host.options.queues))

    async def _seek_on(self, rng: random.Random) -> None:
        connection: RawConnection | None = None
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.02, 0.1))
            if connection is None or connection.closed or rng.random() < 0.3:
                connection = await dial(self.host, rng, "a seeker", self._report)
            if connection is not None and self._stored:
                await self._seek(connection, *rng.choice(self._stored[-RECENT:]))

    async def _send(self, to: RawConnection, queue: int) -> None:
        self._sent += 1
        message_id = f"sought-{self._sent}"
        op = self._recorder.invoke("send", {"id": message_id, "topic": TOPIC})
        answer = await ask(self.host, to, SEND_CODE, foreign_send(TOPIC, message_id, queue), body_of(message_id, 10))
        if answer is None:
            self._recorder.end(op, "info", {**op.value, "error": "no answer"})
            return
        if answer.code != ResponseCode.SUCCESS:
            unknown = isinstance(error_of(answer.code, answer.remark, "send"), Unknown)
            self._recorder.end(op, "info" if unknown else "fail", {**op.value, "error": answer.remark[:100]})
            return
        place = {"queue_id": int(answer.ext["queueId"]), "queue_offset": int(answer.ext["queueOffset"])}
        self._recorder.end(op, "ok", {**op.value, **place})
        self._stored.append((message_id, place["queue_id"], place["queue_offset"]))

    async def _seek(self, connection: RawConnection, message_id: str, queue: int, offset: int) -> None:
        fields = {
            "topic": TOPIC,
            "key": message_id,
            "maxNum": "4",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 52),
        }
        answer = await ask(self.host, connection, RequestCode.QUERY_MESSAGE, fields)
        if answer is None:
            return
        none = answer.code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST)
        other = answer.code == ResponseCode.SUCCESS and message_id.encode() not in answer.body
        if (none or other) and offset >= self._floor(queue):
            what = f"{message_id} was acknowledged at {TOPIC} queue {queue} offset {offset}"
            self._report("answers", f"{what} and is not found: {answer.code} {answer.remark[:100]}")
