"""The log as the tier holds it: messages by position, each compared with the checksum that its queue has for it.

Damaged bytes are never returned. If a message does not match, it is fetched again past the cache, then from another
source (the node's own log, a replica). If it does not match there either, the read fails.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from cluster.broker.reads.pull_bodies import POSITION_SIZE, body_of
from cluster.tier.fetch.errors import DamagedError, NotTieredError
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.store.errors import BadAnswer, NotFound, StoreError
from statemachine.payload import ITEM
from statemachine.tier import LOG_PREFIX, TierPart, TierSegment, TierState

logger = logging.getLogger(__name__)

OtherSource = Callable[[int, int], Awaitable[bytes | None]]
"""A function (position, size) that returns these bytes of the log from another source, not checked yet; None if nobody
has them."""


class TierPiece(NamedTuple):
    """An object that holds the log's bytes [base, end)."""

    base: int
    end: int
    name: str


class Messages(NamedTuple):
    """Intact messages of a queue."""

    body: bytes
    """Stored messages back to back."""
    count: int  # type: ignore[assignment]  # hides tuple.count


class LogCounts:
    """Counts of messages and bytes that were read from the tier since the process started."""

    def __init__(self) -> None:
        self.served_bytes = 0
        self.damaged = 0
        """Messages that did not match their checksum when they were first read."""
        self.mended = 0
        """Damaged messages that were intact when they were fetched again, or from another source."""

    def served(self, size: int) -> None:
        """Counts bytes that were answered."""
        self.served_bytes += size

    def was_damaged(self) -> None:
        """Counts a message that did not match."""
        self.damaged += 1

    def was_mended(self) -> None:
        """Counts a damaged message for which an intact copy was found."""
        self.mended += 1


