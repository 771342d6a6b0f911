"""Rows of one part of a copy: its messages as Arrow batches, each message compared with the checksum in its item of the
consume queue.

Rows come in the order of the log, so messages of one queue are in the order of their offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cluster.broker.reads.pull_bodies import body_of
from raftmq.arrow.batches import to_batches
from raftmq.arrow.columns import ENTRY_COLUMNS
from raftmq.arrow.frames import Frames, are_of_topic, parse_checked
from raftmq.arrow.log_copy import CopyError, CopyPart, LogCopy, Place, place_of
from raftmq.arrow.read_rate import ReadRate
from raftmq.arrow.row_filter import RowFilter
from raftmq.arrow.undecodable import Undecodable
from raftmq.copies.entry_finder import EntryFinder
from raftmq_wire.message_format import MessageFormatError
from raftmq_wire.queue_numbers import queue_text
from statemachine.payload import ITEM

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 2 << 20
"""Bytes of the log in one batch, unless a single message has more. The arrays of such a batch fit into the processor's
cache and into memory that the process already has."""
GAP_BYTES = 512 << 10
"""The most bytes of other queues between two messages that are read along with them. Reading a larger gap would take
longer than a separate read."""
_ITEM = np.dtype(
    [("position", ">u8"), ("size", ">u4"), ("crc32c", ">u4"), ("tag_hash", ">i8"), ("store_time_ms", ">u8")]
)
"""The fields of an item, as in `payload.ITEM`."""


class _Read(NamedTuple):
    """Bytes of the log from position `start` on, read from one place."""

    place: Place
    start: int
    data: bytes


class _Wanted:
    """The messages of a part, ascending by position."""

    def __init__(self, copy: LogCopy, part: CopyPart) -> None:
        items, offsets = [], []
        for span in part.spans:
            packed = copy.items(part.segment, span)
            count = span.end - span.start
            if len(packed) != count * ITEM.size:
                raise CopyError(
                    f"{copy.name}: offset {span.start + len(packed) // ITEM.size} of {span.topic} queue "
                    f"{queue_text(span.number)} is not in the index of the log from position {part.segment.base} on",
                    "it was there when the read was planned",
                    "read again; if it stays so, use another copy",
                )
            items.append(packed)
            offsets.append(np.arange(span.start, span.end))
        together = np.frombuffer(b"".join(items), dtype=_ITEM)
        order = np.argsort(together["position"], kind="stable")
        self.items: Any = together[order]
        self.offsets: Any = np.concatenate(offsets)[order]
        lengths = [span.end - span.start for span in part.spans]
        self.spans: Any = np.repeat(np.arange(len(part.spans)), lengths)[order]
        self.starts: Any = self.items["position"].astype(np.int64)
        self.ends: Any = self.starts + self.items["size"]


def part_batches(
    copy: LogCopy,
    part: CopyPart,
    columns: Sequence[str],
    batch_rows: int,
    pace: ReadRate | None = None,
    undecodable: Undecodable | None = None,
    rows: RowFilter | None = None,
    *,
    by_queue: bool = False,
    batch_bytes: int = BATCH_BYTES,
    gap_bytes: int = GAP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yields batches of at most `batch_rows` messages and about `batch_bytes`, together exactly those of the part
    without those that `rows` and `undecodable` leave out. With `by_queue`, all rows of a batch are of one queue, and
    only the rows of each queue are in the order of the log. Messages with more than `gap_bytes` between them are read
    by separate reads. Raises CopyError, and Unreadable for a body that cannot be decompressed."""
    wanted, pace = _Wanted(copy, part), pace or ReadRate(None)
    topics = [span.topic for span in part.spans]
    group_of = np.arange(len(topics)) if by_queue else np.array([topics.index(topic) for topic in topics])
    entries = None if ENTRY_COLUMNS.isdisjoint(columns) else EntryFinder(copy, part.segment)
    for low, high, place in _reads(wanted, part.segment.places, copy.read_bytes, gap_bytes):
        start = int(wanted.starts[low])
        data = copy.read(place, start, int(wanted.ends[high - 1]))
        read = _Read(copy.found(place), start, data)
        pace.took(len(read.data))
        for begin, end in _runs(wanted, low, high, batch_rows, batch_bytes):
            row_groups = group_of[wanted.spans[begin:end]]
            for number in np.unique(row_groups).tolist():
                chosen = begin + np.flatnonzero(row_groups == number)
                frames = _frames(part, wanted, chosen, read)
                if entries is not None:
                    index, term = entries.of(wanted.starts[chosen])
                    frames = frames._replace(index=index, term=term)
                yield from to_batches(frames, topics[number], columns, undecodable, rows)


def _reads(wanted: _Wanted, places: Sequence[Place], size: int, gap_bytes: int) -> Iterator[tuple[int, int, Place]]:
    """Yields the reads of about `size` bytes each: (first message, the one after the last, the place where they
    lie)."""
    starts, ends = wanted.starts, wanted.ends
    low, count = 0, len(starts)
    while low < count:
        place = place_of(places, int(starts[low]))
        limit = min(int(starts[low]) + size, place.end)
        high = max(low + 1, int(np.searchsorted(ends, limit, side="right")))
        gaps = np.flatnonzero(starts[low + 1 : high] - ends[low : high - 1] > gap_bytes)
        if len(gaps):
            high = low + 1 + int(gaps[0])
        yield low, high, place
        low = high


def _runs(wanted: _Wanted, low: int, high: int, batch_rows: int, batch_bytes: int) -> Iterator[tuple[int, int]]:
    """Divides the messages from `low` up to, not including, `high` into batches; yields each as (first message, the one
    after the last). A batch has at most `batch_rows` messages, and at most `batch_bytes` bytes of the log unless one
    message is longer."""
    while low < high:
        limit = int(wanted.starts[low]) + batch_bytes
        end = max(low + 1, int(np.searchsorted(wanted.ends, limit, side="right")))
        end = min(end, low + batch_rows, high)
        yield low, end
        low = end


def _frames(part: CopyPart, wanted: _Wanted, rows: Any, read: _Read) -> Frames:
    """Returns the messages of the given `rows`, all of one topic. Raises CopyError if a message is not the one that its
    queue describes."""
    items = wanted.items[rows]
    body, count = body_of(items.tobytes(), read.data, read.start)
    if count < len(rows):
        raise _damaged(part, wanted, rows[count], read.place, "the message does not match the checksum in its queue")
    try:
        frames = parse_checked(body, items["size"].astype(np.int64))
    except MessageFormatError as error:
        raise _damaged(part, wanted, rows[0], read.place, str(error)) from error
    head = frames.head
    queue_ids = np.array([span.queue_id for span in part.spans])
    fits = (head["queue_offset"] == wanted.offsets[rows]) & (head["queue_id"] == queue_ids[wanted.spans[rows]])
    fits &= (head["position"] == wanted.starts[rows]) & are_of_topic(frames, part.spans[wanted.spans[rows[0]]].topic)
    if not fits.all():
        row = rows[int(np.argmin(fits))]
        raise _damaged(part, wanted, row, read.place, "another message is there than its queue says")
    return frames.of_group(part.spans[0].group)


def _damaged(part: CopyPart, wanted: _Wanted, row: int, place: Place, why: str) -> CopyError:
    span, position = part.spans[wanted.spans[row]], int(wanted.starts[row])
    return CopyError(
        f"{place.name} is damaged at position {position} of the log",
        f"{why}: {span.topic} queue {queue_text(span.number)} offset {wanted.offsets[row]}",
        "rows would be missing, so the read fails; use another copy",
    )
