"""Serves the bounds of the segment files of this node's log, for a peer that builds a log.

    `segment` [position]   fields: [previous term, index, end position, header CRC, segment base, timestamp ms,
                                    position where the file's last frame ends, 1 if the file is complete]

`previous` is the tail of the log before the file's first frame. The answer itself proves nothing; the frames that are
fetched afterwards (`log`, cluster/repair/log_source.py) do, because each names the one before.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from cluster.repair.asking import Fetches, ask
from cluster.repair.fetch import Fetched, Refused, Source, Status
from raftlog.errors import FrameError, OutOfRangeError
from raftlog.storage.log_reader import SegmentSpan
from raftlog.types import LogTail, NodeId

SEGMENT = "segment"
TIMEOUT_MS = 5000
_FIELDS = 8


class Spans(Protocol):
    """The part of SegmentedLog that is read."""

    def segment_at(self, position: int) -> SegmentSpan:
        """The segment file that holds `position`."""


class Place(NamedTuple):
    """A segment file of a peer."""

    previous: LogTail
    end_position: int
    sealed: bool


def segment_source(log: Spans) -> Source:
    """See the module."""

    def answer(arguments: list[Any]) -> Fetched:
        (position,) = arguments
        if type(position) is not int or position < 0:
            raise ValueError(f"a position is a number, not {position!r:.40}")
        try:
            span = log.segment_at(position)
        except OutOfRangeError as error:
            raise Refused(Status.MISSING, str(error)) from error
        return Fetched([*span.previous, span.end_position, int(span.sealed)], b"")

    return answer


async def ask_place(client: Fetches, peer: NodeId, position: int) -> Place:
    """The segment file in which `peer` has this position. Raises FetchError, FrameError."""
    fields = (await ask(client, peer, SEGMENT, [position], TIMEOUT_MS)).fields
    if len(fields) != _FIELDS or not all(type(field) is int for field in fields):
        raise FrameError(f"node {peer} describes its segment as {fields!r:.80}")
    place = Place(LogTail(*fields[:6]), fields[6], bool(fields[7]))
    if not place.previous.end_position <= position < place.end_position or place.previous.index < -1:
        raise FrameError(f"node {peer} names a segment that does not hold position {position}: {place}")
    return place
