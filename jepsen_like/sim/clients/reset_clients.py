"""Resets of a group's offsets while it consumes (docs/adr/0053): each reset must hold until the consumer knows of it.

One consumer pulls, commits in every way that the protocol has, loses its connection or its memory and comes back,
sometimes late. At the same time an operator resets its queues, now and then just as the consumer follows the previous
reset. From the answer to a reset until a pull from its offset, the committed offset is that of the reset, whatever the
consumer commits. After that pull it may also be an offset that was committed since the reset. In the end every reset
has been followed, the consumer is at the end of every queue, and its commits count again.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from jepsen_like.client_kit.fields import foreign_send, place_of, pull_fields
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import FULL, SEND_CODE, ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker, ask
from raftmq.client.message import decode_messages
from raftmq_wire.codes import RequestCode, ResponseCode

GROUP, TOPIC, QUEUES = "reset", "resets", 3
ANSWER_LOST = 0.3
"""Share (0 to 1) of the answers that move the consumer to another offset (PULL_OFFSET_MOVED) which it does not get to
read, because its connection ends first."""
CORRECTED = 0.6
"""Share (0 to 1) of the PULL_OFFSET_MOVED answers that the consumer does read, after which the queue is reset once more
while the consumer pulls from the new offset."""
COMMITS_ALONG = 1
"""Bit of a pull's sysFlag that says that the pull also commits an offset."""


class Reset(NamedTuple):
    """One reset as its operator sees it: the offset, and the times in seconds of request and answer."""

    offset: int
    asked_s: float
    answered_s: float


class ResetJudge:
    """Knows which committed offsets a read of each queue may return, and reports others under `resets`.

    A queue with an unanswered reset is not judged any more: that reset may be carried out at any time.
    """

    def __init__(self, report: Report, now: Callable[[], float]) -> None:
        self._report, self._now = report, now
        self._asking: dict[int, float] = {}
        """Queue -> time in seconds at which its reset that is in flight was sent."""
        self._last: dict[int, Reset] = {}
        self.unsure: set[int] = set()
        self._committed: dict[int, list[tuple[float, int]]] = defaultdict(list)
        """Queue -> (time in seconds, offset) of every commit that was sent."""
        self._doubtful: dict[int, set[int]] = defaultdict(set)
        """Queue -> offsets of commits that may still be carried out."""
        self._pulled: dict[int, dict[int, float]] = defaultdict(dict)
        """Queue -> offset -> time in seconds at which the last pull from it was answered; infinity while there is no
        answer."""

    # --- the operator ------------------------------------------------------------------------------------------------

    def may_ask(self, queue: int) -> bool:
        """Returns True if the queue's next reset can be judged: no other reset of it is in flight or undecided."""
        return queue not in self._asking and queue not in self.unsure

    def asks(self, queue: int) -> None:
        """Records that a reset of the queue is about to be sent."""
        self._asking[queue] = self._now()

    def answered(self, queue: int, offset: int, *, done: bool, undecided: bool) -> None:
        """Records the outcome of the reset: done, undecided (no clear answer), or neither if it was refused."""
        asked_s = self._asking.pop(queue)
        if done:
            self._last[queue] = Reset(offset, asked_s, self._now())
        elif undecided:
            self.unsure.add(queue)

    # --- the consumer ------------------------------------------------------------------------------------------------

    def pulls(self, queue: int, offset: int) -> None:
        """Records that a pull from this offset is about to be sent. If the offset is that of a reset, the reset may end
        from now on."""
        self._pulled[queue][offset] = math.inf

    def pulled(self, queue: int, offset: int) -> None:
        """Records that the pull from this offset was answered."""
        self._pulled[queue][offset] = self._now()

    def commits(self, queue: int, offset: int) -> None:
        """Records that a commit is about to be sent."""
        self._committed[queue].append((self._now(), offset))

    def doubtful(self, queue: int, offset: int) -> None:
        """Records that a commit has no answer, and may be carried out at any time."""
        self._doubtful[queue].add(offset)

    def read(self, queue: int, asked_s: float, offset: int | None) -> None:
        """Checks the committed offset that was read; None means that the group has none."""
        reset = self._not_followed(queue, asked_s)
        if reset is not None:
            if offset != reset.offset:
                what = f"queue {queue} was reset to {reset.offset}, nobody pulled from there"
                self._report("resets", f"{what}, and offset {offset} is committed")
            return
        reset = self._sure(queue, asked_s)
        if reset is not None:
            since = {at for when, at in self._committed[queue] if when >= reset.asked_s}
            if offset != reset.offset and offset not in since | self._doubtful[queue]:
                self._report("resets", f"queue {queue} was reset to {reset.offset}, and has offset {offset}")

    def _sure(self, queue: int, asked_s: float) -> Reset | None:
        """Returns the reset that was the last one of the queue from `asked_s` until now; None if that is not
        certain."""
        reset = self._last.get(queue)
        if reset is None or queue in self.unsure or queue in self._asking or reset.answered_s > asked_s:
            return None
        return reset

    def _not_followed(self, queue: int, asked_s: float) -> Reset | None:
        """Returns the reset that `_sure` returns, if no pull from its offset has come since it was sent; else None."""
        reset = self._sure(queue, asked_s)
        return reset if reset and self._pulled[queue].get(reset.offset, -math.inf) < reset.asked_s else None

    def ended(self) -> None:
        """Reports every reset that no pull has followed, once the consumer is at the end of every queue."""
        for queue in self._last:
            reset = self._not_followed(queue, self._now())
            if reset is not None:
                self._report("resets", f"queue {queue} was reset to {reset.offset}, and nobody was told")


