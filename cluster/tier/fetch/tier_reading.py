"""Everything that one node reads from the tier with, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.runtime.work import Turns
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.fetch.old_messages import OldReads
from cluster.tier.fetch.old_pages import OldPageReads
from cluster.tier.fetch.range_cache import RangeCache
from cluster.tier.fetch.tier_log import OtherSource, TierLog
from cluster.tier.fetch.tier_queues import TierQueues
from cluster.tier.store.object_store import ObjectStore
from statemachine.tier import Rows


class TierReading:
    """Event loop only. The store is the caller's to close."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: ObjectStore,
        folder: str,
        rows: Callable[[], Rows],
        cache: RangeCache | None,
        elsewhere: OtherSource | None = None,
        turns: Turns | None = None,
        where: Callable[[str], str] = str,
    ) -> None:
        """See TierLog. `turns`: see OldReads; `where`: see ObjectReads."""
        self.cache = cache
        self.reads = ObjectReads(store, cache, where=where)
        self.log = TierLog(self.reads, rows, folder, elsewhere)
        self.queues = TierQueues(self.reads, rows, folder)
        self.old = OldReads(loop, self.queues, self.log, self.reads, turns)
        self.pages = OldPageReads(self.queues, self.log)

    async def open(self) -> None:
        """Before the first read."""
        if self.cache is not None:
            await self.cache.open()

    async def close(self) -> None:
        """Gives up what is under way."""
        await self.old.close()
        await self.reads.close()
        if self.cache is not None:
            self.cache.close()
