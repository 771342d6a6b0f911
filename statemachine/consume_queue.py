"""Consume queues: chunks of 32-byte items, and where each queue ends.

What one entry adds to a queue becomes one chunk, cut at multiples of BLOCK offsets. The entry that completes an aligned
block of BLOCK offsets replaces the block's chunks by one. So a chunk never crosses a block, and the rows depend on the
log alone, not on how entries were grouped into runs.
"""

from __future__ import annotations

from collections import OrderedDict

from raftlog.errors import InvariantViolationError
from statemachine import keys, query
from statemachine.kv import CQ, KV
from statemachine.payload import ITEM
from statemachine.stage import Stage

BLOCK = 256
"""Offsets per aligned chunk: 8 KiB of items."""
TAILS_MAX = 2048
"""Open blocks kept in memory, at most 8 KiB each; one that is absent is read back from the store."""

_LAST_IN_BLOCK = BLOCK - 1
_ITEM_SIZE = ITEM.size

Queue = tuple[int, int]
"""(topic_id, queue_id)."""


class _Tail:
    """Where a queue ends and the chunks of its open block, as (base offset, items)."""

    __slots__ = ("next_offset", "pieces")

    def __init__(self, next_offset: int, pieces: list[tuple[int, bytes]]) -> None:
        self.next_offset = next_offset
        self.pieces = pieces


class ConsumeQueues:
    """All queues. Only `max_offset` may be called outside the apply lane."""

    def __init__(self, kv: KV, tails_max: int = TAILS_MAX) -> None:
        self._kv = kv
        self._tails_max = tails_max
        self._tails: OrderedDict[Queue, _Tail] = OrderedDict()
        self._touched: dict[Queue, _Tail] = {}
        self._dropped: set[int] = set()
        self._ends: dict[Queue, int] = {}

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        """The next offset of the queue, 0 if it has none. Every row below can be read by then.

        Derived from the last chunk when first asked for. `setdefault` keeps what the apply lane published meanwhile,
        which is never lower.
        """
        queue = (topic_id, queue_id)
        end = self._ends.get(queue)
        if end is None:
            end = self._ends.setdefault(queue, query.end_offset(self._kv, topic_id, queue_id))
        return end

    def append(self, stage: Stage, topic_id: int, queue_id: int, base: int, count: int, items: bytes) -> None:
        """Adds `count` packed items at offset `base`. Raises InvariantViolationError unless that is the next one."""
        queue = (topic_id, queue_id)
        tail = self._tails.get(queue)
        if tail is None:
            tail = self._tails[queue] = self._load(topic_id, queue_id)
        if base != tail.next_offset or count < 1:
            raise InvariantViolationError(
                f"{count} rows at offset {base} of queue {queue_id} of topic {topic_id}, which ends at "
                f"{tail.next_offset}"
            )
        rows, before = stage.rows[CQ], stage.before[CQ]
        end = base + count
        at = base
        while at < end:
            stop = min(end, (at | _LAST_IN_BLOCK) + 1)
            piece = items if stop - at == count else items[(at - base) * _ITEM_SIZE : (stop - base) * _ITEM_SIZE]
            if stop & _LAST_IN_BLOCK:
                key = keys.cq_key(topic_id, queue_id, at)
                rows[key] = piece
                before.setdefault(key, None)
                tail.pieces.append((at, piece))
            else:
                self._close_block(stage, queue, tail, at, piece)
            at = stop
        tail.next_offset = end
        self._touched[queue] = tail

    def delete_topic(self, stage: Stage, topic_id: int) -> None:
        """Forgets every row of the topic, whose id is never used again."""
        stage.delete_range(CQ, *keys.cq_topic_range(topic_id))
        self._dropped.add(topic_id)
        for queue in [queue for queue in self._tails if queue[0] == topic_id]:
            del self._tails[queue]
            self._touched.pop(queue, None)

    def publish(self) -> set[Queue]:
        """Shows the run's new ends to readers, called when its batch is written; returns the queues that grew."""
        touched = self._touched
        self._touched = {}
        for queue, tail in touched.items():
            self._ends[queue] = tail.next_offset
            self._tails.move_to_end(queue)
        if self._dropped:
            for queue in [queue for queue in list(self._ends) if queue[0] in self._dropped]:
                self._ends.pop(queue, None)
            self._dropped = set()
        while len(self._tails) > self._tails_max:
            self._tails.popitem(last=False)
        return set(touched)

    def _close_block(self, stage: Stage, queue: Queue, tail: _Tail, at: int, piece: bytes) -> None:
        block = at & ~_LAST_IN_BLOCK
        before = stage.before[CQ]
        for base, items in tail.pieces:
            key = keys.cq_key(*queue, base)
            before.setdefault(key, items)
            if base != block:
                stage.unput(CQ, key)
        key = keys.cq_key(*queue, block)
        before.setdefault(key, None)
        stage.rows[CQ][key] = b"".join([*(items for _, items in tail.pieces), piece])
        tail.pieces = []

    def _load(self, topic_id: int, queue_id: int) -> _Tail:
        """The tail as the store has it. Right within a run too: tails it touched stay until it is written."""
        end = query.end_offset(self._kv, topic_id, queue_id)
        block = end & ~_LAST_IN_BLOCK
        rows = self._kv.scan(CQ, keys.cq_key(topic_id, queue_id, block), keys.cq_key(topic_id, queue_id, end))
        return _Tail(end, [(keys.cq_base(key), value) for key, value in rows])
