"""Reads of the consume queues, straight from the store. They are safe while the apply thread writes.

Chunks are merged while others read: an item never changes, only the chunk that holds it. A reader may find a hole where
a chunk has just been replaced. It then reads once more, which is enough, because a merged chunk is never replaced.
Chunks may also be trimmed while others read; the batch that removes them changes the queue's bounds too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from raftlog.errors import InvariantViolationError
from statemachine.payload import ITEM
from statemachine.rows import keys
from statemachine.rows.kv import CQ, KV

_ITEM_SIZE = ITEM.size


class QueueItem(NamedTuple):
    """One message of a queue: its position in the log, and the checksum that proves it intact."""

    queue_offset: int
    position: int
    """Position in the log of the message's first byte."""
    size: int
    """Size of the stored message in bytes."""
    crc32c: int
    tag_hash: int
    """Java hash of the message's TAGS property; 0 if it has none."""
    store_time_ms: int


def end_offset(kv: KV, topic_id: int, queue_id: int) -> int:
    """Returns the offset after the queue's last item. Without items, returns the offset up to which the queue was
    trimmed; 0 if it never had items."""
    first, last = keys.cq_key(topic_id, queue_id, 0), keys.cq_key(topic_id, queue_id, keys.U64_MAX)
    row = kv.seek_last(CQ, first, last)
    if row is None:
        return first_offset(kv, topic_id, queue_id)
    return keys.cq_base(row[0]) + len(row[1]) // _ITEM_SIZE


def queues_with_rows(kv: KV, topic_id: int) -> int:
    """Returns one more than the highest number of a queue of the topic that has rows; 0 without rows."""
    row = kv.seek_last(CQ, *keys.cq_topic_range(topic_id))
    return 0 if row is None else keys.cq_queue(row[0])[1] + 1


def first_offset(kv: KV, topic_id: int, queue_id: int) -> int:
    """Returns the first offset of the queue that was not trimmed."""
    return bounds(kv, topic_id, queue_id)[0]


def bounds(kv: KV, topic_id: int, queue_id: int) -> tuple[int, int]:
    """Returns (the first offset of the queue that was not trimmed, the base offset of the queue's first chunk). The
    second may be lower."""
    row = kv.get(CQ, keys.cq_bounds_key(topic_id, queue_id))
    return (0, 0) if row is None else keys.unpack_bounds(row)[:2]


def kept_offset(kv: KV, topic_id: int, queue_id: int) -> int:
    """Returns the first offset of the queue that is kept on this node or, if segments were evicted, in the tier. The
    messages at the lowest of these offsets may already be removed from the tier."""
    row = kv.get(CQ, keys.cq_bounds_key(topic_id, queue_id))
    return 0 if row is None else keys.unpack_bounds(row)[2]


def fetch(kv: KV, topic_id: int, queue_id: int, start: int, end: int) -> list[QueueItem]:
    """Returns the queue's items with start <= queue_offset < end; [] if the first was just trimmed. Raises
    InvariantViolationError if any other of them does not exist."""
    return unpack_items(fetch_packed(kv, topic_id, queue_id, start, end), start)


def unpack_items(items: bytes, start: int) -> list[QueueItem]:
    """Unpacks consecutive items of a queue, the first of which has the queue offset `start`."""
    return [QueueItem(at, *item) for at, item in enumerate(ITEM.iter_unpack(items), start)]


def fetch_packed(kv: KV, topic_id: int, queue_id: int, start: int, end: int) -> bytes:
    """Returns the same items as `fetch`, as the store has them: packed (`payload.ITEM`), back to back. Raises like
    `fetch`."""
    if start >= end:
        return b""
    wanted = (end - start) * _ITEM_SIZE
    for _ in range(2):
        items = _fetch_once(kv, topic_id, queue_id, start, end)
        if len(items) == wanted:
            return items
    if start < first_offset(kv, topic_id, queue_id):
        return b""
    raise InvariantViolationError(
        f"queue {queue_id} of topic {topic_id} has {len(items) // _ITEM_SIZE} rows from offset {start}, "
        f"expected {end - start}"
    )


def offset_by_time(kv: KV, topic_id: int, queue_id: int, timestamp_ms: int, upper: bool, low: int, high: int) -> int:
    """Finds an offset by its store time, as RocketMQ's SEARCH_OFFSET_BY_TIMESTAMP does, among the offsets low <= offset
    < high. Their store times never decrease.

    Without `upper`, returns the first offset stored at or after `timestamp_ms`, `high` if there is none; with `upper`,
    the last one stored at or before it, `low` if there is none.
    """

    def stored(queue_offset: int) -> int:
        items = fetch(kv, topic_id, queue_id, queue_offset, queue_offset + 1)
        # the item was trimmed meanwhile, so it is older than all that are left
        return items[0].store_time_ms if items else -1

    offsets = range(low, high)
    if upper:
        return max(low, low + bisect_right(offsets, timestamp_ms, key=stored) - 1)
    return low + bisect_left(offsets, timestamp_ms, key=stored)


def _fetch_once(kv: KV, topic_id: int, queue_id: int, start: int, end: int) -> bytes:
    """Returns the items from `start` up to the first hole, at most to `end`. They are too few if chunks were merged
    between the seek and the scan."""
    row = kv.seek_last(CQ, keys.cq_key(topic_id, queue_id, 0), keys.cq_key(topic_id, queue_id, start + 1))
    if row is None:
        return b""
    base, chunk = keys.cq_base(row[0]), row[1]
    items = chunk[(start - base) * _ITEM_SIZE : (end - base) * _ITEM_SIZE]
    at = start + len(items) // _ITEM_SIZE
    if not items or at >= end:
        return items
    pieces = [items]
    for key, chunk in kv.scan(CQ, keys.cq_key(topic_id, queue_id, at), keys.cq_key(topic_id, queue_id, end)):
        if keys.cq_base(key) != at:
            break
        pieces.append(chunk[: (end - at) * _ITEM_SIZE])
        at += len(chunk) // _ITEM_SIZE
    return b"".join(pieces)
