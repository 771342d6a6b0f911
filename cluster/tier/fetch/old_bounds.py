"""Bounds of queues by time in the tier, from its index files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cluster.tier.fetch.errors import NotTieredError
from cluster.tier.fetch.tier_queues import TierQueues
from cluster.tier.store.errors import StoreError
from statemachine.payload import ITEM

logger = logging.getLogger(__name__)

Queue = tuple[int, int]
Told = Callable[[int | Exception | None], None]


class OldBoundReads:
    """Implements `cluster.broker.old_bounds.OldBounds`. Event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queues: TierQueues) -> None:
        self._loop = loop
        self._queues = queues
        self._tasks: set[asyncio.Task[None]] = set()

    def offset_by_time(self, queue: Queue, time_ms: int, done: Told) -> None:
        """See OldBounds."""
        self._start(lambda: self._queues.offset_by_time(*queue, time_ms), done)

    def earliest_store_ms(self, queue: Queue, done: Told) -> None:
        """See OldBounds."""
        self._start(lambda: self._first_ms(queue), done)

    async def close(self) -> None:
        """Gives up what is under way: nobody is answered any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _first_ms(self, queue: Queue) -> int | None:
        try:
            items = await self._queues.items(*queue, 0, 1)
        except NotTieredError:
            return None
        store_ms: int = ITEM.unpack(items.packed)[4]
        return store_ms

    def _start(self, look: Callable[[], Awaitable[int | None]], done: Told) -> None:
        async def answer() -> None:
            found: int | Exception | None
            try:
                found = await self._queues.beside_trims(look)
            except StoreError as error:
                logger.warning("tier: a search by time: %s", error)
                found = error
            done(found)

        task = self._loop.create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
