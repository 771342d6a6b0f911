"""Lanes: clients on one loop in one thread, each of which is one single-threaded process of the history at a time.

A lane waits for an answer before it continues, and starts again as a new process after an unknown outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any

from jepsen_like.history import HistoryWriter
from jepsen_like.live.subjects.payload import id_of
from raftmq.client.loop_thread import LoopThread

if TYPE_CHECKING:
    from raftmq.client import AsyncClient
    from raftmq.local.local_users import ClientOptions

PULL_MESSAGES = 512
PAUSE_S = 0.1
RESTART_SHARE = 0.02
"""Share of polls after which a consumer dies and another one takes over its queue."""
ANSWER_S = 10.0


class Lanes:
    """Runs lanes that share a client on an event loop in another thread. `start`, `add` and `stop` are called in the
    main thread."""

    def __init__(self, history: HistoryWriter, rng: random.Random, first_process: int) -> None:
        """`first_process`: the first of the process numbers that belong to these lanes."""
        self._history = history
        self._rng = rng
        self._numbers = itertools.count(first_process)
        self._thread = LoopThread()
        self._client: AsyncClient | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._busy = 0
        self.held = False
        """True while no new operation is begun; those in flight go on. Any thread may set it."""
        self.answered = 0
        """The number of operations with an outcome other than unknown."""

    def _connect(self, servers: str, options: ClientOptions) -> None:
        """Makes the client."""

        async def connected() -> AsyncClient:
            from raftmq.client import aconnect

            return aconnect(servers, **options)

        self._client = self._thread.run(connected())

    def add(self, *lanes: Coroutine[Any, Any, None]) -> None:
        """Starts these lanes in addition to those that run."""

        async def begun() -> None:
            loop = asyncio.get_running_loop()
            self._tasks += [loop.create_task(lane) for lane in lanes]

        self._thread.run(begun())

    def stop(self) -> None:
        """Waits for the operations in flight; may be called again. Raises an unexpected error of a lane."""
        if self._thread.loop.is_closed():
            return
        try:
            self._thread.run(self._stop())
        finally:
            self._thread.close()

    def abort(self) -> None:
        """Stops at once, with operations in flight; does nothing after `stop`."""
        self._thread.close()

    async def _stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)
        if self._client is not None:
            await self._client.close()

    async def _do(
        self, process: int, f: str, value: dict[str, Any], act: Awaitable[dict[str, Any]], *, writes: bool
    ) -> tuple[int, dict[str, Any] | None]:
        """Does one operation and records it in the history. Returns (the process number for the next operation, the
        answer; None if it failed or its outcome is unknown). A read without an answer is recorded as failed.
        """
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

    async def consume(self, group: str, topic: str, queue_id: int, name: str = "c") -> None:
        """Polls, commits, and sometimes dies; the next consumer continues at the committed offset. `name`: the names of
        consumers begin with it."""
        place = {"topic": topic, "queue_id": queue_id}
        process, consumer, offset = next(self._numbers), f"{name}{queue_id}.0", 0
        for number in itertools.count(1):
            process, answer = await self._do(
                process,
                "poll",
                {"consumer": consumer, "group": group, **place, "offset": offset},
                self._pull(topic, queue_id, offset),
                writes=False,
            )
            if answer is not None and answer["messages"]:
                offset = answer["messages"][-1][0] + 1
                process, _ = await self._do(
                    process,
                    "commit_offset",
                    {"group": group, **place, "offset": offset},
                    self._commit(group, topic, queue_id, offset),
                    writes=True,
                )
            if self._stopping or self._is_over(topic, queue_id):
                return
            if self._rng.random() < RESTART_SHARE:
                process, fetched = await self._do(
                    process,
                    "fetch_offset",
                    {"group": group, **place},
                    self._fetch(group, topic, queue_id),
                    writes=False,
                )
                if fetched is not None:
                    consumer, offset = f"{name}{queue_id}.{number}", fetched["offset"] or 0
                    moved = {"consumer": consumer, "group": group, "queues": [[topic, queue_id]]}
                    self._history.ok(self._history.invoke(process, "rebalance", moved), moved)
            await asyncio.sleep(PAUSE_S)

    def _is_over(self, topic: str, queue_id: int) -> bool:
        """Returns True if the queue is no longer to be consumed."""
        return False

    async def _pull(self, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
        assert self._client is not None
        pulled = await self._client.pull(topic, queue_id, offset, PULL_MESSAGES, wait_s=0.2, timeout_s=ANSWER_S)
        return {"messages": [[message.queue_offset, id_of(message.body)] for message in pulled.messages]}

    async def _commit(self, group: str, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
        assert self._client is not None
        await self._client.admin.commit(group, topic, queue_id, offset)
        return {}

    async def _fetch(self, group: str, topic: str, queue_id: int) -> dict[str, Any]:
        assert self._client is not None
        return {"offset": await self._client.admin.committed(group, topic, queue_id)}
