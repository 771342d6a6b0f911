"""A client that queries acknowledged messages by their keys through any node.

No node may answer that there is no such message. A node may answer that it does not know. Before a node answers "not
there", it has to ask how far the log is committed and apply that far (docs/guarantees.md), also when it has become the
leader just now.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from jepsen_like.client_kit.fields import foreign_send
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, TOPIC, ClientHost
from jepsen_like.sim.clients.history_recorder import Recorder
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker
from raftmq_wire.codes import RequestCode, ResponseCode

RECENT = 6
"""Number of the most recently acknowledged messages, one of which is looked for."""


class Seeker(Asker):
    """A client that sends messages and looks for them by their keys; setting `stopped` ends it. `floor(queue)`: the
    offset below which retention may have removed messages of the topic."""

    def __init__(self, host: ClientHost, recorder: Recorder, report: Report, floor: Callable[[int], int]) -> None:
        super().__init__(host, report)
        self._recorder, self._floor = recorder, floor
        self._sent = 0
        self._stored: list[tuple[str, int, int]] = []
        """(id, queue, offset) of acknowledged messages, oldest first."""

    async def _work(self) -> None:
        sends, *seeks = (random.Random(self.rng.random()) for _ in range(3))
        await asyncio.gather(
            self._in_turns(sends, (0.03, 0.15), 0.1, "a seeker that sends", partial(self._send, sends)),
            *(self._in_turns(rng, (0.02, 0.1), 0.3, "a seeker", partial(self._seek, rng)) for rng in seeks),
        )

    async def _send(self, rng: random.Random, connection: RawConnection) -> None:
        self._sent += 1
        message_id, queue = f"sought-{self._sent}", rng.randrange(self.host.options.queues)
        op = self._recorder.invoke("send", {"id": message_id, "topic": TOPIC})
        ext = foreign_send(TOPIC, message_id, queue)
        place = self._recorder.answered(
            op, await self._ask(connection, SEND_CODE, ext, self.host.body(TOPIC, message_id, 10))
        )
        if place is not None:
            self._stored.append((message_id, *place))

    async def _seek(self, rng: random.Random, connection: RawConnection) -> None:
        if not self._stored:
            return
        message_id, queue, offset = rng.choice(self._stored[-RECENT:])
        fields = {
            "topic": TOPIC,
            "key": message_id,
            "maxNum": "4",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 52),
        }
        answer = await self._ask(connection, RequestCode.QUERY_MESSAGE, fields)
        if answer is None:
            return
        none = answer.code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST)
        other = answer.code == ResponseCode.SUCCESS and message_id.encode() not in answer.body
        if (none or other) and offset >= self._floor(queue):
            what = f"{message_id} was acknowledged at {TOPIC} queue {queue} offset {offset}"
            self._report("answers", f"{what} and is not found: {answer.code} {answer.remark[:100]}")
