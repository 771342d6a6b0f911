"""Builds the index file of a segment from the segment's entries alone. It is used if the state's rows are gone, and to
check the builder that works from rows (index_of_rows.py). It does not know which topics were deleted after the segment
was written, so it lists their messages as well.

Memory: 32 bytes per message and 16 per key of the segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raftlog.types import Entry, EntryType
from statemachine import payload
from statemachine.index_file.index_format import IndexMeta, key_row, pack_keys
from statemachine.index_file.index_writer import IndexWriter
from statemachine.message_index import RECORD
from statemachine.payload import RowKind

_LOW = 0xFFFFFFFF


def write_index_of_log(entries: Iterable[Entry], meta: IndexMeta, write: Callable[[bytes], object]) -> IndexMeta:
    """Writes the index file of the segment `meta`, whose entries are `entries`. Returns `meta` with the counts. Raises
    PayloadError for an entry that this version cannot read."""
    queues: dict[tuple[int, int], tuple[int, list[bytes]]] = {}
    keys: list[int] = []
    for entry in entries:
        if entry.type != EntryType.MESSAGES:
            continue
        decoded = payload.decode(entry.payload)
        for run in decoded.decoded_runs():
            if run.kind < RowKind.SCHEDULED:
                queues.setdefault((run.topic_id, run.queue_id), (run.base_offset, []))[1].append(run.items)
        keys += [key_row(hashed, low - meta.base & _LOW) for hashed, low in RECORD.iter_unpack(decoded.keys)]
    writer = IndexWriter(write)
    for (topic_id, queue_id), (first, pieces) in sorted(queues.items()):
        writer.add_queue(topic_id, queue_id, first, pieces)
    writer.add_keys(pack_keys(sorted(keys)))
    return writer.finish(meta)
