"""Reads of the consume queues, straight from the store: safe beside the apply lane.

Chunks are merged during reads. A reader that finds a hole where a chunk was replaced reads again, once, because the
merged chunk never changes after that. Chunks are trimmed, too; the queue's bounds change in the same batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from raftlog.errors import InvariantViolationError
from statemachine import keys
from statemachine.kv import CQ, KV
from statemachine.payload import ITEM

_ITEM_SIZE = ITEM.size


class QueueItem(NamedTuple):
    """One message of a queue: its position in the log, and the checksum that proves it intact."""

    queue_offset: int
    position: int
    """Logical byte offset of the message's first byte."""
    size: int
    """Bytes of the stored message."""
    crc32c: int
    tag_hash: int
    """Java hash of the TAGS property, 0 without one."""
    store_time_ms: int


def end_offset(kv: KV, topic_id: int, queue_id: int) -> int:
    """The offset after the queue's last row. Without rows: the end of the trimmed part, 0 if it never had one."""
    first, last = keys.cq_key(topic_id, queue_id, 0), keys.cq_key(topic_id, queue_id, keys.U64_MAX)
    row = kv.seek_last(CQ, first, last)
    if row is None:
        return first_offset(kv, topic_id, queue_id)
    return keys.cq_base(row[0]) + len(row[1]) // _ITEM_SIZE


def first_offset(kv: KV, topic_id: int, queue_id: int) -> int:
    """The first offset of the queue that was not trimmed."""
    return bounds(kv, topic_id, queue_id)[0]


def bounds(kv: KV, topic_id: int, queue_id: int) -> tuple[int, int]:
    """(first offset, base offset of the first chunk, at most that) of the queue."""
    row = kv.get(CQ, keys.cq_bounds_key(topic_id, queue_id))
    if row is None:
        return 0, 0
    first, base = keys.CQ_BOUNDS.unpack(row)
    return first, base


def fetch(kv: KV, topic_id: int, queue_id: int, start: int, end: int) -> list[QueueItem]:
    """The items with start <= queue_offset < end, all of which must exist; [] if the first has just been trimmed."""
    if start >= end:
        return []
    for _ in range(2):
        items = _fetch_once(kv, topic_id, queue_id, start, end)
        if len(items) == end - start:
            return items
    if start < first_offset(kv, topic_id, queue_id):
        return []
    raise InvariantViolationError(
        f"queue {queue_id} of topic {topic_id} has {len(items)} rows from offset {start}, expected {end - start}"
    )


def offset_by_time(kv: KV, topic_id: int, queue_id: int, timestamp_ms: int, upper: bool, low: int, high: int) -> int:
    """RocketMQ's SEARCH_OFFSET_BY_TIMESTAMP over offsets low <= offset < high, whose store times never decrease.

    Lower bound: the first offset stored at or after `timestamp_ms`, `high` if there is none. Upper bound: the last one
    stored at or before it, `low` if there is none.
    """

    def stored(queue_offset: int) -> int:
        items = fetch(kv, topic_id, queue_id, queue_offset, queue_offset + 1)
        return items[0].store_time_ms if items else -1  # trimmed meanwhile: older than all that is left

    offsets = range(low, high)
    if upper:
        return max(low, low + bisect_right(offsets, timestamp_ms, key=stored) - 1)
    return low + bisect_left(offsets, timestamp_ms, key=stored)


def _fetch_once(kv: KV, topic_id: int, queue_id: int, start: int, end: int) -> list[QueueItem]:
    """The items from `start` without a hole; fewer than asked for if a merge came between the seek and the scan."""
    items: list[QueueItem] = []
    first = kv.seek_last(CQ, keys.cq_key(topic_id, queue_id, 0), keys.cq_key(topic_id, queue_id, start + 1))
    if first is None:
        return items
    _extend(items, first, start, end)
    if items and items[-1].queue_offset + 1 < end:
        following = keys.cq_key(topic_id, queue_id, items[-1].queue_offset + 1)
        for row in kv.scan(CQ, following, keys.cq_key(topic_id, queue_id, end)):
            if keys.cq_base(row[0]) != items[-1].queue_offset + 1:
                break
            _extend(items, row, items[-1].queue_offset + 1, end)
    return items


def _extend(items: list[QueueItem], row: tuple[bytes, bytes], start: int, end: int) -> None:
    """Adds the chunk's items in [start, end)."""
    key, chunk = row
    base = keys.cq_base(key)
    cut = chunk[(start - base) * _ITEM_SIZE : (end - base) * _ITEM_SIZE]
    items.extend([QueueItem(at, *item) for at, item in enumerate(ITEM.iter_unpack(cut), start)])