class TierLog:
    """Reads the log from the tier, by position. Event loop only."""

    def __init__(
        self,
        reads: ObjectReads,
        rows: Callable[[], Sequence[TierSegment]],
        folder: str,
        elsewhere: OtherSource | None = None,
    ) -> None:
        """`rows` returns the state's rows of segments, lowest first. `folder`: the cluster's folder in the store.
        `elsewhere`: the other source that is asked for a damaged message; None: there is none."""
        self.counts = LogCounts()
        self._reads = reads
        self._rows = rows
        self._folder = folder
        self._elsewhere = elsewhere

    async def messages(self, items: bytes, *, dense: bool = False, blocks: bool = False) -> Messages:
        """Reads the messages of the packed items, ascending by position, up to the first that cannot be read. `dense`:
        the queue is dense (`DENSE`). `blocks`: True if the messages that follow will be wanted too; then bytes that the
        cache lacks are fetched to the end of their block.

        Raises StoreError if the first message cannot be read: DamagedError, NotTieredError, or the error of the store.
        """
        pieces = self._pieces(items)
        spans = _cut(items, pieces, dense=dense)
        found = await asyncio.gather(
            *(self._span(span, pieces, blocks=blocks) for span in spans), return_exceptions=True
        )
        bodies: list[bytes] = []
        count = 0
        for span, result in zip(spans, found, strict=True):
            if isinstance(result, BaseException):
                if not isinstance(result, StoreError) or not count:
                    raise result
                break
            bodies.append(result.body)
            count += result.count
            if result.count * ITEM.size < len(span.items):
                break
        body = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        self.counts.served(len(body))
        return Messages(body, count)

    async def part(self, position: int, size_max: int) -> bytes:
        """Returns up to `size_max` bytes of the log from `position` on, from one object, without checking them. Raises
        StoreError; NotTieredError if no verified segment has the position."""
        for row in self._rows():
            if row.state is TierState.VERIFIED and row.base <= position < row.end:
                for base, end, name in pieces_of(row, self._folder):
                    if base <= position < end:
                        return await self._reads.read(name, position - base, min(end, position + size_max) - base)
        raise NotTieredError(f"no verified segment of the tier has position {position} of the log")

    async def warm(self, items: bytes, *, dense: bool) -> None:
        """Fetches the messages that the packed items name into the cache. Raises StoreError."""
        pieces = self._pieces(items)

        async def fetch(span: LogSpan) -> None:
            base, end, name = self._piece(span, pieces)
            await self._reads.fetch(name, span.start - base, span.stop - base, reach=end - base if dense else 0)

        await asyncio.gather(*(fetch(span) for span in _cut(items, pieces, dense=dense)))

    def _pieces(self, items: bytes) -> list[TierPiece]:
        """Returns the objects that may hold the items' messages."""
        if not items:
            return []
        first, last = POSITION_SIZE.unpack_from(items)[0], POSITION_SIZE.unpack_from(items, len(items) - ITEM.size)[0]
        rows = self._rows()
        low = bisect_right(rows, first, key=lambda row: row.end)
        high = bisect_right(rows, last, key=lambda row: row.base)
        verified = [row for row in rows[low:high] if row.state is TierState.VERIFIED]
        return [piece for row in verified for piece in pieces_of(row, self._folder)]

    async def _span(self, span: LogSpan, pieces: Sequence[TierPiece], *, blocks: bool) -> Messages:
        base, end, name = self._piece(span, pieces)
        reach = end - base if blocks else 0
        try:
            block = await self._reads.read(name, span.start - base, span.stop - base, reach=reach)
        except (BadAnswer, NotFound) as error:
            logger.debug("tier: %s", error)  # `Broken` has logged it as a warning, once
            block = b""
        body, count = body_of(span.items, block, span.start)
        bodies = [body]
        wanted = len(span.items) // ITEM.size
        while count < wanted:
            item = span.items[count * ITEM.size : (count + 1) * ITEM.size]
            try:
                bodies.append(await self._once_more(item, pieces))
            except StoreError:
                if not count:
                    raise
                break
            rest, intact = body_of(span.items[(count + 1) * ITEM.size :], block, span.start)
            bodies.append(rest)
            count += 1 + intact
        return Messages(b"".join(bodies), count)

    async def _once_more(self, item: bytes, pieces: Sequence[TierPiece]) -> bytes:
        """Reads a message again that did not match its CRC: from the store, then from the other source. Raises
        DamagedError if neither has it intact, and at once while a pause of this message lasts (`Broken`)."""
        position, size = POSITION_SIZE.unpack(item)
        base, _, name = self._piece(LogSpan(position, position + size, item), pieces)
        message = f"{self._reads.where(name)} at position {position} of the log"
        broken = self._reads.broken
        broken.check(message)
        self.counts.was_damaged()
        logger.debug("tier: the message at position %d is not intact; it is fetched again", position)
        why = ""
        try:
            data = await self._reads.read(name, position - base, position + size - base, fresh=True)
        except (BadAnswer, NotFound) as error:
            why = error.what
            data = b""
        body, intact = body_of(item, data, position)
        if not intact and self._elsewhere is not None:
            body, intact = body_of(item, await self._elsewhere(position, size) or b"", position)
        if not intact:
            damaged = DamagedError(
                f"the message at position {position} ({size} bytes) cannot be had intact: "
                f"{why or f'it does not match its CRC in {self._reads.where(name)}'}",
                "raftmq tier verify, then raftmq tier repair",
            )
            if not why:
                broken.failed(message, damaged)  # otherwise the object as a whole is recorded as broken
            raise damaged
        broken.whole(message)
        self.counts.was_mended()
        return body

    @staticmethod
    def _piece(span: LogSpan, pieces: Sequence[TierPiece]) -> TierPiece:
        """Returns the object that holds the span. Raises NotTieredError."""
        number = bisect_right(pieces, span.start, key=lambda piece: piece.base) - 1
        if number < 0 or span.stop > pieces[number].end:
            raise NotTieredError(
                f"no verified segment of the tier has the bytes {span.start} to {span.stop} of the log"
            )
        return pieces[number]


