"""Pages of a queue that the nodes have no more, for people: single messages, each with what is wrong with it."""

from __future__ import annotations

from cluster.broker.message_lookup import BYTES_MAX
from cluster.broker.old_pages import OldPage
from cluster.tier.fetch.errors import DamagedError, NotTieredError
from cluster.tier.fetch.tier_log import TierLog
from cluster.tier.fetch.tier_queues import Items, TierQueues
from statemachine.payload import ITEM


class OldPageReads:
    """Implements `cluster.broker.old_pages.OldPages`. Event loop only."""

    def __init__(self, queues: TierQueues, log: TierLog) -> None:
        self._queues = queues
        self._log = log

    async def page(self, topic_id: int, queue_id: int, offset: int, stop: int, count: int) -> OldPage:
        """See OldPages. Raises StoreError."""
        return await self._queues.beside_trims(lambda: self._page(topic_id, queue_id, offset, stop, count))

    async def _page(self, topic_id: int, queue_id: int, offset: int, stop: int, count: int) -> OldPage:
        found = OldPage([], offset, [])
        while offset < stop and len(found.messages) + len(found.unreadable) < count:
            wanted = min(stop - offset, count - len(found.messages) - len(found.unreadable))
            try:
                items = await self._queues.items(topic_id, queue_id, offset, wanted)
            except NotTieredError:
                return found._replace(next_offset=stop)  # trimmed, up to what the nodes have
            if items.first_offset >= stop:
                return found._replace(next_offset=stop)
            offset = await self._read(items, stop, found)
            found = found._replace(next_offset=offset)
            if _size(found) > BYTES_MAX:
                break
        return found

    async def _read(self, items: Items, stop: int, found: OldPage) -> int:
        """Adds these messages, but for those from `stop` on, until `found` has more than BYTES_MAX; the offset behind
        the last."""
        for number, offset in enumerate(range(items.first_offset, min(items.next_offset, stop))):
            try:
                one = await self._log.messages(items.packed[number * ITEM.size : (number + 1) * ITEM.size])
            except DamagedError:
                found.unreadable.append(offset)
            else:
                found.messages.append(one.body)
                if _size(found) > BYTES_MAX:
                    return offset + 1
        return min(stop, items.next_offset)


def _size(found: OldPage) -> int:
    return sum(map(len, found.messages))
