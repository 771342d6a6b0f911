"""Which messages a pull gets: chosen by their rows in the queue, or by reading them where a filter needs properties.

Every way is bounded: one pull holds the event loop for a few milliseconds and goes on at the next, from `next_offset`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from cluster.broker.filters.sql import SqlFilter
from cluster.broker.log_reads import read_body, read_intact
from cluster.broker.pull import Pull
from cluster.broker.recent_blocks import RecentBlocks
from cluster.broker.services import Services
from cluster.broker.stored_bodies import extent_of
from cluster.wire.message_format import parse_properties, stored_properties
from statemachine.payload import ITEM
from statemachine.query import QueueItem, unpack_items

SCAN_MAX = 4096
"""Queue items looked at by one pull with a tag filter."""
SCAN_WINDOW = 256
"""Items per fetch: an aligned chunk of the consume queue."""
SEARCH_MAX = 1024
"""Messages read by one pull with an SQL92 filter; RocketMQ looks at 800."""
SEARCH_WINDOW = 32
SEARCH_WINDOW_BYTES = 256 << 10
"""Messages, and bytes of them, per fetch and read."""
SEARCH_BYTES_MAX = 8 << 20
SEARCH_MS_MAX = 20

_SIZE = struct.Struct(">8xI20x")
_TAG = struct.Struct(">16xq8x")
"""Of a packed item."""


class Found(NamedTuple):
    """What a pull gets."""

    messages: int
    """How many."""
    body: bytes
    """The stored messages, one behind the other."""
    next_offset: int
    """Where to go on."""
    last_position: int = -1
    """Of the last of them."""
    unread: QueueItem | None = None
    """The message at `next_offset`, if the pull ends there because it cannot be read intact."""


NOTHING = Found(0, b"", 0)
"""Of a pull that gets no message."""


class Chosen(NamedTuple):
    """What a pull is to get, by the rows of the queue."""

    items: bytes
    """Packed."""
    next_offset: int
    """Where to go on."""
    offsets: Sequence[int]
    """Of the items."""
    extent: tuple[int, int, int]
    """Of the items (`stored_bodies.extent_of`)."""


def choose(rows: RecentBlocks, pull: Pull, high: int) -> Chosen:
    """By rows: the items to send, within the pull's limits but at least one if any matches, and where to go on."""
    assert not isinstance(pull.wanted, SqlFilter)
    if pull.wanted is not None:
        return _choose_tags(rows, pull, pull.wanted, high)
    first = pull.offset
    end = min(first + pull.messages_max, high)
    items = rows.between(pull.topic_id, pull.queue_id, first, end, high)
    extent = extent_of(items)
    if extent[1] > pull.bytes_max:  # else they have fewer bytes as well
        items = items[: ITEM.size * _fitting(items, pull.bytes_max)]
        extent = extent_of(items)
    end = first + len(items) // ITEM.size
    return Chosen(items, end, range(first, end), extent)


def _fitting(items: bytes, bytes_max: int) -> int:
    """How many of the packed items have no more than `bytes_max` bytes of messages together; at least one."""
    ends = list(accumulate([size for (size,) in _SIZE.iter_unpack(items)]))
    return max(1, bisect_right(ends, bytes_max))


def _choose_tags(rows: RecentBlocks, pull: Pull, tags: frozenset[int], high: int) -> Chosen:
    parts: list[bytes] = []
    offsets: list[int] = []
    total = 0
    at, stop = pull.offset, min(high, pull.offset + SCAN_MAX)
    while at < stop:
        window = rows.between(pull.topic_id, pull.queue_id, at, min(at - at % SCAN_WINDOW + SCAN_WINDOW, stop), high)
        if not window:  # trimmed since the bounds were looked up: the next pull learns it
            break
        for number in [number for number, (tag,) in enumerate(_TAG.iter_unpack(window)) if tag in tags]:
            item = window[number * ITEM.size : (number + 1) * ITEM.size]
            total += _SIZE.unpack(item)[0]
            if total > pull.bytes_max and parts:
                return _chosen(parts, at + number, offsets)
            parts.append(item)
            offsets.append(at + number)
            if len(parts) == pull.messages_max:
                return _chosen(parts, at + number + 1, offsets)
        at += len(window) // ITEM.size
    return _chosen(parts, at, offsets)


def _chosen(parts: list[bytes], next_offset: int, offsets: list[int]) -> Chosen:
    items = b"".join(parts)
    return Chosen(items, next_offset, offsets, extent_of(items))


def read(services: Services, chosen: Chosen) -> Found:
    """What was chosen, up to the first that cannot be read intact."""
    items = chosen.items
    body, count = read_body(services, items, chosen.extent)
    if count * ITEM.size == len(items):
        return Found(count, body, chosen.next_offset, chosen.extent[2])
    bad = unpack_items(items[count * ITEM.size : (count + 1) * ITEM.size], chosen.offsets[count])[0]
    return Found(count, body, bad.queue_offset, unread=bad)


def search(services: Services, pull: Pull, wanted: SqlFilter, high: int) -> Found:
    """By properties: reads the messages from the pull's offset on, at least one, and keeps those that the filter wants.

    Only intact ones are judged: damage must not make a message unwanted.
    """
    pieces: list[bytes] = []
    last = -1
    total = read_bytes = 0
    at, stop = pull.offset, min(high, pull.offset + SEARCH_MAX)
    until_ms = services.monotonic_ms() + SEARCH_MS_MAX
    while at < stop and read_bytes < SEARCH_BYTES_MAX:
        window = _window(services, pull, at, stop)
        if not window:  # trimmed since the bounds were looked up: the next pull learns it
            break
        read_bytes += sum([item.size for item in window])
        intact = read_intact(services, window)
        for item, piece in zip(window, intact, strict=False):
            if wanted.matches(parse_properties(stored_properties(piece))):
                total += item.size
                if total > pull.bytes_max and pieces:
                    return _found(pieces, at, last)
                pieces.append(piece)
                last = item.position
            at = item.queue_offset + 1
            if len(pieces) == pull.messages_max or services.monotonic_ms() >= until_ms:
                return _found(pieces, at, last)
        if len(intact) < len(window):
            return _found(pieces, at, last)._replace(unread=window[len(intact)])
    return _found(pieces, at, last)


def _found(pieces: list[bytes], next_offset: int, last: int) -> Found:
    return Found(len(pieces), b"".join(pieces), next_offset, last)


def _window(services: Services, pull: Pull, at: int, stop: int) -> list[QueueItem]:
    """The next items to read in one go, at least one unless the queue was trimmed."""
    items = services.state.fetch(pull.topic_id, pull.queue_id, at, min(SEARCH_WINDOW, stop - at))
    total = 0
    for count, item in enumerate(items):
        total += item.size
        if total > SEARCH_WINDOW_BYTES and count:
            return items[:count]
    return items
