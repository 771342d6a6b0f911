"""Reads every byte of an index file and checks the rows against the format. It works block by block, because a segment
has some hundred thousand rows and every upload checks them."""

from __future__ import annotations

import struct
from operator import add, le

from statemachine.index_file.index_format import (
    HEAD,
    ITEMS,
    KEYS,
    QUEUE_FORM,
    QUEUES,
    IndexFileError,
    QueueRun,
)
from statemachine.index_file.index_reader import IndexFile, Range, Steps, open_index
from statemachine.rows.keys import U32

_PLACE = "QI20x"
"""The struct format that takes position and size from an item (statemachine/payload.py)."""
_ITEM_SIZE = struct.calcsize(">" + _PLACE)
_KEY_SIZE = struct.calcsize(">Q")
_KEY_OFFSET = "4xI"
"""The struct format that takes the offset from a row of the section `keys`."""


def check_index(size: int) -> Steps[IndexFile]:
    """Opens an index file of `size` bytes, checks all of it and returns it. Raises IndexFileError, which says what is
    wrong."""
    index = yield from open_index(size)
    if (yield Range(0, len(HEAD))) != HEAD:
        raise IndexFileError("the head is not that of an index file")
    runs = yield from _check_queues(index)
    yield from _check_items(index, runs)
    yield from _check_keys(index)
    return index


def _check_queues(index: IndexFile) -> Steps[list[QueueRun]]:
    runs: list[QueueRun] = []
    before, items = (-1, -1), 0
    for number, block in enumerate(index.blocks(QUEUES)):
        data = yield from block
        for at in range(0, len(data), QUEUE_FORM.size):
            run = QueueRun(*QUEUE_FORM.unpack_from(data, at))
            if run[:2] <= before or run.first_item != items or not run.count:
                raise IndexFileError(f"queue {run.queue_id} of topic {run.topic_id} is out of order")
            if at == 0 and index.sections[QUEUES].blocks[number].lowest != run.topic_id << 32 | run.queue_id:
                raise IndexFileError(f"block {number} of the section queues does not begin as the footer says")
            before, items = run[:2], items + run.count
            runs.append(run)
    if items != index.meta.messages:
        raise IndexFileError(f"the queues have {items} messages, the file says {index.meta.messages}")
    return runs


def _check_items(index: IndexFile, runs: list[QueueRun]) -> Steps[None]:
    base, end = index.meta.base, index.meta.end
    number, run, last_end = 0, 0, base
    for block_number, block in enumerate(index.blocks(ITEMS)):
        if index.sections[ITEMS].blocks[block_number].lowest != number:
            raise IndexFileError(f"block {block_number} of the section items does not begin as the footer says")
        data = yield from block
        count = len(data) // _ITEM_SIZE
        places = struct.unpack(">" + _PLACE * count, data)
        positions, ends = places[::2], list(map(add, places[::2], places[1::2]))
        lowest = [last_end, *ends[:-1]]  # the lowest position at which each item's message may begin
        while run < len(runs) and runs[run].first_item < number + count:
            lowest[runs[run].first_item - number] = base
            run += 1
        if not all(map(le, lowest, positions)) or max(ends) > end:
            bad = next(at for at in range(count) if not (lowest[at] <= positions[at] and ends[at] <= end))
            position, size = places[2 * bad : 2 * bad + 2]
            raise IndexFileError(
                f"item {number + bad} is at {position} with {size} bytes, which does not fit its queue"
            )
        number, last_end = number + count, ends[-1]


def _check_keys(index: IndexFile) -> Steps[None]:
    before, span = 0, index.meta.end - index.meta.base
    for number, block in enumerate(index.blocks(KEYS)):
        data = yield from block
        rows = list(struct.unpack(f">{len(data) // _KEY_SIZE}Q", data))
        if rows[0] < before or rows != sorted(rows):
            raise IndexFileError(f"the keys of block {number} are out of order")
        if max(struct.unpack(">" + _KEY_OFFSET * len(rows), data)) >= span:
            raise IndexFileError(f"a key of block {number} lies outside the segment of {span} bytes")
        before = rows[-1]
        if index.sections[KEYS].blocks[number].lowest != U32.unpack_from(data)[0]:
            raise IndexFileError(f"block {number} of the section keys does not begin as the footer says")
