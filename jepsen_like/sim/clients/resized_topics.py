"""A topic whose number of queues goes up and down, and groups that commit offsets beyond the end of a queue.

Fewer queues hide messages, and lose none. A change that must not hide unconsumed messages is refused as long as a group
has not consumed an acknowledged message; the number in the refusal is at least the number of such messages, and at most
the number of all messages sent. At the end the topic has one queue. Hidden messages still count as messages of the
topic, and in the lag of its group. Then it has all queues again, and every acknowledged message is where it was stored,
on each replica.

An offset beyond the end is shown as such. A consumer with such an offset that is to read up to the end raises an error
instead of reading nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jepsen_like.checkers.history_steps import TopicQueue
from jepsen_like.client_kit.fields import foreign_send, topic_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import FULL, SEND_CODE, ClientHost, Retries, id_of, read_queue
from jepsen_like.sim.clients.history_recorder import stored_at
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker
from raftmq.client.client import AsyncClient
from raftmq.client.consuming.consumer import AsyncConsumer
from raftmq.client.errors import Failed, RaftMQError
from raftmq_wire.codes import NOT_HIDING_FIELD, RequestCode, ResponseCode

GROUP, QUEUES = "resizers", 4
BEYOND = 1_000_000
"""An offset that no queue of a run reaches."""
READ_S = 5.0


class AckedMessage(NamedTuple):
    """An acknowledged message, with the virtual time in seconds at which its answer came."""

    message_id: str
    answered_s: float


class ResizeLedger:
    """Knows the topics' messages, and which answers to changes of the number of queues are right; reports others under
    `queues`."""

    def __init__(self, report: Report, floor: Callable[[str, int], int]) -> None:
        """`floor(topic, queue)`: the offset below which retention may have removed messages."""
        self._report, self._floor = report, floor
        self.stored: dict[TopicQueue, dict[int, AckedMessage]] = defaultdict(dict)
        """Queue -> offset -> the acknowledged message there."""
        self.sent: Counter[TopicQueue] = Counter()
        """Queue -> number of messages that were sent to it, whatever became of them."""
        self.handed: dict[TopicQueue, int] = defaultdict(int)
        """Queue -> the offset behind the last message that the group was given: the highest that it may have
        committed."""
        self.others: Counter[str] = Counter()
        """Topic -> number of other groups that may read it."""
        self.left_s: dict[str, float] = {}
        """Topic -> the time in seconds at which another group that may have read it was last deleted."""

    def not_consumed(self, topic: str, queues: range, asked_s: float) -> int:
        """Returns the number of messages in these queues that were acknowledged before `asked_s`, are kept, and were
        surely not consumed until now. Returns 0 if another group may have read the topic since `asked_s`: the nodes may
        not know yet that this group reads the topic, too, and the other group may have consumed the messages (seed
        832000023)."""
        if self.others[topic] or self.left_s.get(topic, -1.0) >= asked_s:
            return 0
        return sum(
            offset >= max(self.handed[topic, queue], self._floor(topic, queue)) and stored.answered_s < asked_s
            for queue in queues
            for offset, stored in self.stored[topic, queue].items()
        )

    def changed(self, topic: str, lost: range, asked_s: float, answer: Answer, *, hides: bool) -> None:
        """Checks the answer to a change that takes the queues `lost` from the topic. `hides`: the change may hide
        messages.
        """
        least, what = self.not_consumed(topic, lost, asked_s), f"{topic} without queues {list(lost)}"
        if answer.code == ResponseCode.SUCCESS:
            if least and not hides:
                self._report("queues", f"{what} was not refused, and {least} messages were not consumed")
        elif answer.code == ResponseCode.ILLEGAL_OPERATION:
            most = sum(self.sent[topic, queue] for queue in lost)
            named = int(answer.remark.split()[0])
            if hides or not max(1, least) <= named <= most:
                self._report("queues", f"{what} is refused for {named} messages, {least} to {most} are right")

    def missing(self, topic: str, ends: dict[int, int]) -> list[str]:
        """Returns a text for each acknowledged message that retention keeps and that lies at or beyond the end of its
        queue. `ends`: queue -> its end according to an answer; a queue that is left out has the end 0."""
        return [
            f"{stored.message_id} at {offset} of {topic} queue {queue}"
            for queue in range(QUEUES)
            for offset, stored in self.stored[topic, queue].items()
            if offset >= max(ends.get(queue, 0), self._floor(topic, queue))
        ]


class ResizedTopics(Asker):
    """Producer, operator and consumer of the topic, and a group for each offset beyond the end. After a change of
    unknown outcome they go on with a topic of another name. Setting `stopped` ends them once the topic has all its
    queues."""

    def __init__(
        self, host: ClientHost, report: Report, ends: Callable[[str, int], int], floor: Callable[[str, int], int]
    ) -> None:
        """`ends(topic, queue)`: the offset after the last message that any node has. `floor`: see `ResizeLedger`."""
        super().__init__(host, report)
        self._ends = ends
        self.ledger = ResizeLedger(report, floor)
        self.topic = ""
        self._queues: int | None = None
        """The topic's number of queues; None once a change is undecided."""
        self._names = self._count = self._groups = 0
        self.whole = False
        """True once the topic surely has all its queues again and is not changed any more."""

    def start(self) -> None:
        """Starts all tasks."""
        for work in (self._operate, self._produce, self._consume, self._go_beyond):
            self._spawn(partial(work, random.Random(self.rng.random())))

    # --- the operator ------------------------------------------------------------------------------------------------

    async def _operate(self, rng: random.Random) -> None:
        await self._in_turns(rng, (0.05, 0.4), 0.1, "an operator of queues", partial(self._change, rng))
        while self._left > 1:  # noqa: ASYNC110 - the others count down as they end
            await asyncio.sleep(0.05)
        if self._queues is not None:
            await self._end()

    async def _change(self, rng: random.Random, connection: RawConnection) -> None:
        if self._queues is None:
            self._names += 1
            topic, before, queues = f"resized-{self._names}", 0, QUEUES
        else:
            topic, before, queues = self.topic, self._queues, rng.randint(1, QUEUES)
        hides, asked_s = rng.random() < 0.5, self.host.loop.now
        fields = topic_fields(topic, queues) | ({} if hides else {NOT_HIDING_FIELD: "true"})
        answer = await self._ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        if answer is None or answer.code not in (ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION):
            self._queues = None
            return
        self.ledger.changed(topic, range(queues, before), asked_s, answer, hides=hides)
        if answer.code == ResponseCode.SUCCESS:
            self.topic, self._queues = topic, queues

    async def _end(self) -> None:
        """Hides all queues but one, checks that their messages are still counted, and brings the queues back. A call
        that was tried again may be carried out later: then `whole` stays False, and `judge` checks nothing."""
        client = self.host.client()
        retries = Retries(client)
        while not self.whole:
            try:
                await client.admin.create_topic(self.topic, queues=1, now=True)
                found = await client.admin.describe_topic(self.topic)
                ends = {each.queue_id: each.max_offset for each in (*found.queues, *found.hidden)}
                self._counted("messages", ends)
                lags = await client.admin.offsets(GROUP, self.topic)
                self._counted("lag", {each.queue_id: each.max_offset for each in lags})
                await client.admin.create_topic(self.topic, queues=QUEUES)
            except (RaftMQError, OSError):
                await asyncio.sleep(0.2)
                continue
            if retries.count:
                return
            self.whole = True
        await client.close()

    def _counted(self, what: str, ends: dict[int, int]) -> None:
        for each in self.ledger.missing(self.topic, ends)[:1]:
            self._report("queues", f"{each} is hidden, and not counted in the {what}")

    async def judge(self, client: AsyncClient, addresses: list[str]) -> None:
        """Reads the topic from every node, if it has all its queues again: each acknowledged message that retention has
        left must be where it was stored."""
        for address in addresses if self.whole else ():
            for queue in range(QUEUES):
                messages, lowest = await read_queue(client, self.topic, queue, address)
                found = {message.queue_offset: id_of(message.body) for message in messages}
                for offset, stored in self.ledger.stored[self.topic, queue].items():
                    if offset >= lowest and found.get(offset) != stored.message_id:
                        where = f"{stored.message_id} was stored at {offset} of {self.topic} queue {queue}"
                        self._report("queues", f"{where}, {address} has {found.get(offset)!r} there")
                        return

    # --- the load ----------------------------------------------------------------------------------------------------

    async def _produce(self, rng: random.Random) -> None:
        await self._in_turns(rng, (0.01, 0.08), 0.05, "a producer to queues", partial(self._send, rng))

    async def _send(self, rng: random.Random, connection: RawConnection) -> None:
        topic, queue = self.topic, rng.randrange(QUEUES)
        if not topic:
            return
        self._count += 1
        message_id = f"resized-{self._count}"
        self.ledger.sent[topic, queue] += 1
        fields = foreign_send(topic, message_id, queue, FULL)
        answer = await self._ask(connection, SEND_CODE, fields, self.host.body(topic, message_id, 5))
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            place, offset = stored_at(answer)
            self.ledger.stored[topic, place][offset] = AckedMessage(message_id, self.host.loop.now)

    async def _consume(self, rng: random.Random) -> None:
        client = self.host.client()
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.02, 0.3))
            topic = self.topic
            if not topic:
                continue
            consumer = client.consumer(GROUP, topic, max_wait_s=0.3)
            with contextlib.suppress(RaftMQError, OSError):
                await consumer.open()
                for _ in range(rng.randint(1, 6)):
                    await self._read_some(consumer, topic, rng.randint(1, 30))
                    await consumer.commit()
            with contextlib.suppress(RaftMQError, OSError):
                await consumer.close(commit=rng.random() < 0.7)
        await client.close()

    async def _read_some(self, consumer: AsyncConsumer, topic: str, count: int) -> None:
        for _ in range(count):
            message = None if self.stopped else await consumer.poll(0.3)
            if message is None:
                return
            place = topic, message.queue_id
            self.ledger.handed[place] = max(self.ledger.handed[place], message.queue_offset + 1)

    # --- offsets beyond the end --------------------------------------------------------------------------------------

    async def _go_beyond(self, rng: random.Random) -> None:
        client = self.host.client()
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            if self.topic:
                self._groups += 1
                with contextlib.suppress(RaftMQError, OSError):
                    await self._one_beyond(client, f"beyond-{self._groups}", self.topic)
        await client.close()

    async def _one_beyond(self, client: AsyncClient, group: str, topic: str) -> None:
        """Lets a new group commit an offset beyond the end of queue 0, read, and correct it. Raises RaftMQError,
        OSError."""
        admin = client.admin
        self.ledger.others[topic] += 1  # counted for good, unless the group is surely deleted
        await admin.create_group(group)
        await admin.commit(group, topic, 0, BEYOND)
        shown = (await admin.offsets(group, topic))[0]
        if shown.committed != BEYOND or not shown.beyond_end or shown.lag:
            self._report("queues", f"{group} committed {BEYOND} beyond the end of {topic} queue 0, shown is {shown}")
        if await self._reads(client, group, topic) == "the end":
            self._report("queues", f"{group} stands beyond the end of {topic} queue 0, and its consumer reads nothing")
        await admin.commit(group, topic, 0, shown.max_offset)
        if await self._reads(client, group, topic) == "beyond":
            self._report("queues", f"{group} stands within {topic} queue 0 again, and its consumer denies that")
        await admin.delete_group(group)
        self.ledger.others[topic] -= 1
        self.ledger.left_s[topic] = self.host.loop.now

    async def _reads(self, client: AsyncClient, group: str, topic: str) -> str:
        """Reads up to the end that the queues have now. Returns "the end" if the consumer got there, "beyond" if it was
        told that its offset is beyond the end, and "" after any other error or READ_S seconds."""
        consumer = client.consumer(group, topic, start="latest", follow=False)
        try:
            async with asyncio.timeout(READ_S):
                async for _ in consumer:
                    pass
            return "the end"
        except Failed as error:
            return "beyond" if error.code == ResponseCode.PULL_OFFSET_MOVED else ""
        except (RaftMQError, OSError):
            return ""
        finally:
            with contextlib.suppress(RaftMQError, OSError):
                await consumer.close(commit=False)
