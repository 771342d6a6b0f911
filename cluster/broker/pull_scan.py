"""Which messages a pull gets: chosen by their rows in the queue, or by reading them where a filter needs properties.

Every way is bounded: one pull holds the event loop for a few milliseconds and goes on at the next, from `next_offset`.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster.broker.filters.sql import SqlFilter
from cluster.broker.log_reads import read_intact
from cluster.broker.pull import Pull
from cluster.broker.services import Services
from cluster.wire.message_format import parse_properties, stored_properties
from statemachine.query import QueueItem

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


class Found(NamedTuple):
    """What a pull gets."""

    items: list[QueueItem]
    pieces: list[bytes]
    """The stored messages of `items`."""
    next_offset: int
    """Where to go on."""
    unread: QueueItem | None = None
    """The message at `next_offset`, if the pull ends there because it cannot be read intact."""


def choose(services: Services, pull: Pull, high: int) -> tuple[list[QueueItem], int]:
    """By rows: the items to send, within the pull's limits but at least one if any matches, and where to go on."""
    assert not isinstance(pull.wanted, SqlFilter)
    if pull.wanted is not None:
        return _choose_tags(services, pull, pull.wanted, high)
    count_max = min(pull.messages_max, high - pull.offset)
    items = services.state.fetch(pull.topic_id, pull.queue_id, pull.offset, count_max)
    total = 0
    for count, item in enumerate(items):
        total += item.size
        if total > pull.bytes_max and count:
            del items[count:]
            break
    return items, pull.offset + len(items)


def _choose_tags(services: Services, pull: Pull, tags: frozenset[int], high: int) -> tuple[list[QueueItem], int]:
    fetch = services.state.fetch
    matched: list[QueueItem] = []
    total = 0
    at, stop = pull.offset, min(high, pull.offset + SCAN_MAX)
    while at < stop:
        window = fetch(pull.topic_id, pull.queue_id, at, min(SCAN_WINDOW - at % SCAN_WINDOW, stop - at))
        if not window:  # trimmed since the bounds were looked up: the next pull learns it
            break
        for item in window:
            at = item.queue_offset + 1
            if item.tag_hash not in tags:
                continue
            total += item.size
            if total > pull.bytes_max and matched:
                return matched, item.queue_offset
            matched.append(item)
            if len(matched) == pull.messages_max:
                return matched, at
    return matched, at


def read(services: Services, items: list[QueueItem], next_offset: int) -> Found:
    """What was chosen, up to the first that cannot be read intact."""
    pieces = read_intact(services, items)
    if len(pieces) == len(items):
        return Found(items, pieces, next_offset)
    bad = items[len(pieces)]
    return Found(items[: len(pieces)], pieces, bad.queue_offset, bad)


def search(services: Services, pull: Pull, wanted: SqlFilter, high: int) -> Found:
    """By properties: reads the messages from the pull's offset on, at least one, and keeps those that the filter wants.

    Only intact ones are judged: damage must not make a message unwanted.
    """
    items: list[QueueItem] = []
    pieces: list[bytes] = []
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
                if total > pull.bytes_max and items:
                    return Found(items, pieces, at)
                items.append(item)
                pieces.append(piece)
            at = item.queue_offset + 1
            if len(items) == pull.messages_max or services.monotonic_ms() >= until_ms:
                return Found(items, pieces, at)
        if len(intact) < len(window):
            return Found(items, pieces, at, window[len(intact)])
    return Found(items, pieces, at)


def _window(services: Services, pull: Pull, at: int, stop: int) -> list[QueueItem]:
    """The next items to read in one go, at least one unless the queue was trimmed."""
    items = services.state.fetch(pull.topic_id, pull.queue_id, at, min(SEARCH_WINDOW, stop - at))
    total = 0
    for count, item in enumerate(items):
        total += item.size
        if total > SEARCH_WINDOW_BYTES and count:
            return items[:count]
    return items
