"""Loads the index of a sealed segment: from its sidecar, else from its frames; otherwise the positions are unknown.

The index must lead to `end`, the log's tail after the segment according to the next file's local header: an index that
leads elsewhere does not belong to this segment.
"""

from __future__ import annotations

from typing import NamedTuple

from raftlog.errors import FrameError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, if_readable, read_file, unreadable
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.damage_finder import whole_file
from raftlog.storage.segments.resync import fill, rejoin
from raftlog.storage.segments.scan import scan_segment
from raftlog.storage.segments.segment import Segment
from raftlog.storage.segments.segment_index import SegmentIndex, decode_index
from raftlog.types import LogTail


def same_end(first: LogTail, second: LogTail) -> bool:
    """Returns True if both are the log's tail after the same frame; its header_crc covers term and time too."""
    return (first.end_position, first.index, first.header_crc) == (second.end_position, second.index, second.header_crc)


class Loaded(NamedTuple):
    """A loaded index; `damaged`: ranges found lost; `bytes_read`: bytes scanned."""

    segment_index: SegmentIndex
    damaged: list[DamagedRange]
    bytes_read: int


def load_sidecar(fs: FileSystem, segment: Segment, end: LogTail, group_id: int) -> SegmentIndex | None:
    """Returns the index in the segment's sidecar; None unless it is intact and of a segment that ends at `end`."""
    path = segment.path.with_suffix(layout.INDEX_SUFFIX)
    found = if_readable(lambda: decode_index(read_file(fs, path), group_id), FrameError)
    if found is None:
        return None
    head, index = found
    return index if same_end(head.tail, end) and head.base == segment.base else None


def load_index(fs: FileSystem, segment: Segment, end: LogTail, group_id: int) -> Loaded:
    """Returns the index of a sealed segment that ends at `end`: from its sidecar if that is good, else from the
    frames."""
    index = load_sidecar(fs, segment, end, group_id)
    return Loaded(index, [], 0) if index is not None else rebuild_index(fs, segment, end, group_id)


def rebuild_index(fs: FileSystem, segment: Segment, end: LogTail, group_id: int) -> Loaded:
    """Rebuilds the index of a sealed segment from the headers of its frames. Raises CorruptLogError if they lead past
    `end`."""
    try:
        file = fs.open(segment.path)
    except OSError as error:
        if not unreadable(error):
            raise
        return _without_file(segment, end, f"{segment.path.name}: {error.strerror}")
    scan, index = scan_segment(file, segment, check_payloads=False)
    damaged: list[DamagedRange] = []
    read = scan.bytes_read
    if not same_end(scan.tail, end):
        joined = rejoin(file, segment, scan, index, end)
        damaged, read = [joined.hole], read + joined.bytes_read
    file.close()
    return Loaded(index, damaged, read)


def _without_file(segment: Segment, end: LogTail, why: str) -> Loaded:
    header = segment.header
    index = SegmentIndex(header.base_position, header.base_index)
    hole = whole_file(segment, end, why, located=False)
    fill(index, hole, header.previous.term)
    return Loaded(index, [hole], 0)
