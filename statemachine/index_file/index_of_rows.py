"""Builds the index file of a closed segment from the rows of the state, in few and large reads. It reads no message.

The rows must exist: the first entry of the next segment is applied, so that the segment's bucket is closed and every
chunk is written, and no TRIM has removed rows of the segment. These rows do not change, with two exceptions: whole
topics may be deleted, and the beginnings of queues whose topic has a shorter retention may be trimmed. Such messages
are not in the file. The caller checks before and after that the log still begins at or below the segment
(`statemachine.trim`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from itertools import chain

from raftlog.errors import InvariantViolationError
from statemachine.index_file.index_format import IndexMeta, pack_keys
from statemachine.index_file.index_writer import IndexWriter
from statemachine.message_index import RECORD
from statemachine.payload import ITEM
from statemachine.rows import keys
from statemachine.rows.kv import CQ, INDEX, KV, TOPICS

SORTED_BYTES = 16 << 10
"""The least bytes of index records that are sorted in one step, unless they are the last: 2,048 records."""
LOOKS = 3
"""The number of tries to find a queue's chunk. A chunk is replaced at most once, when its block is merged, so the
second try succeeds unless the queue was trimmed."""
MERGED = 1
"""The byte after the bucket in the keys of merged records (statemachine/rows/keys.py). A closed bucket has only merged
records."""
_LOW = 0xFFFFFFFF
_HASH = _LOW << 32

SortRows = Callable[[bytes, int], bytes]


def write_index(
    kv: KV, meta: IndexMeta, write: Callable[[bytes], object], *, sort: SortRows | None = None
) -> Generator[None, None, IndexMeta]:
    """Writes the index file of the segment `meta` with `write`, in steps of well below a millisecond of work for most
    queues and keys. `sort` replaces `sorted_rows`. Returns `meta` with the counts. Raises KVError, and
    InvariantViolationError if the rows are missing."""
    writer = IndexWriter(write)
    for topic_id, queue_id in queues(kv):
        first, pieces = queue_items(kv, topic_id, queue_id, meta.base, meta.end)
        writer.add_queue(topic_id, queue_id, first, pieces)
        yield
    for partition in key_partitions(kv, meta.base, meta.end, sort or sorted_rows):
        writer.add_keys(partition)
        yield
    return writer.finish(meta)


def queues(kv: KV) -> Iterator[tuple[int, int]]:
    """Yields (topic_id, queue_id) of every queue that has rows, ascending, with one seek each. Deleted topics whose
    rows are still to be removed are skipped."""
    row = kv.first(CQ, keys.FIRST, keys.LAST)
    known = -1
    while row is not None:
        topic_id, queue_id = keys.cq_queue(row[0])
        if topic_id != known and kv.get(TOPICS, keys.U32.pack(topic_id)) is None:
            row = kv.first(CQ, keys.cq_after_topic(topic_id), keys.LAST)
            continue
        known = topic_id
        yield topic_id, queue_id
        row = kv.first(CQ, keys.cq_after_queue(topic_id, queue_id), keys.LAST)


def queue_items(kv: KV, topic_id: int, queue_id: int, base: int, end: int) -> tuple[int, Iterator[bytes]]:
    """Returns the offset of the queue's first message at or above position `base` (0 if there is none), and the packed
    items from there up to position `end`."""
    first = _first_at(kv, topic_id, queue_id, base)
    return (0, iter(())) if first is None else (first, _items_below(kv, topic_id, queue_id, first, end))


def _first_at(kv: KV, topic_id: int, queue_id: int, position: int) -> int | None:
    """Returns the first offset of the queue whose message lies at or above the position; None if there is none."""
    low_key, high_key = keys.cq_key(topic_id, queue_id, 0), keys.cq_key(topic_id, queue_id, keys.U64_MAX)
    row = kv.seek_last(CQ, low_key, high_key)
    if row is None or _position(row[1], len(row[1]) // ITEM.size - 1) < position:
        return None
    low, high = 0, keys.cq_base(row[0])  # the wanted offset is in the chunk that begins at `high`, or below
    while low < high:
        middle = (low + high) // 2
        row = kv.seek_last(CQ, low_key, keys.cq_key(topic_id, queue_id, middle + 1))
        if row is None:  # everything up to `middle` was trimmed
            low = middle + 1
        elif _position(row[1], len(row[1]) // ITEM.size - 1) < position:
            low = max(middle + 1, keys.cq_base(row[0]) + len(row[1]) // ITEM.size)
        else:
            high = min(middle, keys.cq_base(row[0]))
    # Chunks of a block may have merged during the search. The chunk that now contains `low` contains the wanted offset,
    # wherever the chunk begins.
    row = kv.seek_last(CQ, low_key, keys.cq_key(topic_id, queue_id, low + 1))
    if row is None:
        return None
    chunk = row[1]
    return keys.cq_base(row[0]) + bisect_left(
        range(len(chunk) // ITEM.size), position, key=lambda item: _position(chunk, item)
    )


def _items_below(kv: KV, topic_id: int, queue_id: int, first: int, end: int) -> Iterator[bytes]:
    """Yields the queue's packed items from offset `first` on whose messages lie below position `end`."""
    for key, chunk in _chunks_from(kv, topic_id, queue_id, first):
        start, count = max(0, first - keys.cq_base(key)), len(chunk) // ITEM.size
        stop = count
        if _position(chunk, count - 1) >= end:  # usually true only of the last chunk
            stop = bisect_left(range(count), end, key=lambda item, data=chunk: _position(data, item))  # type: ignore[misc]
        if stop > start:
            yield chunk[start * ITEM.size : stop * ITEM.size]
        if stop < count:
            return


