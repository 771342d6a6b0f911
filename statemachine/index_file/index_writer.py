"""Writes an index file from front to back. Memory: one block, 32 bytes per queue and 16 per block."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raftmq_wire.checksums import crc32c
from statemachine.index_file.index_format import (
    BLOCK_FORM,
    BLOCK_SIZE,
    HEAD,
    ITEMS,
    KEYS,
    MAGIC,
    QUEUE_FORM,
    QUEUES,
    ROW_SIZES,
    SECTION_FORM,
    SEGMENT_BYTES_MAX,
    TRAILER_FORM,
    TRAILER_SIZE,
    VERSION,
    IndexMeta,
    QueueRun,
    pack_meta,
)
from statemachine.payload import ITEM
from statemachine.rows.keys import U32, U64


class IndexWriter:
    """Writes an index file: queues, ascending, then keys, ascending, then the end by `finish`. Raises ValueError for
    another order, which is a bug."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        """`write` is called with the file's bytes in order, at most BLOCK_SIZE at a time, except for the footer."""
        self._write = write
        self._at = 0
        self._items = _SectionWriter(ITEMS, self._put, _number_of_item)
        self._keys = _SectionWriter(KEYS, self._put, _hash_of_key)
        self._runs: list[QueueRun] = []
        self._sections: list[bytes] = []
        self._blocks: list[bytes] = []
        self._messages = 0
        self._last_key = b""
        self._in_queues = True
        self._put(HEAD)

    def add_queue(self, topic_id: int, queue_id: int, first_offset: int, pieces: Iterable[bytes]) -> int:
        """Adds a queue whose packed items are the `pieces` joined; adds nothing if there are none. Returns the number
        of items. Raises ValueError if the queues do not ascend from call to call, or `add_keys` was called before."""
        if not self._in_queues or (self._runs and (topic_id, queue_id) <= self._runs[-1][:2]):
            raise ValueError(f"queue {queue_id} of topic {topic_id} is not the next of an index file")
        first_item = self._messages
        for piece in pieces:
            self._items.add(piece)
            self._messages += len(piece) // ITEM.size
        count = self._messages - first_item
        if count:
            self._runs.append(QueueRun(topic_id, queue_id, first_offset, first_item, count))
        return count

    def add_keys(self, rows: bytes) -> None:
        """Adds sorted keys as `pack_keys` packs them. Within a call the caller must have sorted them, which is not
        checked. Raises ValueError if they do not ascend from call to call."""
        if self._in_queues:
            self._end_queues()
        if not rows:
            return
        size = ROW_SIZES[KEYS]
        if rows[:size] < self._last_key:
            raise ValueError(f"the keys from {rows[:size].hex()} on are not the next of an index file")
        self._last_key = rows[-size:]
        self._keys.add(rows)

    def finish(self, meta: IndexMeta) -> IndexMeta:
        """Writes the end of the file. Returns `meta` with the counts of what was written. Raises ValueError if `meta`
        covers more than SEGMENT_BYTES_MAX bytes of the log."""
        if not 0 <= meta.end - meta.base <= SEGMENT_BYTES_MAX:
            raise ValueError(f"an index file covers at most {SEGMENT_BYTES_MAX} bytes, not {meta.base}..{meta.end}")
        if self._in_queues:
            self._end_queues()
        self._close(self._keys)
        meta = meta._replace(messages=self._messages, queues=len(self._runs), keys=self._keys.length // ROW_SIZES[KEYS])
        footer = b"".join([pack_meta(meta), *self._sections, *self._blocks])
        length = self._at + len(footer) + TRAILER_SIZE
        trailer = TRAILER_FORM.pack(len(footer), crc32c(footer), length, VERSION)
        self._put(footer + trailer + U32.pack(crc32c(trailer)) + MAGIC)
        return meta

    def _end_queues(self) -> None:
        self._in_queues = False
        self._close(self._items)
        queues = _SectionWriter(QUEUES, self._put, _queue_of_row)
        for run in self._runs:
            queues.add(QUEUE_FORM.pack(*run))
        self._close(queues)

    def _close(self, section: _SectionWriter) -> None:
        blocks = section.close()
        self._sections.append(
            SECTION_FORM.pack(
                section.name, ROW_SIZES[section.name], len(blocks), self._at - section.length, section.length
            )
        )
        self._blocks += blocks

    def _put(self, data: bytes) -> None:
        self._write(data)
        self._at += len(data)


class _SectionWriter:
    """Cuts the rows of one section into blocks and records the block entries for the footer."""

    def __init__(self, name: bytes, put: Callable[[bytes], None], lowest: Callable[[bytes, int], int]) -> None:
        """`put` writes bytes to the file. `lowest` takes a block and the number of the section's bytes before it, and
        returns the field `lowest` of the block's entry."""
        self.name = name
        self.length = 0
        self._put = put
        self._lowest = lowest
        self._open: list[bytes] = []
        self._open_size = 0
        self._blocks: list[bytes] = []

    def add(self, rows: bytes) -> None:
        self._open.append(rows)
        self._open_size += len(rows)
        if self._open_size >= BLOCK_SIZE:
            self._cut(self._open_size - self._open_size % BLOCK_SIZE)

    def close(self) -> list[bytes]:
        self._cut(self._open_size)
        return self._blocks

    def _cut(self, size: int) -> None:
        """Cuts the first `size` bytes that are not in a block yet into blocks, and writes these."""
        data = b"".join(self._open)
        for start in range(0, size, BLOCK_SIZE):
            self._block(data[start : min(start + BLOCK_SIZE, size)])
        self._open = [data[size:]]
        self._open_size -= size

    def _block(self, data: bytes) -> None:
        lowest = self._lowest(data, self.length)
        self._blocks.append(BLOCK_FORM.pack(lowest, len(data), crc32c(data)))
        self._put(data)
        self.length += len(data)


def _number_of_item(_: bytes, before: int) -> int:
    return before // ITEM.size


def _queue_of_row(block: bytes, _: int) -> int:
    number: int = U64.unpack_from(block)[0]
    return number


def _hash_of_key(block: bytes, _: int) -> int:
    hashed: int = U32.unpack_from(block)[0]
    return hashed
