"""The file log/active.idx: the active segment's index up to some entry, so that a start scans only what came after.

It has the same bytes as a sidecar (segment_index.py). It is written in the background after each further stretch of the
log, never by the append lane. It is valid up to the newest sync mark if the last frame there has the header_crc that
the file or the mark names: headers are chained, so all frames below are then the listed ones. Whether their bytes are
still intact is checked when they are read, and by a scrub.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raftlog.errors import FrameError
from raftlog.frame import HEADER_SIZE, FrameHeader
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, read_file, write_file
from raftlog.storage.segments.scan import tail_of
from raftlog.storage.segments.segment import Segment, SyncMark
from raftlog.storage.segments.segment_index import SegmentIndex, decode_index, encode_index
from raftlog.types import LogTail

DISTANCE = 16 * 1024 * 1024
"""The bytes of log between two writes of the file: about as much as an unclean start scans."""
_INDEX_SHARE = 8
"""The least bytes of log between two writes, as a multiple of the file's own size: otherwise small frames would double
the bytes that are written."""


class Point(NamedTuple):
    """A position at which a scan may begin: after `tail`, with the index of everything below."""

    tail: LogTail
    segment_index: SegmentIndex


def is_due(index: SegmentIndex, tail: LogTail, last_end: int) -> bool:
    """Returns True if the log has grown enough since the file was written for position `last_end`."""
    grown = tail.end_position - max(last_end, index.base)
    return grown >= max(DISTANCE, _INDEX_SHARE * 4 * len(index.offsets))


def write(fs: FileSystem, log: Path, index: SegmentIndex, tail: LogTail, group_id: int) -> None:
    """Replaces the file, durably. `index` must contain exactly the entries up to `tail`. Raises OSError."""
    write_file(fs, log / layout.ACTIVE_INDEX, b"".join(encode_index(index, tail, group_id)))


def load(fs: FileSystem, log: Path, active: Segment, mark: SyncMark, group_id: int) -> Point | None:
    """Reads the file. Returns the highest point of the segment `active` that it proves and that is not above the sync
    mark; None if there is none."""
    path = log / layout.ACTIVE_INDEX
    file = active.file
    if file is None or not fs.exists(path):
        return None
    try:
        head, index = decode_index(read_file(fs, path), group_id)
        end = (head.tail.end_position, head.tail.index, head.tail.header_crc)
        if head.base != active.base or end[1] - head.base_index + 1 != len(index.offsets):
            return None
        if end[0] > mark.end_position:  # the file also lists frames above the sync mark
            index.cut(mark.next_index)
            end = (mark.end_position, mark.next_index - 1, mark.header_crc)
        raw = file.pread(HEADER_SIZE, active.file_offset(index.position(end[1])))
        frame = FrameHeader(raw, group_id)
    except (FrameError, IndexError, OSError):
        return None
    tail = tail_of(frame, active.base)
    return Point(tail, index) if (tail.end_position, tail.index, tail.header_crc) == end else None
