"""Chooses messages for a pull by their rows in the queue: all of them, or those with certain tags.

The work of a pull is bounded: it looks at a limited number of rows, and the next pull continues at `next_offset`. The
module `filter_search` chooses messages by their properties.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.reads.log_reads import read_body
from cluster.broker.reads.pull_bodies import extent_of
from cluster.broker.reads.pull_values import Pull
from cluster.broker.services import Services
from raftlog.work import METER, charge
from statemachine.consume_queue import BLOCK
from statemachine.payload import ITEM
from statemachine.queue_reads import QueueItem, unpack_items

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState


SCAN_MAX = 4096
"""The most rows of the queue that one pull with a tag filter looks at."""
SCAN_WINDOW = 256
"""The number of rows that are read at a time: an aligned chunk of the consume queue."""
WINDOW_UNITS, STEP_UNITS = 40, 250
"""The units of work (`raftlog.work`) of looking at one chunk of SCAN_WINDOW rows, and the units after which a step
ends."""

_SIZE = struct.Struct(">8xI20x")
_TAG = struct.Struct(">16xq8x")
"""Unpacks the tag's hash from a packed item."""


class Found(NamedTuple):
    """The messages that a pull gets, as they were read."""

    messages: int
    """The number of messages."""
    body: bytes
    """The stored messages, back to back."""
    next_offset: int
    """The offset at which the next pull continues."""
    last_position: int = -1
    """The position in the log of the last message; -1 if there is none, or if the caller did not determine it."""
    unread: QueueItem | None = None
    """The message at `next_offset`, if the result ends there because that message cannot be read intact; otherwise
    None."""


NOTHING = Found(0, b"", 0)
"""The result of a pull that gets no message."""


class Chosen(NamedTuple):
    """The messages that were chosen for a pull by the rows of the queue."""

    items: bytes
    """The messages' items, packed."""
    next_offset: int
    """The offset at which the next pull continues."""
    offsets: Sequence[int]
    """The queue offsets of the items."""
    extent: tuple[int, int, int]
    """The position and size of the items' messages in the log, as `extent_of` returns them."""


def choose(rows: RecentBlocks, pull: Pull, high: int) -> Chosen:
    """Chooses all messages from the pull's offset up to `high`, at least one and not more than the pull allows."""
    first = pull.offset
    end = min(first + pull.messages_max, high)
    items = rows.between(pull.topic_id, pull.queue_id, first, end, high)
    extent = extent_of(items)
    if extent[1] > pull.bytes_max:  # the messages have at most as many bytes as their extent in the log
        items = items[: ITEM.size * _fitting(items, pull.bytes_max)]
        extent = extent_of(items)
    end = first + len(items) // ITEM.size
    return Chosen(items, end, range(first, end), extent)


def _fitting(items: bytes, bytes_max: int) -> int:
    """Returns the number of packed items whose messages together have at most `bytes_max` bytes; at least one."""
    ends = list(accumulate([size for (size,) in _SIZE.iter_unpack(items)]))
    return max(1, bisect_right(ends, bytes_max))


class ScanBounds(NamedTuple):
    """The limits of one scan by tags."""

    window: int = SCAN_WINDOW
    window_units: int = WINDOW_UNITS
    step_units: int = STEP_UNITS


SCAN_BOUNDS = ScanBounds()


def choosing(
    rows: RecentBlocks, pull: Pull, tags: frozenset[int], high: int, bounds: ScanBounds = SCAN_BOUNDS
) -> Generator[None, None, Chosen]:
    """Chooses the messages with one of the tags, from the pull's offset up to `high`, in bounded steps."""
    parts: list[bytes] = []
    offsets: list[int] = []
    total = 0
    at, stop = pull.offset, min(high, pull.offset + SCAN_MAX)
    began = METER.units
    span = bounds.window
    while at < stop:
        if METER.units - began >= bounds.step_units:
            yield
            began = METER.units
        charge(bounds.window_units)
        window = rows.between(pull.topic_id, pull.queue_id, at, min(at - at % span + span, stop), high)
        if not window:  # the queue was trimmed meanwhile; the next pull sees it
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
    """Reads the chosen messages, up to the first one that cannot be read intact."""
    items = chosen.items
    body, count = read_body(services, items, chosen.extent)
    if count * ITEM.size == len(items):
        return Found(count, body, chosen.next_offset, chosen.extent[2])
    bad = unpack_items(items[count * ITEM.size : (count + 1) * ITEM.size], chosen.offsets[count])[0]
    return Found(count, body, bad.queue_offset, unread=bad)


# The code below caches blocks of consume queues that were read recently. A consumer that reads a queue in order needs
# each block several times.
# A cached block cannot become wrong: a full block never changes, the id of a topic is never used again, and the caller
# has just looked up the queue's bounds. Cached rows may have been trimmed since. Then the messages that they name are
# gone from the log, which may also happen to rows that were just read.

BLOCKS_MAX = 512
"""The most blocks in memory, 4 MiB together. Beyond that, the block that was read first is dropped. Its reader no
longer needs it, unless more than BLOCKS_MAX queues are read at once."""


class RecentBlocks:
    """Keeps recently read blocks of rows by topic, queue and first offset. Event loop only."""

    def __init__(self, state: BrokerState, blocks_max: int = BLOCKS_MAX) -> None:
        self._state = state
        self._blocks_max = blocks_max
        self._blocks: dict[tuple[int, int, int], bytes] = {}

    def between(self, topic_id: int, queue_id: int, start: int, end: int, high: int) -> bytes:
        """Returns the packed items (`payload.ITEM`) with start <= queue_offset < end. The caller has just seen that the
        queue has these rows and ends at `high`. Returns b"" if the first of them was trimmed since."""
        base = start - start % BLOCK
        if end <= base + BLOCK <= high and (rows := self._closed(topic_id, queue_id, base)):
            return rows[(start - base) * ITEM.size : (end - base) * ITEM.size]
        return self._state.fetch_packed(topic_id, queue_id, start, end - start)

    def _closed(self, topic_id: int, queue_id: int, base: int) -> bytes:
        """Returns the block that begins at `base`; b"" if its first rows are gone."""
        name = (topic_id, queue_id, base)
        rows = self._blocks.get(name)
        if rows is None:
            rows = self._state.fetch_packed(topic_id, queue_id, base, BLOCK)
            if rows:
                if len(self._blocks) >= self._blocks_max:
                    del self._blocks[next(iter(self._blocks))]
                self._blocks[name] = rows
        return rows
