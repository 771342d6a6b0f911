"""Consumers that read in order: they share a group, lock queues, read the queues they hold, commit, hand over, or
vanish.

Each waits a third of the time for which it may read before it locks again, as RocketMQ's clients do (20 s of 60). Every
message must be read, in order, and none before some consumer has read its predecessor. No commit that was answered may
be undone. At the end one consumer is left: it must be granted every queue and reads all of them to the end.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import ORDERED_GROUP as GROUP
from jepsen_like.sim.clients.client_machines import TOPIC, Client, ClientHost
from jepsen_like.sim.locks.lock_client import LockClient
from jepsen_like.sim.locks.lock_judge import READS_S, TTL_S, LockJudge
from raftmq.client.message import decode_messages
from raftmq_wire.codes import ResponseCode

CHURN_GROUP, CHURN_TOPIC, CHURN_QUEUES = "lock-churn", "lock-churn", 2
CONSUMERS = 3


class ReadInOrder:
    """Checks the messages that the group read and the offsets that it committed, queue by queue. Reports under
    `consumer`."""

    def __init__(self, report: Report, floor: Callable[[int], int], exact: Callable[[], bool]) -> None:
        """`floor(queue)`: the offset below which retention may have removed messages."""
        self._report, self._floor, self._exact = report, floor, exact
        self._read: dict[int, int] = defaultdict(int)
        """Queue -> offset after the last message that any consumer has read."""
        self._committed: dict[int, int] = defaultdict(int)
        self._doubtful: set[tuple[int, int]] = set()
        """(queue, offset) of each commit that was not answered and may still be carried out."""

    def begins(self, queue_id: int, offset: int) -> None:
        """Records that a client which holds the lock starts at the group's offset; reports an offset below the
        committed one."""
        low = self._committed[queue_id]
        if offset < low and (queue_id, offset) not in self._doubtful and self._exact():
            self._report("consumer", f"in order: queue {queue_id} begins at {offset}, {low} was committed")

    def takes(self, queue_id: int, offset: int, due: int) -> None:
        """Records that a client which holds the lock reads the message at `offset`; reports it if it is not the one due
        next, or comes before its predecessor."""
        if offset != due and not due < offset <= self._floor(queue_id):
            self._report("consumer", f"in order: queue {queue_id} gives offset {offset} where {due} is due")
        if offset > max(self._read[queue_id], self._floor(queue_id)):
            self._report("consumer", f"in order: queue {queue_id}: {offset} comes before {self._read[queue_id]} did")
        self._read[queue_id] = max(self._read[queue_id], offset + 1)

    def asks(self, queue_id: int, offset: int) -> None:
        """Records a commit that may be carried out at any time: no answer came, or the client no longer holds the
        queue."""
        self._doubtful.add((queue_id, offset))

    def committed(self, queue_id: int, offset: int) -> None:
        """Records that the commit of a client which holds the lock was answered as done."""
        self._committed[queue_id] = offset


class Ordered(Client):
    """The load of queue locks: CONSUMERS consumers of the group GROUP, and one pair of clients that delete the group or
    topic that they lock. Setting `stopped` ends them once everything is read."""

    def __init__(
        self,
        host: ClientHost,
        report: Report,
        floor: Callable[[int], int],
        exact: Callable[[], bool],
        ends: Callable[[], dict[int, int]],
    ) -> None:
        """`exact` returns True if the clocks' error is so small that locks end in time. `ends` returns the offset after
        each queue's last message; it is called when no client sends any more."""
        super().__init__(host)
        self._report, self.ends = report, ends
        self.judge = LockJudge(report, lambda: host.loop.now, exact)
        self.order = ReadInOrder(report, floor, exact)
        self._ids = 0

    def start(self) -> None:
        """Starts the tasks of the consumers and of the pair that deletes."""
        for number in range(CONSUMERS):
            self._spawn(partial(self._consume, random.Random(self.rng.random()), number == 0))
        self._spawn(partial(self._churn, random.Random(self.rng.random())))

    def client(self, group: str, topic: str) -> LockClient:
        """Returns a new client with its own client id."""
        self._ids += 1
        return LockClient(f"orderly-{self._ids}", group, topic, self.host, self.judge)

    # --- orderly consumers -------------------------------------------------------------------------------------------

    async def _consume(self, rng: random.Random, last: bool) -> None:
        """Runs one consumer after the other until `stopped` is set. With `last`, goes on until a consumer holds every
        queue and has read all of them to the end."""
        all_read = False
        while not (self.stopped and (all_read or not last)):
            client = self.client(GROUP, TOPIC)
            if await client.connect(rng.choice(self.host.nodes), self._report):
                all_read = await OrderedSession(client, self, rng, last).run()
            else:
                client.vanish()
                await asyncio.sleep(rng.uniform(0.1, 0.4))

    # --- a client that deletes what it locked ------------------------------------------------------------------------

    async def _churn(self, rng: random.Random) -> None:
        names = 0
        while not self.stopped:
            names += 1  # a deletion that was given up may be carried out later: nobody uses those names any more
            pair = [self.client(f"{CHURN_GROUP}-{names}", f"{CHURN_TOPIC}-{names}") for _ in range(2)]
            connected = [await one.connect(rng.choice(self.host.nodes), self._report) for one in pair]
            if all(connected) and await pair[0].make_topic(CHURN_QUEUES):
                await self._churn_on(pair, rng)
            for one in pair:
                one.vanish()
            await asyncio.sleep(rng.uniform(0.1, 0.5))

    async def _churn_on(self, pair: list[LockClient], rng: random.Random) -> None:
        goes_on = True
        while goes_on and not self.stopped:
            goes_on = await churn(pair, rng.choice(CHURNS))
            await asyncio.sleep(rng.uniform(0.05, 0.4))


