"""Reads a topic from a copy of the log for `raftmq.read_arrow`: queue by queue, although a copy has all queues in the
order of the log."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from raftmq.arrow.columns import arrow_schema
from raftmq.arrow.log_copy import CopyPart, CopySource, cut
from raftmq.arrow.plain_arrays import column_of, numbers_of
from raftmq.arrow.ranges import Bounds, plan_topic
from raftmq.arrow.undecodable import Undecodable
from raftmq.copies.open_copy import opened
from raftmq.copies.part_rows import part_batches

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
READERS = 2
"""The number of parts of a copy that are read at the same time."""
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
            return [[*part_batches(copy, part, names, BATCH_ROWS, undecodable=undecodable)] for part in share]

    shares = [parts[first::READERS] for first in range(min(READERS, len(parts)))]
    with ThreadPoolExecutor(READERS) as pool:
        read_shares = list(pool.map(read, shares))
    by_queue: dict[int, list[pa.RecordBatch]] = {each.queue_id: [] for each in ranges}
    for number in range(len(parts)):
        for batch in read_shares[number % READERS][number // READERS]:
            for queue, rows in _by_queue(batch):
                by_queue[queue].append(rows)
    batches = [batch.select(list(columns)) for queue in sorted(by_queue) for batch in by_queue[queue]]
    return pa.Table.from_batches(batches, arrow_schema(columns))


def _by_queue(batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    """Returns (queue id, its rows in their order) for each queue of the batch."""
    queues = numbers_of(batch.column(_QUEUE), np.int32)
    there = np.unique(queues).tolist()
    if len(there) == 1:
        return [(there[0], batch)]
    return [(queue, batch.take(column_of(np.flatnonzero(queues == queue)))) for queue in there]
