"""The interface that every copy of the log implements, and the division of a read into parts.

A part belongs to one segment. It has one span for each queue that is read, so a segment is read once for all of its
queues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from raftmq.arrow.ranges import Catalog, QueueRange, Unreadable
from raftmq_wire.queue_numbers import FIRST_GROUP, number_of

PART_BYTES = 64 << 20
"""Bytes of the log that a part covers at most, approximately, unless more parts are requested."""


FILES, TIER = "files", "tier"
"""The kinds of copies, as the option `readFrom` names them."""


class CopySource(NamedTuple):
    """The location of a copy. `path`: a folder or the store's URL; `cluster`: the uuid of a tier's cluster."""

    kind: str
    path: str
    cluster: str | None = None


class CopyError(Unreadable):
    """The copy lacks data that was asked for, or it is damaged. `what` names the file and the position in the log."""


class Place(NamedTuple):
    """A file or object that contains the log's bytes [base, end)."""

    base: int
    end: int
    name: str


class Segment(NamedTuple):
    """A segment of the copy, in a form that can be sent to other processes. `index_file`: (name, size), None if it has
    none."""

    base: int
    end: int
    places: tuple[Place, ...]
    index_file: tuple[str, int] | None = None


class Span(NamedTuple):
    """Offsets [start, end) of one queue that all lie in one segment. `queue_id`: its number in its group of brokers, as
    messages are stored with it. `first_offset`: the queue's first offset in that segment."""

    topic: str
    topic_id: int
    queue_id: int
    start: int
    end: int
    first_offset: int
    group: int = FIRST_GROUP

    @property
    def number(self) -> int:
        """The number of the queue in the cluster."""
        return number_of(self.group, self.queue_id)


class CopyPart(NamedTuple):
    """The part of a copy that one task reads."""

    segment: Segment
    spans: tuple[Span, ...]

    @property
    def messages(self) -> int:
        """The number of rows that reading the part gives."""
        return sum(span.end - span.start for span in self.spans)


class Reads(Protocol):
    """The part of a copy that reads its bytes."""

    name: str
    """Folder or URL of the copy, to be shown to people."""

    def read(self, place: Place, start: int, stop: int) -> bytes:
        """Returns the log's bytes [start, stop), which lie in `place`; fewer if the file ends before. Raises
        CopyError."""

    def found(self, place: Place) -> Place:
        """Returns the place with the name under which it was actually read, for messages to people."""


class LogCopy(Catalog, Reads, Protocol):
    """A copy of the log. It is opened on Spark's driver, and again by each task. Every call may raise CopyError."""

    read_bytes: int
    """Bytes that one read should have. They are more for an object store, where a request costs more than on a disk."""

    def topics(self) -> list[str]:
        """Returns the names of all topics but the system's own, sorted."""

    def segments(self, ranges: Sequence[QueueRange]) -> list[CopyPart]:
        """Divides the ranges by segment; returns the parts, lowest segment first. Together they cover exactly the
        ranges."""

    def log(self) -> list[Segment]:
        """Returns every segment of the copy, lowest first."""

    def items(self, segment: Segment, span: Span) -> bytes:
        """Returns the packed items (`statemachine.payload.ITEM`) of the span; fewer if the copy has no more."""

    def close(self) -> None:
        """Closes the copy's files and connections."""


def cut(whole: Sequence[CopyPart], at_least: int | None, most_records: int | None) -> list[CopyPart]:
    """Divides parts further: into at least `at_least` parts if there are that many messages, none with more than
    `most_records` messages, and none that covers much more than PART_BYTES of the log."""
    total = sum(part.messages for part in whole)
    size = total if at_least is None else max(1, total // at_least)
    if most_records is not None:
        size = min(size, most_records)
    return [piece for part in whole for share in _cut(part, size) for piece in _fill(share, size)]


def _cut(part: CopyPart, size: int) -> list[CopyPart]:
    """Divides a part into pieces of about `size` messages; each piece has an equal share of every queue. Queues usually
    grow at the same time, so the shares of one piece lie close together in the segment."""
    count = max(-(-part.messages // size), -(-(part.segment.end - part.segment.base) // PART_BYTES))
    pieces = []
    for number in range(count):
        spans = tuple(_share(span, number, count) for span in part.spans)
        pieces.append(part._replace(spans=tuple(span for span in spans if span.start < span.end)))
    return [piece for piece in pieces if piece.spans]


def _fill(part: CopyPart, size: int) -> Iterator[CopyPart]:
    """Yields the part itself; if rounding its shares made it larger than `size` messages, yields smaller parts."""
    taken: list[Span] = []
    room = size
    for span in part.spans:
        while span.start < span.end:
            stop = min(span.end, span.start + room)
            taken.append(span._replace(end=stop))
            room -= stop - span.start
            span = span._replace(start=stop)
            if not room:
                yield part._replace(spans=tuple(taken))
                taken, room = [], size
    if taken:
        yield part._replace(spans=tuple(taken))


def _share(span: Span, number: int, count: int) -> Span:
    length = span.end - span.start
    start, end = (span.start + length * each // count for each in (number, number + 1))
    return span._replace(start=start, end=end)


def place_of(places: Sequence[Place], position: int) -> Place:
    """Returns the place that contains the byte at `position`. Raises CopyError."""
    number = bisect_right(places, position, key=lambda place: place.base) - 1
    if number < 0 or position >= places[number].end:
        raise CopyError(
            f"the copy has no byte at position {position} of the log",
            "its index names a message there",
            "use another copy",
        )
    return places[number]
