"""Finds the frames of a segment that cannot be read intact, after a read, a peer or a scrub met damaged bytes."""

from __future__ import annotations

from typing import NamedTuple

from raftlog.errors import FrameError
from raftlog.frame import HEADER_SIZE, FrameHeader
from raftlog.storage.files.fs import File, unreadable
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.segment import Segment
from raftlog.storage.segments.segment_index import SegmentIndex
from raftlog.types import LogTail


class Extent(NamedTuple):
    """The entries of one segment with everything needed to check their frames. `end`: the log's tail after the last
    entry that counts."""

    segment: Segment
    segment_index: SegmentIndex
    end: LogTail
    group_id: int

    def begin(self, number: int) -> int:
        """Returns the position of entry `number`. For the number after the last entry, returns the last entry's end."""
        return self.end.end_position if number > self.end.index else self.segment_index.position(number)


def whole_file(segment: Segment, end: LogTail, why: str, *, located: bool) -> DamagedRange:
    """Returns the range of all frames of a segment that ends at `end`, as damaged for the reason `why`."""
    header = segment.header
    return DamagedRange(
        header.base_position,
        end.end_position,
        header.base_index,
        end.index,
        header.previous.header_crc,
        end.header_crc,
        why,
        located,
    )


def first_damage(extent: Extent, file: File, low: int, high: int) -> DamagedRange | None:
    """Returns the first run of frames with an entry of [low, high) that do not read intact, extended over its damaged
    neighbours; None if there is none."""
    for number in range(low, min(high, extent.end.index + 1)):
        if (why := _fault(extent, file, number)) is not None:
            return _grown(extent, file, number, why)
    return None


def _grown(extent: Extent, file: File, number: int, why: str) -> DamagedRange:
    first = last = number
    while first > extent.segment_index.base_index and _fault(extent, file, first - 1) is not None:
        first -= 1
    while last < extent.end.index and _fault(extent, file, last + 1) is not None:
        last += 1
    return DamagedRange(
        extent.begin(first),
        extent.begin(last + 1),
        first,
        last,
        _before(extent, file, first),
        _after(extent, file, last),
        f"{extent.segment.path.name}: {why}",
    )


def _before(extent: Extent, file: File, first: int) -> int:
    """Returns the header_crc of the frame before entry `first`."""
    if first == extent.segment_index.base_index:
        return extent.segment.header.previous.header_crc
    crc: int = _header(extent, file, first - 1).header_crc
    return crc


def _after(extent: Extent, file: File, last: int) -> int:
    """Returns the header_crc that the frame after entry `last` names as its parent."""
    if last == extent.end.index:
        return extent.end.header_crc
    parent: int = _header(extent, file, last + 1).parent
    return parent


def _header(extent: Extent, file: File, number: int) -> FrameHeader:
    raw = file.pread(HEADER_SIZE, extent.segment.file_offset(extent.begin(number)))
    return FrameHeader(raw, extent.group_id)


def _fault(extent: Extent, file: File, number: int) -> str | None:
    """Returns the reason why entry `number` cannot be read; None if it can. A different term reveals a frame left by a
    lost write."""
    begin, end = extent.begin(number), extent.begin(number + 1)
    try:
        data = file.pread(end - begin, extent.segment.file_offset(begin))
        header = FrameHeader(data[:HEADER_SIZE], extent.group_id)
        if (header.index, header.position, header.frame_length) != (number, begin, end - begin):
            return f"at position {begin} lies entry {header.index} of position {header.position}, not entry {number}"
        if header.term != extent.segment_index.term(number):
            return f"entry {number} is of term {header.term}, not of term {extent.segment_index.term(number)}"
        header.entry(data[HEADER_SIZE:])
    except FrameError as error:
        return str(error)
    except OSError as error:
        if not unreadable(error):
            raise
        return f"entry {number} cannot be read: {error.strerror}"
    return None
