"""Reads a topic from a copy of the log for `raftmq.read_arrow`: queue by queue, although a copy has all queues in the
order of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from raftmq.arrow.columns import arrow_schema
from raftmq.arrow.log_copy import CopyPart, CopySource, LogCopy, cut
from raftmq.arrow.plain_arrays import numbers_of
from raftmq.arrow.ranges import Bounds, plan_topic
from raftmq.arrow.undecodable import Undecodable
from raftmq.copies.open_copy import opened
from raftmq.copies.part_rows import BATCH_BYTES, part_batches

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
READERS = 2
"""The number of parts of a copy that are read at the same time."""
BATCHES_AT_ONCE = 4
"""The most batches whose bytes of the log are taken at once and divided among the queues."""
_QUEUE = "queue_id"


def copy_table(
    source: CopySource, topic: str, bounds: tuple[Bounds, Bounds], columns: Sequence[str], undecodable: Undecodable
) -> pa.Table:
    """Returns the messages of the topic between the bounds (start, end), in order of queue ids and offsets. Raises
    CopyError, NotFound and Unreadable."""
    import pyarrow as pa

    with opened(source) as copy:
        planned = plan_topic(copy, topic, *bounds, words=("start", "end"))
        ranges = [each for each in planned if each.start < each.end]
        parts = cut(copy.segments(ranges), None, None)
    names = (*columns, *({_QUEUE} - {*columns}))

    def read(share: Sequence[CopyPart]) -> list[list[pa.RecordBatch]]:
        with opened(source) as copy:
            return [[*_part(copy, part, names, undecodable)] for part in share]

    shares = [parts[first::READERS] for first in range(min(READERS, len(parts)))]
    with ThreadPoolExecutor(READERS) as pool:
        read_shares = list(pool.map(read, shares))
    by_queue: dict[int, list[pa.RecordBatch]] = {each.queue_id: [] for each in ranges}
    for number in range(len(parts)):
        for batch in read_shares[number % READERS][number // READERS]:
            by_queue[numbers_of(batch.column(_QUEUE), np.int32)[0]].append(batch)
    batches = [batch.select(list(columns)) for queue in sorted(by_queue) for batch in by_queue[queue]]
    return pa.Table.from_batches(batches, arrow_schema(columns))


def _part(copy: LogCopy, part: CopyPart, names: Sequence[str], undecodable: Undecodable) -> Iterator[pa.RecordBatch]:
    """Yields batches of the part, each with rows of one queue. Of a part with several queues, more of the log is taken
    at once, so that a queue's batches do not become short."""
    more = min(len(part.spans), BATCHES_AT_ONCE)
    rows, size = more * BATCH_ROWS, more * BATCH_BYTES
    return part_batches(copy, part, names, rows, undecodable=undecodable, by_queue=True, batch_bytes=size)