class Resets(Asker):
    """A producer, an operator and the consumer of GROUP. After `stopped` is set, they end once every reset has
    ended."""

    def __init__(
        self, host: ClientHost, report: Report, ends: Callable[[str, int], int], pending: Callable[[str], int]
    ) -> None:
        """`ends(topic, queue)`: returns the offset after the last message that any node has. `pending(group)`: returns
        how many resets of the group any node has."""
        super().__init__(host, report)
        self._ends, self._pending = ends, pending
        self.judge = ResetJudge(report, lambda: host.loop.now)
        self._next: dict[int, int] = {}
        self._sent = 0

    def start(self) -> None:
        """Starts producer, operator and consumer as tasks."""
        for work in (self._produce, self._operate, self._consume):
            self._spawn(partial(work, random.Random(self.rng.random())))

    async def _produce(self, rng: random.Random) -> None:
        async def send(connection: RawConnection) -> None:
            self._sent += 1
            message_id = f"again-{self._sent}"
            fields = foreign_send(TOPIC, message_id, rng.randrange(QUEUES), FULL)
            await self._ask(connection, SEND_CODE, fields, self.host.body(TOPIC, message_id, 5))

        await self._in_turns(rng, (0.01, 0.1), 0.0, "a producer of what is read again", send)

    # --- the operator ------------------------------------------------------------------------------------------------

    async def _operate(self, rng: random.Random) -> None:
        connection: RawConnection | None = None
        while not self.stopped:
            await asyncio.sleep(rng.choice((0.02, 0.05, 0.2)))
            queue = rng.randrange(QUEUES)
            if connection is None or connection.closed:
                connection = await self._dial(rng, "an operator of resets")
            if connection is None or not self.judge.may_ask(queue):
                continue
            if rng.random() < 0.5:
                await self._reset(connection, queue, rng.randrange(self._ends(TOPIC, queue) + 1))
                await asyncio.sleep(rng.choice((0.0, 0.05, 0.2)))
            await self._look(connection, queue)

    async def _look(self, connection: RawConnection, queue: int) -> None:
        asked_s = self.host.loop.now
        known, offset = await committed(self.host, connection, GROUP, TOPIC, queue)
        if known:
            self.judge.read(queue, asked_s, offset)

    async def corrects(self, queue: int, rng: random.Random, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Resets the queue once more while `meanwhile` runs, unless a reset is in flight; then reads and judges the
        offset."""
        connection = await self._dial(rng, "an operator who corrects himself")
        if connection is not None and self.judge.may_ask(queue):
            offset = rng.randrange(self._ends(TOPIC, queue) + 1)
            await asyncio.gather(self._reset(connection, queue, offset), meanwhile())
            await self._look(connection, queue)
        if connection is not None:
            connection.transport.abort()

    async def _reset(self, connection: RawConnection, queue: int, offset: int) -> None:
        self.judge.asks(queue)
        fields = {
            "topic": TOPIC,
            "group": GROUP,
            "timestamp": "0",
            "isForce": "true",
            "queueId": str(queue),
            "offset": str(offset),
        }
        answer = await self._ask(connection, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        refused = answer is not None and answer.code not in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        done = answer is not None and answer.code == ResponseCode.SUCCESS
        self.judge.answered(queue, offset, done=done, undecided=not refused)

    # --- the consumer ------------------------------------------------------------------------------------------------

    async def _consume(self, rng: random.Random) -> None:
        at_end = False
        while not at_end:
            connection = await self._dial(rng, "a consumer that is reset")
            if connection is not None:
                if rng.random() < 0.5:
                    self._next = {}  # a new process, which begins at the committed offset
                session = ResetSession(self, connection, rng)
                await session.run()
                at_end = self.finished() and await session.commits_the_end()
                connection.transport.abort()
            await asyncio.sleep(rng.choice((0.02, 0.3, 1.0)))
        self.judge.ended()

    def _all_read(self) -> bool:
        ends = all(self._next.get(queue, -1) >= self._ends(TOPIC, queue) for queue in range(QUEUES))
        return ends and not self._pending(GROUP)

    def finished(self) -> bool:
        """Returns True if everything is read, and only the consumer is left: nothing is sent or reset any more."""
        return self._left == 1 and self._all_read()

    @property
    def positions(self) -> dict[int, int]:
        """Queue -> offset that the consumer reads next, for the queues that it has begun."""
        return self._next


class ResetSession:
    """The consumer on one connection, until that connection ends."""

    def __init__(self, resets: Resets, connection: RawConnection, rng: random.Random) -> None:
        self._all, self._connection, self._rng = resets, connection, rng
        self._host, self._judge, self._next = resets.host, resets.judge, resets.positions
        self._oneway: list[tuple[int, int]] = []
        """(queue, offset) of commits without an answer of their own (oneway, or with a pull) since the last commit that
        was answered. Earlier ones are done, because the commits of a connection keep their order.
        """

    async def run(self) -> None:
        """Reads the queues for 3 to 40 rounds, or until the connection ends or everything is finished."""
        rng = self._rng
        for _ in range(rng.randint(3, 40)):
            for queue in range(QUEUES):
                await self._round(queue)
            await asyncio.sleep(rng.choice((0.01, 0.05, 0.3)))
            if self._connection.closed or self._all.finished():
                break
        for queue, offset in self._oneway:
            self._judge.doubtful(queue, offset)

    async def commits_the_end(self) -> bool:
        """Commits the position of every queue and reads it back; returns True if every commit is found."""
        for queue, offset in self._next.items():
            self._judge.commits(queue, offset)
            fields = place_of(GROUP, TOPIC, queue) | {"commitOffset": str(offset)}
            await ask(self._host, self._connection, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            if await committed(self._host, self._connection, GROUP, TOPIC, queue) != (True, offset):
                return False
        return True

    async def _round(self, queue: int) -> None:
        if queue not in self._next:
            asked_s = self._host.loop.now
            known, offset = await committed(self._host, self._connection, GROUP, TOPIC, queue)
            if not known:
                return
            self._judge.read(queue, asked_s, offset)
            self._next[queue] = offset or 0
        along = await self._commit(queue) if self._rng.random() < 0.5 else False
        await self._pull(queue, along=along)

    async def _commit(self, queue: int) -> bool:
        """Commits the consumer's position in the queue; returns True if the next pull is to carry the commit."""
        how, offset = self._rng.choice(("answered", "answered", "oneway", "pull")), self._next[queue]
        self._judge.commits(queue, offset)
        if how == "pull":
            self._oneway.append((queue, offset))
            return True
        fields = place_of(GROUP, TOPIC, queue) | {"commitOffset": str(offset)}
        if how == "oneway":
            self._oneway.append((queue, offset))
            self._connection.write(self._connection.frame(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True))
            return False
        answer = await ask(self._host, self._connection, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self._judge.doubtful(queue, offset)
        else:
            self._oneway.clear()
        return False

    async def _pull(self, queue: int, *, along: bool) -> None:
        offset = self._next[queue]
        fields = pull_fields(GROUP, TOPIC, queue, offset)
        if along:
            fields |= {"sysFlag": str(4 | COMMITS_ALONG), "commitOffset": str(offset)}
        self._judge.pulls(queue, offset)
        answer = await ask(self._host, self._connection, RequestCode.PULL_MESSAGE, fields)
        if answer is None:
            return
        self._judge.pulled(queue, offset)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            if self._rng.random() < ANSWER_LOST:
                self._connection.transport.abort()
                return
            self._next[queue] = int(answer.ext["nextBeginOffset"])
            if self._rng.random() < CORRECTED and not self._all.stopped:
                await self._all.corrects(queue, self._rng, partial(self._follow, queue))
        elif answer.code == ResponseCode.SUCCESS:
            self._next[queue] = max([offset, *(message.queue_offset + 1 for message in decode_messages(answer.body))])

    async def _follow(self, queue: int) -> None:
        """Pulls from the offset of a reset, at about the time that another reset is proposed, and commits what it has
        read."""
        await asyncio.sleep(self._rng.choice((0.0, 0.002, 0.005)))
        await self._pull(queue, along=False)
        await self._commit(queue)


async def committed(
    host: ClientHost, connection: RawConnection, group: str, topic: str, queue_id: int
) -> tuple[bool, int | None]:
    """Asks for the group's committed offset. Returns (True, the offset), (True, None) if the group has none, or (False,
    None) if the question was refused or not answered."""
    fields = place_of(group, topic, queue_id) | {"setZeroIfNotFound": "false"}
    answer = await ask(host, connection, RequestCode.QUERY_CONSUMER_OFFSET, fields)
    if answer is None or answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
        return False, None
    return True, int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else None