def _chunks_from(kv: KV, topic_id: int, queue_id: int, first: int) -> Iterator[tuple[bytes, bytes]]:
    """Returns the queue's chunks from the one that contains offset `first` on, all as of one moment. Raises
    InvariantViolationError if no chunk contains that offset."""
    low, high = keys.cq_key(topic_id, queue_id, 0), keys.cq_key(topic_id, queue_id, keys.U64_MAX)
    for _ in range(LOOKS):
        row = kv.seek_last(CQ, low, keys.cq_key(topic_id, queue_id, first + 1))
        chunks = kv.scan(CQ, low if row is None else row[0], high)
        found = next(chunks, None)
        if found is not None and keys.cq_base(found[0]) <= first:  # otherwise its block was merged since the seek
            return chain([found], chunks)
    raise InvariantViolationError(f"queue {queue_id} of topic {topic_id} has no row at offset {first}")


def key_partitions(kv: KV, base: int, end: int, sort: SortRows) -> Iterator[bytes]:
    """Yields rows of the section `keys` for the closed bucket's records, packed and sorted, in ascending parts. Each
    part contains all hashes with the same first bytes. Raises InvariantViolationError unless the index of the log from
    `base` to `end` is one closed bucket."""
    partition, records = -1, bytearray()
    for key, value in kv.scan(INDEX, keys.U64.pack(base), keys.U64.pack(end)):
        if len(key) == keys.INDEX_BUCKET_KEY_SIZE:
            if partition >= 0 or keys.INDEX_BUCKET.unpack(value)[1] == keys.U64_MAX:
                raise InvariantViolationError(f"the index of the log from {base} to {end} is not one closed bucket")
            continue
        kind, number = key[8], key[9]
        if kind != MERGED:
            raise InvariantViolationError(f"the index of the log from {base} to {end} has records of single entries")
        if number != partition and len(records) >= SORTED_BYTES:
            yield sort(bytes(records), base)
            records = bytearray()
        partition = number
        records += value
    if records:
        yield sort(bytes(records), base)


def sorted_rows(records: bytes, base: int) -> bytes:
    """Returns packed and sorted rows of an index file for records of the message index (`statemachine.message_index`).
    The records' messages must lie less than 4 GiB above position `base`. Raises struct.error if `records` ends within a
    record."""
    found = struct.unpack(f">{len(records) // RECORD.size}Q", records)
    return pack_keys(sorted([(record & _HASH) + (record - base & _LOW) for record in found]))


def _position(chunk: bytes, item: int) -> int:
    position: int = struct.unpack_from(">Q", chunk, item * ITEM.size)[0]
    return position
