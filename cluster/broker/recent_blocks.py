"""Blocks of consume queues that were read lately: whoever reads a queue in order needs each of them several times.

A closed block never changes, a topic's id is never used again, and who asks has just looked up the queue's bounds: so
nothing here becomes wrong. Rows that were trimmed since lead to log that is gone, as rows read a moment earlier do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statemachine.consume_queue import BLOCK
from statemachine.payload import ITEM

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState

BLOCKS_MAX = 512
"""4 MiB. Beyond, the one that was read first goes: a reader is done with it, unless more queues are read at once."""


class RecentBlocks:
    """By topic, queue and first offset. Event loop only."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._blocks: dict[tuple[int, int, int], bytes] = {}

    def between(self, topic_id: int, queue_id: int, start: int, end: int, high: int) -> bytes:
        """The packed items (`payload.ITEM`) with start <= queue_offset < end, where the caller has just seen that the
        queue has these, and ends at `high`; b"" if the first was trimmed since."""
        base = start - start % BLOCK
        if end <= base + BLOCK <= high and (rows := self._closed(topic_id, queue_id, base)):
            return rows[(start - base) * ITEM.size : (end - base) * ITEM.size]
        return self._state.fetch_packed(topic_id, queue_id, start, end - start)

    def _closed(self, topic_id: int, queue_id: int, base: int) -> bytes:
        """The block that begins at `base`; b"" if its first rows are gone."""
        name = (topic_id, queue_id, base)
        rows = self._blocks.get(name)
        if rows is None:
            rows = self._state.fetch_packed(topic_id, queue_id, base, BLOCK)
            if rows:
                if len(self._blocks) >= BLOCKS_MAX:
                    del self._blocks[next(iter(self._blocks))]
                self._blocks[name] = rows
        return rows
