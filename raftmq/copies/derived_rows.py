"""Rows of the consume queues and of the message index, derived only from the entries of one segment.

It shares no code with the state machine, which makes the same rows while a node applies the log, so the two can be
compared with each other. Rows of the index depend on their segment only. A block of a queue may begin in one segment
and end in another: its pieces from all segments together make its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raftlog.types import Entry, EntryType
from statemachine import payload
from statemachine.message_index import RECORD, RECORDS_MAX
from statemachine.payload import ITEM, RowKind
from statemachine.rows import keys

BLOCK = 256
"""Offsets per block of a consume queue, as in `statemachine.consume_queue`: part of the format."""
Row = tuple[bytes, bytes]
"""A row: key and value."""
QueueNumbers = tuple[int, int]
"""A queue: (topic_id, queue_id)."""


class Piece(NamedTuple):
    """Packed items of one queue, added by one entry, from the offset `base` on, within one block."""

    base: int
    items: bytes

    @property
    def end(self) -> int:
        """The offset after the piece's last item."""
        return self.base + len(self.items) // ITEM.size


class Derived(NamedTuple):
    """The rows derived from one segment: `pieces` by queue, in order, and `keys`, the sorted rows of the message
    index."""

    pieces: dict[QueueNumbers, list[Piece]]
    keys: list[Row]


def derive(entries: Iterable[Entry], end: int, next_ms: int | None) -> Derived:
    """Derives rows from the segment's entries below position `end`. `next_ms`: log time of the entry that follows the
    segment and was applied; None if there is none, so that the segment's index bucket is still open. Raises
    PayloadError."""
    pieces: dict[QueueNumbers, list[Piece]] = {}
    bucket = _Bucket()
    for entry in entries:
        if entry.position >= end:
            break
        if entry.type != EntryType.MESSAGES:
            continue
        decoded = payload.decode(entry.payload)
        for run in decoded.decoded_runs():
            if run.kind < RowKind.SCHEDULED:
                pieces.setdefault((run.topic_id, run.queue_id), []).extend(_by_block(run.base_offset, run.items))
        if decoded.keys:
            bucket.add(entry, decoded.keys)
    return Derived(pieces, bucket.rows(next_ms))


def _by_block(base: int, items: bytes) -> Iterator[Piece]:
    end = base + len(items) // ITEM.size
    at = base
    while at < end:
        stop = min(end, (at // BLOCK + 1) * BLOCK)
        yield Piece(at, items[(at - base) * ITEM.size : (stop - base) * ITEM.size])
        at = stop


def block_rows(queue: QueueNumbers, pieces: Iterable[Piece]) -> Iterator[Row]:
    """Yields the rows of one block of a queue, made from all its pieces. A full block has a single row."""
    ordered = sorted(pieces)
    if ordered and ordered[-1].end % BLOCK == 0:
        ordered = [Piece(ordered[0].base, b"".join(piece.items for piece in ordered))]
    for base, items in ordered:
        yield keys.cq_key(*queue, base), items


class Block(NamedTuple):
    """The pieces of one block of a queue that lie in one segment; `first`: the first offset of the block."""

    queue: QueueNumbers
    first: int
    pieces: list[Piece]

    @property
    def is_full(self) -> bool:
        """True if all pieces of the block are in this segment."""
        return self.pieces[0].base == self.first and self.pieces[-1].end == self.first + BLOCK


def blocks_of(derived: Derived, topic_ids: frozenset[int]) -> Iterator[Block]:
    """Yields the blocks of these topics, ascending within each queue; topics that were deleted have no rows any
    more."""
    for queue, pieces in derived.pieces.items():
        if queue[0] not in topic_ids:
            continue
        block = Block(queue, pieces[0].base // BLOCK * BLOCK, [])
        for piece in pieces:
            if piece.base >= block.first + BLOCK:
                yield block
                block = Block(queue, piece.base // BLOCK * BLOCK, [])
            block.pieces.append(piece)
        yield block


class _Bucket:
    """The rows of the message index of one segment."""

    def __init__(self) -> None:
        self._base = -1
        self._first_ms = 0
        self._open: list[tuple[int, bytes]] = []
        self._size = 0
        self._merged: list[Row] = []

    def add(self, entry: Entry, records: bytes) -> None:
        if self._base < 0:
            self._base, self._first_ms = entry.position, entry.timestamp_ms
        self._open.append((entry.position, records))
        self._size += len(records)
        if self._size >= RECORDS_MAX * RECORD.size:
            self._merge()

    def _merge(self) -> None:
        if not self._open:
            return
        partitions: dict[int, bytearray] = {}
        for _, records in self._open:
            for at in range(0, len(records), RECORD.size):
                partitions.setdefault(records[at], bytearray()).extend(records[at : at + RECORD.size])
        first = self._open[0][0]
        self._merged += [
            (keys.index_merged_key(self._base, number, first), bytes(found)) for number, found in partitions.items()
        ]
        self._open, self._size = [], 0

    def rows(self, next_ms: int | None) -> list[Row]:
        """Returns all rows of the bucket, sorted."""
        if self._base < 0:
            return []
        if next_ms is not None:
            self._merge()
        last_ms = keys.U64_MAX if next_ms is None else next_ms
        bucket = keys.index_bucket_key(self._base), keys.INDEX_BUCKET.pack(self._first_ms, last_ms)
        single = [(keys.index_entry_key(self._base, place), records) for place, records in self._open]
        return sorted([bucket, *self._merged, *single])
