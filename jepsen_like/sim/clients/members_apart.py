"""Members of one group that want different topics: each queue of a topic must be read by a member that wants the topic.

Members that use RaftMQ's client come and go, each with its own set of topics, and leave with or without a commit. Now
and then a member that behaves like a RocketMQ client joins for a while. Then queues are divided by RocketMQ's rule, and
that member's share is not read until it has left. When everything is healed, the last members want different topics,
and all of them together every topic. Once they have joined, one more message is sent to every queue. The last members
must get every message that was acknowledged, except those that retention removed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from jepsen_like.client_kit.fields import beat_body
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import FULL, ClientHost
from jepsen_like.sim.clients.single_request import Asker, dial
from raftmq.client.client import AsyncClient
from raftmq.client.errors import RaftMQError
from raftmq.client.producing.producer import AsyncProducer
from raftmq_wire.codes import RequestCode

GROUP = "apart"
TOPICS = {"apart-a": 3, "apart-b": 2}
"""Topic -> number of its queues."""
LAST = (("apart-a",), ("apart-b",), ("apart-b", "apart-a"))
"""The topics of each of the last members."""
BEATS_EVERY_S = 1.0
MessagePlace = tuple[str, int, int]
"""Topic, queue, offset."""


class MembersApart(Asker):
    """Runs the members of the group, and a producer. Setting `stopped` ends the producer, and the members once they
    have everything."""

    def __init__(self, host: ClientHost, report: Report, first_of: Callable[[str, int], int]) -> None:
        """`first_of(topic, queue)`: the first offset that every node still has."""
        super().__init__(host, report)
        self._first_of = first_of
        self._read: set[MessagePlace] = set()
        self._due: set[MessagePlace] = set()
        """Messages that were acknowledged and not read yet."""
        self._sent = 0
        self._joined: set[tuple[str, ...]] = set()
        """The sets of topics (of LAST) whose members have joined."""
        self._all_joined = asyncio.Event()
        self._ends = False
        """True once no more messages are sent."""

    def start(self) -> None:
        """Starts the producer and the members as tasks."""
        for work in (self._produce, self._join_as_other):
            self._spawn(partial(work, random.Random(self.rng.random())))
        for last in LAST:
            self._spawn(partial(self._be_member, last, random.Random(self.rng.random())))

    # --- the producer ------------------------------------------------------------------------------------------------

    async def _produce(self, rng: random.Random) -> None:
        client = self.host.client()
        producer = client.producer()
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.02, 0.2))
            topic = rng.choice(list(TOPICS))
            await self._send(rng, producer, topic, rng.randrange(TOPICS[topic]))
        await self._all_joined.wait()
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                while not await self._send(rng, producer, topic, queue_id):
                    pass
        self._ends = True
        await client.close()

    async def _send(self, rng: random.Random, producer: AsyncProducer, topic: str, queue_id: int) -> bool:
        """Sends a message. Returns True if it was acknowledged."""
        self._sent += 1
        body = self.host.body(topic, f"apart-{self._sent}", rng.randrange(20))
        try:
            sent = await producer.send(topic, body, queue_id=queue_id, properties={"ACK_LEVEL": FULL})
        except (RaftMQError, OSError):
            return False
        self._due |= {(topic, sent.queue_id, sent.queue_offset)} - self._read
        return True

    # --- members -----------------------------------------------------------------------------------------------------

    async def _be_member(self, last: tuple[str, ...], rng: random.Random) -> None:
        client = self.host.client()
        while not self.stopped:
            topics, ends_s = rng.choice(LAST), self.host.loop.now + rng.uniform(0.5, 4.0)
            await self._session(client, topics, rng, lambda: self.stopped or self.host.loop.now > ends_s)  # noqa: B023
            await asyncio.sleep(rng.uniform(0.0, 0.5))
        while not self._has_all():
            await self._session(client, last, rng, self._has_all, self._joined)
        await client.close()

    async def _session(
        self,
        client: AsyncClient,
        topics: tuple[str, ...],
        rng: random.Random,
        ends: Callable[[], bool],
        joined: set[tuple[str, ...]] | None = None,
    ) -> None:
        """Reads as a member with these topics until `ends` returns True, or until an error. If `joined` is not None,
        the topics are added to it once the member has joined."""
        consumer = client.consumer(GROUP, topics)
        try:
            await consumer.open()
            if joined is not None:
                joined.add(topics)
                if len(joined) == len(LAST):
                    self._all_joined.set()
            while not ends():
                message = await consumer.poll(0.1)
                if message is not None:
                    place = message.topic, message.queue_id, message.queue_offset
                    self._read.add(place)
                    self._due.discard(place)
                if rng.random() < 0.02:
                    await consumer.commit()
        except (RaftMQError, OSError):
            await asyncio.sleep(rng.uniform(0.05, 0.3))
        finally:
            try:
                await consumer.close(commit=rng.random() < 0.7)
            except (RaftMQError, OSError):
                await asyncio.sleep(0.05)

    def _has_all(self) -> bool:
        """Returns True if every acknowledged message was read, or removed by retention."""
        if self._ends and self._due:
            first = {(topic, queue): self._first_of(topic, queue) for topic, queue, _ in self._due}
            self._due = {place for place in self._due if place[2] >= first[place[:2]]}
        return self._ends and not self._due

    async def _join_as_other(self, rng: random.Random) -> None:
        """Joins as a client that does not support dividing queues by topic, stays for a while, and leaves."""
        while not self.stopped:
            await asyncio.sleep(rng.uniform(1.0, 6.0))
            name, topics = f"other-{rng.random()}", rng.choice(LAST)
            what = "a member of another kind"
            connections = [await dial(self.host, node, what, self._report) for node in self.host.nodes]
            for _ in range(rng.randint(1, 3)):
                for connection in connections:
                    if connection is not None and not self.stopped:
                        await self._ask(connection, RequestCode.HEART_BEAT, {}, beat_body(name, [GROUP], topics))
                await asyncio.sleep(BEATS_EVERY_S)
            for connection in connections:
                if connection is not None:
                    connection.transport.abort()
