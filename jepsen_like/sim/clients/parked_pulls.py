"""Pulls that are parked on topics which are created, deleted and written to during the wait, and requests about queues
that do not exist.

During the faults only the answers that come are judged. After the heal every pull must have its answer once its parking
time is over, whatever became of its topic.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from functools import partial

from jepsen_like.client_kit.fields import foreign_send, group_body, place_of, pull_fields, topic_fields
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection, UnansweredRequest
from jepsen_like.sim.clients.single_request import Asker
from raftmq_wire.codes import RequestCode, ResponseCode

GROUP = "waiters"
SUSPEND_MS = (300, 1000, 6000, 6000)
"""Times in milliseconds for which a pull may be parked. A node checks parked pulls again every 5 s
(`long_poll.RECHECK_MS`)."""
STORIES_MAX = 3
"""The most stories (one topic with its pulls or requests) that are in progress at the same time."""
ABSENT = (
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
)
"""Requests that must fail for a queue that the topic does not have."""


class Waits(Asker):
    """Plays stories, each with a topic of its own and pulls or requests about it. Setting `stopped` ends it after the
    stories that have begun; then `unanswered` must be empty."""

    def __init__(self, host: ClientHost, report: Report) -> None:
        super().__init__(host, report)
        self.connections: list[RawConnection] = []
        self._busy = 0
        self._topics = 0

    @property
    def done(self) -> bool:
        """True if the client is stopped and no story is in progress."""
        return self.stopped and not self._busy

    def unanswered(self) -> list[tuple[str, UnansweredRequest]]:
        """Returns the requests without an answer on working connections, each with the name of its connection."""
        self.connections = [one for one in self.connections if not one.closed and one.unanswered]
        return [(one.name, asked) for one in self.connections for asked in one.overdue(math.inf)]

    async def _work(self) -> None:
        while not self.stopped:
            await asyncio.sleep(self.rng.uniform(0.1, 0.8))
            if self._busy < STORIES_MAX:
                self._busy += 1
                self.host.spawn(partial(self._story, random.Random(self.rng.random())))

    async def _story(self, rng: random.Random) -> None:
        self._topics += 1
        topic, queues = f"waits-{self._topics}", rng.randint(1, 3)
        try:
            connection = await self._dial(rng, f"waits for {topic}")
            if connection is not None and await self._make(connection, topic, queues):
                story = rng.choice((self._parked, self._parked, self._absent))
                await story(rng, connection, topic, queues)
                connection.transport.close()
        finally:
            self._busy -= 1

    async def _make(self, connection: RawConnection, topic: str, queues: int) -> bool:
        answer = await self._ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queues))
        return answer is not None and answer.code == ResponseCode.SUCCESS

    # --- pulls that wait ---------------------------------------------------------------------------------------------

    async def _parked(self, rng: random.Random, connection: RawConnection, topic: str, queues: int) -> None:
        mine: list[RawConnection] = []
        for _ in range(rng.randint(1, 4)):
            reader = await self._dial(rng, f"a pull of {topic}")
            if reader is not None:
                self._pull(reader, topic, rng.randrange(queues), rng.choice(SUSPEND_MS))
                mine.append(reader)
        self.connections += mine
        await asyncio.sleep(rng.uniform(0.0, 0.3))
        await rng.choice(self._fates())(rng, connection, topic, queues)
        for _ in range(20):
            await asyncio.sleep(0.25)
            for reader in [reader for reader in mine if not reader.closed and not reader.unanswered]:
                reader.transport.close()
                mine.remove(reader)
            if not mine:
                return

    @staticmethod
    def _pull(connection: RawConnection, topic: str, queue: int, suspend_ms: int) -> None:
        ext = pull_fields(GROUP, topic, queue, suspend_ms=suspend_ms)
        connection.write(connection.frame(RequestCode.PULL_MESSAGE, ext, parked_s=suspend_ms / 1000))

    def _fates(self) -> tuple[Callable[[random.Random, RawConnection, str, int], Awaitable[None]], ...]:
        return (self._nothing, self._goes, self._goes, self._comes_again, self._grows)

    async def _nothing(self, rng: random.Random, connection: RawConnection, topic: str, queues: int) -> None:
        return

    async def _goes(self, rng: random.Random, connection: RawConnection, topic: str, queues: int) -> None:
        await self._ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    async def _comes_again(self, rng: random.Random, connection: RawConnection, topic: str, queues: int) -> None:
        await self._goes(rng, connection, topic, queues)
        await self._make(connection, topic, queues)

    async def _grows(self, rng: random.Random, connection: RawConnection, topic: str, queues: int) -> None:
        for queue in range(queues):
            await self._ask(
                connection, SEND_CODE, foreign_send(topic, f"{topic}-{queue}", queue), self.host.body(topic, "w", 9)
            )

    # --- queues that do not exist -------------------------------------------------------------------------------------

    async def _absent(self, rng: random.Random, connection: RawConnection, topic: str, queues: int) -> None:
        await self._ask(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_body(GROUP))
        for code in rng.sample(ABSENT, len(ABSENT)):
            queue = queues + rng.choice((0, 0, 1, 1000))
            fields = place_of(GROUP, topic, queue) | {"commitOffset": "1"}
            answer = await self._ask(connection, code, fields)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                what = f"code {int(code)} for queue {queue} of {topic}, which has {queues}"
                self._report("answers", f"{what}, is answered as done: {answer.ext}")
