"""Reads every byte of an index file and checks that the rows are what the format says."""

from __future__ import annotations

from statemachine.index_file.index_format import (
    HEAD,
    ITEMS,
    KEY_FORM,
    KEYS,
    QUEUE_FORM,
    QUEUES,
    IndexFileError,
    QueueRun,
)
from statemachine.index_file.index_reader import IndexFile, Range, Steps, open_index
from statemachine.payload import ITEM


def check_index(size: int) -> Steps[IndexFile]:
    """Opens a file of `size` bytes and checks all of it. Raises IndexFileError that says what is wrong."""
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
    starts = {run.first_item for run in runs}
    number, last_end = 0, base
    for block_number, block in enumerate(index.blocks(ITEMS)):
        if index.sections[ITEMS].blocks[block_number].lowest != number:
            raise IndexFileError(f"block {block_number} of the section items does not begin as the footer says")
        for item in ITEM.iter_unpack((yield from block)):
            position, size = item[:2]
            if number in starts:
                last_end = base
            if not last_end <= position <= position + size <= end:
                raise IndexFileError(f"item {number} is at {position} with {size} bytes, which does not fit its queue")
            last_end = position + size
            number += 1


def _check_keys(index: IndexFile) -> Steps[None]:
    before, span = (0, 0), index.meta.end - index.meta.base
    for number, block in enumerate(index.blocks(KEYS)):
        data = yield from block
        for hashed, offset in KEY_FORM.iter_unpack(data):
            if (hashed, offset) < before or offset >= span:
                raise IndexFileError(f"a key of block {number} is out of order: hash {hashed:08x}, offset {offset}")
            before = (hashed, offset)
        if index.sections[KEYS].blocks[number].lowest != KEY_FORM.unpack_from(data)[0]:
            raise IndexFileError(f"block {number} of the section keys does not begin as the footer says")
