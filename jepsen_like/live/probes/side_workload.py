"""The side workload, beside the log workload: a consumer per queue that commits what it read, topics as registers, and
repeated sends.

Every lane is one single-threaded process at a time: it waits for an answer before it continues, and starts again as a
new process after an unknown outcome. Each register has one writer, because a request of RaftMQ's client may be carried
out twice before it is answered.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import random
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any

from jepsen_like.history import HistoryWriter
from jepsen_like.live.probes.repeating_producer import PAUSE_S as REPEAT_PAUSE_S
from jepsen_like.live.probes.repeating_producer import Repeats
from jepsen_like.live.subjects.load_user import REGISTERS as META
from jepsen_like.live.subjects.payload import id_of
from jepsen_like.live.subjects.raftmq_subject import GROUP
from raftmq.client.environment import REAL, with_credentials, with_tls
from raftmq.client.loop_thread import LoopThread
from raftmq.local.http.http_exchange import exchange

if TYPE_CHECKING:
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
    from raftmq.client import AsyncClient

PROCESSES_FROM = 3_000_000
REGISTERS = 2
PULL_MESSAGES = 512
PAUSE_S = 0.1
RESTART_SHARE = 0.02
"""Share of polls after which a consumer dies and another one takes over its queue."""
ANSWER_S = 10.0
EPOCH_OPS = 150
"""Operations on one register before the next one is used, which keeps the search for an order short."""


class SideWorkload:
    """Runs the lanes on a loop of their own. `start` and `stop` are called in the main thread."""

    def __init__(self, subject: RaftMQSubject, history: HistoryWriter, seed: int) -> None:
        self._subject = subject
        self._history = history
        self._rng = random.Random(f"side-{seed}")
        self._numbers = itertools.count(PROCESSES_FROM)
        self._thread = LoopThread()
        self._client: AsyncClient | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._busy = 0
        self.held = False
        """True while no new operation is begun; those in flight go on. Any thread may set it."""
        self.answered = 0
        """The number of operations with an outcome other than unknown."""

    def start(self) -> None:
        """Starts the lanes."""
        self._thread.run(self._start())

    async def _start(self) -> None:
        from raftmq.client import aconnect

        self._client = aconnect(self._subject.servers, **self._subject.load_options)
        loop = asyncio.get_running_loop()
        lanes: list[Coroutine[Any, Any, None]] = [self._consume(queue_id) for queue_id in range(self._subject.queues)]
        lanes += [self._write_register(number) for number in range(REGISTERS)]
        lanes += [self._read_register(number) for number in range(REGISTERS)]
        lanes.append(self._repeat())
        self._epochs = [0] * REGISTERS
        self._tasks = [loop.create_task(lane) for lane in lanes]

    def stop(self) -> None:
        """Waits for the operations in flight; may be called again. Raises an unexpected error of a lane."""
        if self._thread.loop.is_closed():
            return
        try:
            self._thread.run(self._stop())
        finally:
            self._thread.close()

    def abort(self) -> None:
        """Ends at once, with operations in flight; does nothing after `stop`."""
        self._thread.close()

    async def _stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)
        if self._client is not None:
            await self._client.close()

    async def _do(
        self, process: int, f: str, value: dict[str, Any], act: Awaitable[dict[str, Any]], *, writes: bool
    ) -> tuple[int, dict[str, Any] | None]:
        """Does one operation; returns (the process number for the next one, the answer or None). A read that failed
        counts as not happened."""
        while self.held and not self._stopping:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(PAUSE_S)
        self._busy += 1
        try:
            return await self._perform(process, f, value, act, writes=writes)
        finally:
            self._busy -= 1

    @property
    def busy(self) -> int:
        """The number of operations in flight. Any thread may read it."""
        return self._busy

    async def _perform(
        self, process: int, f: str, value: dict[str, Any], act: Awaitable[dict[str, Any]], *, writes: bool
    ) -> tuple[int, dict[str, Any] | None]:
        from raftmq.client.errors import RaftMQError, Unknown

        invoked = self._history.invoke(process, f, value)
        try:
            answer = value | await act
        except (RaftMQError, OSError, TimeoutError) as error:
            if writes and not (isinstance(error, RaftMQError) and not isinstance(error, Unknown)):
                self._history.info(invoked, value | {"error": repr(error)})
                return next(self._numbers), None
            self._history.fail(invoked, value | {"error": str(error)})
            self.answered += 1
            return process, None
        self._history.ok(invoked, answer)
        self.answered += 1
        return process, answer

    # --- consumers ---------------------------------------------------------------------------------------------------

    async def _consume(self, queue_id: int) -> None:
        """Polls, commits, and sometimes dies; the next consumer continues at the committed offset."""
        assert self._client is not None
        place = {"topic": self._subject.topic, "queue_id": queue_id}
        process, consumer, offset = next(self._numbers), f"c{queue_id}.0", 0
        for number in itertools.count(1):
            process, answer = await self._do(
                process,
                "poll",
                {"consumer": consumer, "group": GROUP, **place, "offset": offset},
                self._pull(queue_id, offset),
                writes=False,
            )
            if answer is not None and answer["messages"]:
                offset = answer["messages"][-1][0] + 1
                process, _ = await self._do(
                    process,
                    "commit_offset",
                    {"group": GROUP, **place, "offset": offset},
                    self._commit(queue_id, offset),
                    writes=True,
                )
            if self._stopping:
                return
            if self._rng.random() < RESTART_SHARE:
                process, fetched = await self._do(
                    process, "fetch_offset", {"group": GROUP, **place}, self._fetch(queue_id), writes=False
                )
                if fetched is not None:
                    consumer, offset = f"c{queue_id}.{number}", fetched["offset"] or 0
                    moved = {"consumer": consumer, "group": GROUP, "queues": [[self._subject.topic, queue_id]]}
                    self._history.ok(self._history.invoke(process, "rebalance", moved), moved)
            await asyncio.sleep(PAUSE_S)

    async def _pull(self, queue_id: int, offset: int) -> dict[str, Any]:
        assert self._client is not None
        pulled = await self._client.pull(
            self._subject.topic, queue_id, offset, PULL_MESSAGES, wait_s=0.2, timeout_s=ANSWER_S
        )
        return {"messages": [[message.queue_offset, id_of(message.body)] for message in pulled.messages]}

    async def _commit(self, queue_id: int, offset: int) -> dict[str, Any]:
        assert self._client is not None
        await self._client.admin.commit(GROUP, self._subject.topic, queue_id, offset)
        return {}

    async def _fetch(self, queue_id: int) -> dict[str, Any]:
        assert self._client is not None
        return {"offset": await self._client.admin.committed(GROUP, self._subject.topic, queue_id)}

    # --- sends that come again ---------------------------------------------------------------------------------------

    async def _repeat(self) -> None:
        """Cuts connections behind sends, and repeats the sends."""
        assert self._client is not None
        options = self._subject.load_options
        signs = with_credentials(REAL, options.get("access_key", ""), options.get("secret_key", ""))
        environment = with_tls(signs, options.get("tls"))
        repeats = Repeats(
            environment, self._subject.topic, self._subject.queues, self._history, self._numbers, self._rng
        )
        while not self._stopping:
            await asyncio.sleep(REPEAT_PAUSE_S)
            if self.held or not self._client.view.brokers:
                continue
            self._busy += 1
            try:
                self.answered += await repeats.send(self._client.view.brokers)
            finally:
                self._busy -= 1

    # --- topics as registers -----------------------------------------------------------------------------------------

    def _key(self, number: int) -> str:
        return f"{META}-{number}-{self._epochs[number]}"

    async def _write_register(self, number: int) -> None:
        """Creates the topic with another number of queues, and sometimes deletes it."""
        assert self._client is not None
        admin = self._client.admin
        process, exists = next(self._numbers), False
        for count in itertools.count(1):
            key = self._key(number)
            if exists and self._rng.random() < 0.2:
                process, answer = await self._do(
                    process, "delete", {"key": key}, self._void(admin.delete_topic(key)), writes=True
                )
                exists = answer is None
            else:
                queues = self._rng.randrange(1, 9)
                process, answer = await self._do(
                    process,
                    "put",
                    {"key": key, "value": queues},
                    self._void(admin.create_topic(key, queues)),
                    writes=True,
                )
                exists = exists or answer is not None
            if self._stopping:
                return
            if count % EPOCH_OPS == 0:
                self._epochs[number] += 1
                exists = False
            await asyncio.sleep(PAUSE_S * self._rng.uniform(0.5, 2.0))

    @staticmethod
    async def _void(work: Awaitable[None]) -> dict[str, Any]:
        await work
        return {}

    async def _read_register(self, number: int) -> None:
        """Asks any node; a linearizable answer comes from the leader after a majority has confirmed it."""
        process = next(self._numbers)
        while not self._stopping:
            key = self._key(number)
            node = self._rng.choice(self._subject.nodes)
            process, _ = await self._do(
                process,
                "get",
                {"key": key},
                _get(self._subject.load_address(node), key),
                writes=False,
            )
            await asyncio.sleep(PAUSE_S)


async def _get(address: str, name: str) -> dict[str, Any]:
    return await asyncio.get_running_loop().run_in_executor(None, _get_topic, address, name)


def _get_topic(address: str, name: str) -> dict[str, Any]:
    """Returns the number of queues, or None if there is no such topic. Raises OSError for any other answer."""
    path = f"/v1/topics/{name}?consistency=linearizable"
    try:
        status, body = exchange(address, "GET", path, timeout_s=ANSWER_S, is_page=True)  # not for its queues
        answer = json.loads(body)
        if status == 404 and answer["error"]["code"] == "not_found":
            return {"value": None}
        if status != 200:
            raise OSError(f"status {status}: {answer['error']['message']}")
        return {"value": answer["topic"]["write_queues"]}
    except (http.client.HTTPException, ValueError, KeyError) as error:
        raise OSError(f"not understood: {error}") from None
