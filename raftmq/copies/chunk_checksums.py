"""CRC-32C sums of the log in chunks, and the chain of its entries, both computed in one pass over a segment of a
copy."""

from __future__ import annotations

from typing import NamedTuple

from raftmq.arrow.log_copy import CopyError, LogCopy, Place, Segment
from raftmq.copies.log_entries import READ_BYTES, SegmentEnds, ends_of
from raftmq_wire.checksums import crc32c

CHUNK_BYTES = 1 << 20


class Chunk(NamedTuple):
    """The sum of the log's bytes from `position` on, up to the next multiple of CHUNK_BYTES or the end of the
    segment."""

    position: int
    size: int
    crc32c: int


class SegmentSums(NamedTuple):
    """The sums of one segment in one copy. `ends` is None if the entries cannot be read; `damage` then says why."""

    chunks: list[Chunk]
    ends: SegmentEnds | None
    damage: str


def sums_of(copy: LogCopy, segment: Segment, end: int) -> SegmentSums:
    """Returns the sums of the segment up to position `end`, where a frame ends. Raises CopyError if a file is
    missing."""
    places = tuple(place._replace(end=min(place.end, end)) for place in segment.places if place.base < end)
    tap = _Tap(copy)
    try:
        ends, damage = ends_of(tap, segment._replace(end=end, places=places)), ""
    except CopyError as error:
        ends, damage = None, f"{error.what}: {error.why}"
    for place in places:
        tap.finish(place)
    return SegmentSums(tap.chunks(), ends, damage)


class _Tap:
    """Reads bytes for `ends_of`, which reads each byte once, in ascending order, and adds them to the sums."""

    def __init__(self, copy: LogCopy) -> None:
        self._copy = copy
        self.name = copy.name
        self._sums: dict[int, Chunk] = {}
        self._at = 0

    def read(self, place: Place, start: int, stop: int) -> bytes:
        """Reads as `LogCopy.read` does, and adds the bytes to the sums."""
        data = self._copy.read(place, start, stop)
        at = start
        while at < start + len(data):
            border = min(start + len(data), (at // CHUNK_BYTES + 1) * CHUNK_BYTES)
            name = at // CHUNK_BYTES
            chunk = self._sums.get(name, Chunk(at, 0, 0))
            crc = crc32c(data[at - start : border - start], chunk.crc32c)
            self._sums[name] = Chunk(chunk.position, chunk.size + border - at, crc)
            at = border
        self._at = at
        return data

    def found(self, place: Place) -> Place:
        return self._copy.found(place)

    def finish(self, place: Place) -> None:
        """Reads the bytes behind a damaged entry, so that the sums include them."""
        at = max(self._at, place.base)
        while at < place.end and self.read(place, at, min(place.end, at + READ_BYTES)):
            at = self._at

    def chunks(self) -> list[Chunk]:
        """Returns the chunks, ascending by position."""
        return [self._sums[name] for name in sorted(self._sums)]