CHURNS = ("unlock", "group", "topic", "refuse")


async def churn(pair: list[LockClient], how: str) -> bool:
    """Lets the first client lock queues, ends those locks in the given way or not at all, and lets the second client
    lock the same queues; the judge knows which answers are right. Returns False if some request may still be carried
    out later."""
    first, second = pair
    queues = range(CHURN_QUEUES)
    await first.lock(queues)
    if how == "unlock":
        done = await first.unlock(queues)
    elif how == "group":
        done = await first.delete_group()
    elif how == "topic":
        done = await first.remake_topic(CHURN_QUEUES)
    else:
        done = await second.unlock(queues)  # queues that this client does not hold
    if not done:
        return False
    await second.lock(queues)
    return await second.unlock(queues) and await first.unlock(queues)


class OrderedSession:
    """One consumer from its first lock until it leaves, vanishes, or has read everything."""

    def __init__(self, client: LockClient, ordered: Ordered, rng: random.Random, last: bool) -> None:
        self._client, self._ordered, self._rng, self._last = client, ordered, rng, last
        self._judge, self._loop = client.judge, ordered.host.loop
        self._queues = range(ordered.host.options.queues)
        self._next: dict[int, int] = {}
        """Queue id -> next offset to read, for each queue that the consumer holds."""
        self._rounds = rng.randint(3, 12)

    async def run(self) -> bool:
        """Runs the session. Returns True if this is the `last` consumer, and it holds every queue and has read all of
        them to the end after the senders stopped."""
        client, rng = self._client, self._rng
        while self._goes_on():
            locked_s = self._loop.now
            client.tell_others()
            held = await client.lock(self._queues)
            self._next = {queue_id: offset for queue_id, offset in self._next.items() if queue_id in held}
            while self._loop.now < locked_s + READS_S / 3 and client.connection and not client.connection.closed:
                for queue_id in sorted(held):
                    await self._read(queue_id)
                if self._ordered.stopped and self._last and self._has_all():
                    await client.leave()
                    client.vanish()
                    return True
                await asyncio.sleep(rng.uniform(0.02, 0.1))
            self._rounds -= 1
        await self._end()
        return False

    def _goes_on(self) -> bool:
        connection = self._client.connection
        if connection is None or connection.closed:
            return False
        return self._last if self._ordered.stopped else self._rounds > 0

    def _has_all(self) -> bool:
        ends = self._ordered.ends()
        return all(self._next.get(queue_id, -1) >= ends.get(queue_id, 0) for queue_id in self._queues)

    def _holds(self, queue_id: int) -> bool:
        return self._judge.reader(self._client.queue(queue_id)) == self._client.client_id

    async def _read(self, queue_id: int) -> None:
        """Pulls the next messages of the queue, one after the other, and commits now and then."""
        client = self._client
        if not self._holds(queue_id):
            self._next.pop(queue_id, None)
            return
        if queue_id not in self._next:
            offset = await client.committed(queue_id)
            if offset is None or not self._holds(queue_id):
                return
            self._ordered.order.begins(queue_id, offset)
            self._next[queue_id] = offset
        answer = await client.pull(queue_id, self._next[queue_id], 8)
        if answer is not None and self._holds(queue_id):
            self._take(queue_id, answer)
        if self._rng.random() < 0.3 and self._holds(queue_id):
            await self._commit(queue_id)

    def _take(self, queue_id: int, answer: Answer) -> None:
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self._next[queue_id] = max(self._next[queue_id], int(answer.ext["nextBeginOffset"]))
        elif answer.code == ResponseCode.SUCCESS:
            for message in decode_messages(answer.body):
                self._ordered.order.takes(queue_id, message.queue_offset, self._next[queue_id])
                self._next[queue_id] = message.queue_offset + 1

    async def _commit(self, queue_id: int) -> None:
        offset, order = self._next[queue_id], self._ordered.order
        done = await self._client.commit(queue_id, offset)
        if done and self._holds(queue_id):
            order.committed(queue_id, offset)
        elif done is not False:
            order.asks(queue_id, offset)

    async def _end(self) -> None:
        """Ends the session: the consumer leaves in an orderly way, vanishes, or pauses and then commits too late."""
        client, held = self._client, dict(self._next)
        how = self._rng.choice(("unlock", "leave", "vanish", "late"))
        if how == "late":
            self._judge.stops_reading(client.client_id)
            await asyncio.sleep(TTL_S * self._rng.uniform(0.5, 1.5))
        elif how != "vanish":
            for queue_id in held:
                if self._holds(queue_id):
                    await self._commit(queue_id)
            await (client.unlock(self._queues) if how == "unlock" else client.leave())
        if how == "late":
            for queue_id, offset in held.items():
                self._ordered.order.asks(queue_id, offset)
                await client.commit(queue_id, offset)
        client.vanish()
