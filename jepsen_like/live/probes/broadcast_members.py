"""Members of a consumer group that reads by broadcasting, as clients of RocketMQ do: each reads every queue, and keeps
its offsets itself.

RaftMQ's client has no such consumer. So these members register by heartbeats, and pull without naming a group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from jepsen_like.checkers.history_steps import TopicQueue
from jepsen_like.client_kit.wire import Wire
from raftmq.client.errors import RaftMQError
from raftmq_wire.codes import RequestCode

GROUP = "watchers"
BEAT_S, PAUSE_S = 5.0, 0.1
Pull = Callable[[str, int, int], Awaitable[Mapping[str, Any]]]
"""Function (topic, queue, offset) -> the answer to a pull, whose `messages` are [offset, id] pairs."""


def heartbeat(client_id: str, topics: Sequence[str]) -> bytes:
    """Returns the body of the heartbeat of a member."""
    subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics]
    consumer = {
        "groupName": GROUP,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "BROADCASTING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": subscriptions,
    }
    return json.dumps({"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}).encode()


class BroadcastMember:
    """One member of the group. Its methods run on the event loop; any thread may read `seen` and `wrong`."""

    def __init__(self, name: str, pull: Pull, ports: Sequence[int]) -> None:
        """`ports`: the client ports of all nodes."""
        self.name = name
        self._pull, self._ports = pull, list(ports)
        self.seen: dict[TopicQueue, set[int]] = defaultdict(set)
        """Queue -> offsets of the messages that the member got."""
        self.wrong: list[str] = []
        self.stopped = False

    async def beat(self, topics: Sequence[str]) -> None:
        """Sends heartbeats to all nodes until it is stopped."""
        wires: dict[int, Wire] = {}
        body = heartbeat(f"{GROUP}-{self.name}", topics)
        while not self.stopped:
            for port in self._ports:
                with contextlib.suppress(OSError):
                    if port not in wires or wires[port].closed:
                        wires[port] = await Wire.dial(port)
                    await wires[port].ask(RequestCode.HEART_BEAT, {}, body)
            for _ in range(round(BEAT_S / PAUSE_S)):
                await asyncio.sleep(0 if self.stopped else PAUSE_S)
        for wire in wires.values():
            wire.abort()

    async def read(self, topic: str, queue: int, is_over: Callable[[], bool]) -> None:
        """Reads a queue from its beginning, until the member is stopped, or `is_over` returns True because the queue is
        no longer to be read."""
        place = 0
        while not (self.stopped or is_over()):
            with contextlib.suppress(RaftMQError, OSError, TimeoutError):
                answer = await self._pull(topic, queue, place)
                place = self.take((topic, queue), place, [offset for offset, _ in answer["messages"]])
            await asyncio.sleep(PAUSE_S)

    def take(self, queue: TopicQueue, place: int, offsets: Sequence[int]) -> int:
        """Records messages that were pulled from `place` on, and reports a gap or a wrong order; returns the next
        place."""
        for offset in offsets:
            if offset != place:
                what = f"of {queue[0]}/{queue[1]} came offset {offset}, not {place}"
                self.wrong.append(f"member {self.name} of {GROUP!r}: {what}")
            self.seen[queue].add(offset)
            place = offset + 1
        return place
