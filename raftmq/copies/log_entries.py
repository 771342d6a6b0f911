"""The entries of one segment of a copy, each compared with its checksums and with the entry before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raftlog.errors import FrameError
from raftlog.frame import HEADER_SIZE, FrameHeader, check_follows, tail_after
from raftlog.types import Entry, LogTail
from raftmq.arrow.log_copy import CopyError, Place, Reads, Segment

READ_BYTES = 8 << 20


class SegmentEnds(NamedTuple):
    """The beginning and the end of a segment: if two copies have equal SegmentEnds, all entries in between are equal.

    `parent` and `header_crc` chain segments: the `parent` of the next segment is the `header_crc` of this one.
    """

    base: int
    end: int
    first_index: int
    parent: int
    last_index: int
    term: int
    header_crc: int


def entries_of(copy: Reads, segment: Segment) -> Iterator[Entry]:
    """Yields the entries of a segment. Raises CopyError naming the file and the position."""
    tail: LogTail | None = None
    for place in segment.places:
        for entry in _entries_in(copy, place):
            try:
                if tail is not None:
                    check_follows(tail, entry)
            except FrameError as error:
                raise _damaged(copy.found(place), entry.position, error) from error
            tail = tail_after(tail or _before(entry), entry)
            yield entry


def ends_of(copy: Reads, segment: Segment) -> SegmentEnds:
    """Reads all of the segment; returns its first and last entry as `SegmentEnds`. Raises CopyError."""
    first = last = None
    for entry in entries_of(copy, segment):
        first, last = first or entry, entry
    if first is None or last is None:
        raise CopyError(f"the segment at position {segment.base} has no entries", copy.name, "use another copy")
    return SegmentEnds(segment.base, segment.end, first.index, first.parent, last.index, last.term, last.header_crc)


def first_ms(copy: Reads, segment: Segment) -> int:
    """Returns the log time of the segment's first entry. Raises CopyError."""
    place = segment.places[0]
    try:
        header = FrameHeader(copy.read(place, place.base, place.base + HEADER_SIZE))
    except FrameError as error:
        raise _damaged(copy.found(place), place.base, error) from error
    time_ms: int = header.timestamp_ms
    return time_ms


def _before(entry: Entry) -> LogTail:
    """Returns a log tail for which `entry` is the correct next entry; used for the first entry of a segment."""
    return LogTail(entry.term, entry.index - 1, entry.position, entry.parent, entry.position, entry.timestamp_ms)


def _entries_in(copy: Reads, place: Place) -> Iterator[Entry]:
    """Yields the entries in one file or object, which contains complete frames."""
    held, at = b"", place.base  # `held` has the bytes from position `at` on
    read_to = place.base
    while at < place.end:
        try:
            length = FrameHeader(held[:HEADER_SIZE]).frame_length if len(held) >= HEADER_SIZE else HEADER_SIZE
            if len(held) < length:
                stop = min(place.end, max(read_to + READ_BYTES, at + length))
                more = copy.read(place, read_to, stop) if stop > read_to else b""
                if not more:
                    raise FrameError("the file ends within a frame")
                held, read_to = held + more, read_to + len(more)
                continue
            offset = 0
            while (taken := _whole(held, offset)) is not None:
                yield taken
                offset += HEADER_SIZE + len(taken.payload)
                at = taken.end_position
            held = held[offset:]
        except FrameError as error:
            raise _damaged(copy.found(place), at, error) from error


def _whole(held: bytes, offset: int) -> Entry | None:
    """Returns the entry at `offset`; None if its bytes are not complete. Raises FrameError."""
    if offset + HEADER_SIZE > len(held):
        return None
    header = FrameHeader(held[offset : offset + HEADER_SIZE])
    if offset + header.frame_length > len(held):
        return None
    return header.entry(held[offset + HEADER_SIZE : offset + header.frame_length])


def _damaged(place: Place, position: int, error: FrameError) -> CopyError:
    return CopyError(
        f"{place.name} is damaged at position {position} of the log",
        str(error),
        "nothing of it is used; use another copy",
    )
