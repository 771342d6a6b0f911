"""Which ranges of the log are read for messages of one queue: neighbours together, others of their own.

A request costs as much as some hundred KiB of transfer, so what lies close together is fetched together. The bound is
per span: a span has at most AMPLIFICATION times the bytes of the messages in it, therefore so has any sum of spans.

That would be a request for each message of a topic with a few queues, whose messages take turns in the log. So a queue
that is a good part of the log is read in blocks (DENSE): the blocks have the messages of the other queues, too, and the
cache has them when these are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cluster.broker.stored_bodies import POSITION_SIZE
from statemachine.payload import ITEM

AMPLIFICATION = 3
DENSE = 16
"""A queue with more than one byte of so many in the log that it spreads over is dense: its spans may be so much larger
than the messages in them."""
_LOOKED_AT = 64
"""Messages whose sizes tell how dense a queue is."""
GAP_BYTES_MAX = 512 << 10
"""Bytes of other queues between two messages of a span: more take longer than a request of their own."""
SPAN_BYTES_MAX = 4 << 20
"""Of a span, unless a single message has more."""


class Span(NamedTuple):
    """Bytes [start, stop) of the log, and the packed items whose messages lie in it."""

    start: int
    stop: int
    items: bytes


def is_dense(items: bytes) -> bool:
    """Whether the packed items, ascending by position, are a good part of the log from the first to the last."""
    count = len(items) // ITEM.size
    if not count:
        return False
    step = -(-count // _LOOKED_AT)
    sizes = [POSITION_SIZE.unpack_from(items, at)[1] for at in range(0, len(items), step * ITEM.size)]
    first, (last, size) = (POSITION_SIZE.unpack_from(items, at * ITEM.size) for at in (0, count - 1))
    return bool(last + size - first[0] < DENSE * count * sum(sizes) / len(sizes))


def spans_of(items: bytes, ends: tuple[int, ...] = (), amplification: int = AMPLIFICATION) -> Iterator[Span]:
    """The packed items (`statemachine.payload.ITEM`), ascending by position, cut into spans. No span goes across one of
    the positions `ends`, ascending: where an object ends, another begins."""
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
                yield Span(start, stop, items[first * ITEM.size : number * ITEM.size])
            first, start, useful = number, position, 0
            while 0 <= wall <= position or wall < 0:
                wall = next(borders, 1 << 64)
        stop, useful = end, useful + size
    if items:
        yield Span(start, stop, items[first * ITEM.size :])