def _cut(items: bytes, pieces: Sequence[TierPiece], *, dense: bool) -> list[LogSpan]:
    return list(spans_of(items, tuple(piece.end for piece in pieces), DENSE if dense else AMPLIFICATION))


def pieces_of(row: TierSegment, folder: str) -> list[TierPiece]:
    """Returns the objects with the frames of a segment, in order: their names begin with their positions."""
    pieces: list[TierPiece] = []
    at = row.base
    for part in sorted(log_parts(row), key=lambda part: part.name):
        pieces.append(TierPiece(at, at + part.size, f"{folder}/{part.name}"))
        at += part.size
    return pieces


def log_parts(row: TierSegment) -> list[TierPart]:
    """Returns the parts of the segment that hold frames."""
    return [part for part in row.parts if part.name.startswith(LOG_PREFIX)]


# Chooses the ranges of the log that are read for messages of one queue: neighbours are read together, others
# separately.
#
# A request costs as much as the transfer of some hundred KiB, so messages that lie close together are fetched together.
# A span has at most AMPLIFICATION times the bytes of the messages in it, and therefore so has any sum of spans.
#
# This bound alone would take a request for each message of a topic with a few queues, whose messages take turns in the
# log. A queue whose messages make up at least 1/DENSE of the bytes of the log is therefore read in blocks. The blocks
# hold messages of the other queues too, which are then in the cache when those queues are read.

AMPLIFICATION = 3
DENSE = 16
"""A queue is dense if its messages make up more than 1/DENSE of the log's bytes from its first message to its last. A
span of a dense queue may have DENSE times the bytes of the messages in it."""
_LOOKED_AT = 64
"""About the number of messages from whose sizes the size of all messages of a queue is estimated."""
GAP_BYTES_MAX = 512 << 10
"""The most bytes of other queues between two messages of a span: to transfer more takes longer than a second
request."""
SPAN_BYTES_MAX = 4 << 20
"""The most bytes of a span, unless a single message has more."""


class LogSpan(NamedTuple):
    """Bytes [start, stop) of the log, and the packed items whose messages lie in it."""

    start: int
    stop: int
    items: bytes


def is_dense(items: bytes) -> bool:
    """Returns True if the messages of the packed items, ascending by position, make up more than 1/DENSE of the log
    from the first to the last. Returns False for no items."""
    count = len(items) // ITEM.size
    if not count:
        return False
    step = -(-count // _LOOKED_AT)
    sizes = [POSITION_SIZE.unpack_from(items, at)[1] for at in range(0, len(items), step * ITEM.size)]
    first, (last, size) = (POSITION_SIZE.unpack_from(items, at * ITEM.size) for at in (0, count - 1))
    return bool(last + size - first[0] < DENSE * count * sum(sizes) / len(sizes))


def spans_of(items: bytes, ends: tuple[int, ...] = (), amplification: int = AMPLIFICATION) -> Iterator[LogSpan]:
    """Cuts the packed items (`statemachine.payload.ITEM`), ascending by position, into spans. No span crosses one of
    the ascending positions `ends`, where one object ends and another begins."""
    first = number = 0
    start = stop = useful = 0
    wall = -1
    borders = iter(ends)
    for number, (position, size) in enumerate(POSITION_SIZE.iter_unpack(items)):
        end = position + size
        joins = (
            number > first
            and position - stop <= GAP_BYTES_MAX
            and end - start <= min(SPAN_BYTES_MAX, amplification * (useful + size))
            and (wall < 0 or end <= wall)
        )
        if not joins:
            if number > first:
                yield LogSpan(start, stop, items[first * ITEM.size : number * ITEM.size])
            first, start, useful = number, position, 0
            while 0 <= wall <= position or wall < 0:
                wall = next(borders, 1 << 64)
        stop, useful = end, useful + size
    if items:
        yield LogSpan(start, stop, items[first * ITEM.size :])
