"""The search for the entry of the Raft log that contains a message of a copy, by the headers of the segment's frames.

Each frame begins where the frame before it ends, so the finder follows the headers from the beginning of the segment:
bytes inside a message cannot be mistaken for a header. Each header is compared with its checksum and with the header
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from raftlog.errors import FrameError
from raftlog.frame import HEADER_SIZE, FrameHeader
from raftmq.arrow.log_copy import CopyError

if TYPE_CHECKING:
    from raftmq.arrow.log_copy import LogCopy, Place, Segment

_ENTRY = np.dtype([("position", "i8"), ("index", "i8"), ("term", "i8")])


class EntryFinder:
    """Finds entries of one segment, in any order; it reads no further than the highest position that was asked for."""

    def __init__(self, copy: LogCopy, segment: Segment) -> None:
        self._copy = copy
        self._segment = segment
        self._headers = self._read(segment)
        self._entries: Any = np.zeros(0, dtype=_ENTRY)
        """The entries of the headers read so far, ascending."""
        self._end = segment.base
        """The position at which the last of these frames ends."""

    def of(self, positions: Any) -> tuple[Any, Any]:
        """Returns (index, term) of the entries that contain these positions of the log, which lie in the segment, as
        int64 arrays. Raises CopyError."""
        highest = int(positions.max())
        found: list[tuple[int, int, int]] = []
        while self._end <= highest:
            header = next(self._headers, None)
            if header is None:
                raise _damaged(self._copy.found(self._segment.places[-1]), highest, "the segment ends before")
            found.append((header.position, header.index, header.term))
            self._end = header.position + header.frame_length
        if found:
            self._entries = np.concatenate([self._entries, np.array(found, dtype=_ENTRY)])
        at = np.searchsorted(self._entries["position"], positions, side="right") - 1
        return self._entries["index"][at], self._entries["term"][at]

    def _read(self, segment: Segment) -> Iterator[FrameHeader]:
        before: FrameHeader | None = None
        for place in segment.places:
            for header in self._in_place(place):
                if before is not None and not _follows(header, before):
                    raise _damaged(self._copy.found(place), header.position, "the frame does not follow the one before")
                yield header
                before = header

    def _in_place(self, place: Place) -> Iterator[FrameHeader]:
        """Yields the headers in one file or object, which contains complete frames."""
        block, start, at = b"", place.base, place.base  # `block` has the bytes from position `start` on
        while at < place.end:
            if at + HEADER_SIZE > start + len(block):
                start = at
                block = self._copy.read(place, at, min(place.end, at + self._copy.read_bytes))
            try:
                header = FrameHeader(block[at - start : at - start + HEADER_SIZE])
            except FrameError as error:
                raise _damaged(self._copy.found(place), at, str(error)) from error
            if header.position != at:
                raise _damaged(self._copy.found(place), at, f"the frame there is that of position {header.position}")
            yield header
            at += header.frame_length


def _follows(header: FrameHeader, before: FrameHeader) -> bool:
    """Returns True if `header` follows `before`, chained as in `raftlog.frame.check_follows`; the payload is not
    examined."""
    chained: bool = header.parent == before.header_crc and header.index == before.index + 1
    return chained and header.position == before.position + before.frame_length


def _damaged(place: Place, position: int, why: str) -> CopyError:
    return CopyError(
        f"{place.name} is damaged at position {position} of the log",
        why,
        "index and term of what follows are not known; leave these columns out, or use another copy",
    )
