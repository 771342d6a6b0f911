"""Checks an index file in the tier against one that is built again from the segment's entries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from raftlog.types import Entry
from statemachine.index_file.index_check import check_index
from statemachine.index_file.index_format import ITEMS, KEYS, QUEUE_FORM, QUEUES, IndexFileError, QueueRun
from statemachine.index_file.index_of_log import write_index_of_log
from statemachine.index_file.index_reader import IndexFile, drive
from statemachine.payload import ITEM


def problem(data: bytes, entries: Sequence[Entry], topics: Collection[int]) -> str:
    """Returns what is wrong with the index file, "" if nothing is. `topics` are the ids of the topics that exist now;
    their queues must be listed. A deleted topic may or may not have existed when the file was built, so it may be
    missing. The first messages of a queue may be missing, too.
    """
    try:
        index = drive(check_index(len(data)), partial(_read, data))
    except IndexFileError as error:
        return f"its index file is damaged: {error}"
    again = bytearray()
    meta = write_index_of_log(entries, index.meta._replace(messages=0, queues=0, keys=0), again.extend)
    wanted = drive(check_index(len(again)), partial(_read, bytes(again)))
    if (index.meta.first_index, index.meta.last_index) != (entries[0].index, entries[-1].index):
        return f"its index file is of entries {index.meta.first_index} to {index.meta.last_index}"
    if meta.keys != index.meta.keys or _section(index, data, KEYS) != _section(wanted, bytes(again), KEYS):
        return f"its index file has {index.meta.keys} keys, the log {meta.keys}, or others"
    listed, logged = _queues(index, data), _queues(wanted, bytes(again))
    for queue, items in listed.items():
        if not logged.get(queue, b"").endswith(items):
            return f"its index file lists messages of queue {queue[1]} of topic {queue[0]} that the log does not have"
    lost = sorted(queue for queue in logged.keys() - listed.keys() if queue[0] in topics)
    return f"its index file lacks the queues {lost}" if lost else ""


def _read(data: bytes, at: int, length: int) -> bytes:
    return data[at : at + length]


def _section(index: IndexFile, data: bytes, name: bytes) -> bytes:
    section = index.sections[name]
    return data[section.at : section.at + section.length]


def _queues(index: IndexFile, data: bytes) -> dict[tuple[int, int], bytes]:
    """Returns (topic id, queue id) -> the queue's packed items in the index file."""
    items = _section(index, data, ITEMS)
    runs = [QueueRun(*row) for row in QUEUE_FORM.iter_unpack(_section(index, data, QUEUES))]
    return {
        (run.topic_id, run.queue_id): items[run.first_item * ITEM.size : (run.first_item + run.count) * ITEM.size]
        for run in runs
    }
