"""Counts the bytes of messages that each topic has on this node's disk.

All topics share one log, so no file belongs to a topic. The module counts the stored size of the messages in the
topic's queues that are in this node's log. It does not count the log's own headers (some 100 bytes per entry), messages
that are only in the tier, or messages that are in no queue (scheduled, half and staged messages have metrics of their
own). The queues' rows have the size of each message. Reading all of them would read 32 bytes per message, so only
BLOCKS_MAX blocks of rows are read, spread over each topic: few messages are counted exactly, many are estimated by the
mean size of those that were read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

from cluster.runtime.figures.service_metrics import ServiceMetrics
from raftlog.errors import InvariantViolationError
from statemachine.consume_queue import BLOCK
from statemachine.payload import ITEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from statemachine.broker_state import BrokerState
    from statemachine.topics.topics import TopicConfig

BLOCKS_MAX = 1000
"""The most blocks of rows, of BLOCK messages each, that are read for all topics: less than 0.1 s of a thread."""
TOPIC_BLOCKS_MAX = 256
"""The most blocks that are read for one topic."""
LARGEST_MAX = 200
"""The most topics that the metrics show."""
ALL_MAX = 2_000
"""The most topics of a cluster in which all topics are measured when a caller asks for some of them."""
FRESH_MS = 10_000
"""Milliseconds after a measurement in which the sizes of all topics are not measured again."""
REST = 50
"""The sizes are also not measured again for REST times the duration of the last measurement. With 100,000 topics a
measurement takes a second, in which its thread competes with the event loop for Python's lock."""


class TopicSize(NamedTuple):
    """The bytes that a topic's messages take on this node's disk."""

    bytes: int
    exact: bool
    """False if the size is estimated by the mean size of some of the messages."""


class QueueSpan(NamedTuple):
    """The messages of one queue that are in this node's log: `first` <= offset < `end`."""

    queue_id: int
    first: int
    end: int

    @property
    def messages(self) -> int:
        """The number of the messages."""
        return self.end - self.first

    @property
    def blocks(self) -> int:
        """The number of blocks that the messages' rows take."""
        return -(-self.messages // BLOCK)


def queue_spans(state: BrokerState, topic: TopicConfig) -> Iterator[QueueSpan]:
    """Yields a QueueSpan for each queue of the topic that has messages on this node. Any thread may call it."""
    for queue_id in range(state.stored_queues(topic)):
        end = state.max_offset(topic.id, queue_id)  # read before the first offset, which retention may move past it
        first = min(state.min_offset(topic.id, queue_id), end)
        if first < end:
            yield QueueSpan(queue_id, first, end)


def measure(state: BrokerState, topics: Iterable[TopicConfig], blocks_max: int) -> dict[int, TopicSize]:
    """Returns topic id -> size. Reads at most `blocks_max` blocks of rows, and at least one for each topic while they
    last; a topic for which none is left is not in the result. Any thread may call it."""
    spans = {topic.id: list(queue_spans(state, topic)) for topic in topics}
    blocks = {topic_id: sum(span.blocks for span in rows) for topic_id, rows in spans.items()}
    total, left = sum(blocks.values()), blocks_max
    found: dict[int, TopicSize] = {}
    found |= {topic_id: TopicSize(0, exact=True) for topic_id, rows in spans.items() if not rows}
    filled = [item for item in spans.items() if item[1]]
    for topic_id, rows in sorted(filled, key=lambda item: -blocks[item[0]]):
        share = blocks[topic_id] if total <= blocks_max else max(1, blocks_max * blocks[topic_id] // total)
        size = _size(state, topic_id, rows, blocks[topic_id], min(share, left))
        left -= min(share, left, blocks[topic_id])
        if size is not None:
            found[topic_id] = size
    return found


def _size(state: BrokerState, topic_id: int, spans: list[QueueSpan], blocks: int, reads: int) -> TopicSize | None:
    picked = iter(sorted({(2 * at + 1) * blocks // (2 * reads) for at in range(reads)}))
    messages, seen, size, begun = sum(span.messages for span in spans), 0, 0, 0
    at = next(picked, None)
    for span in spans:
        while at is not None and at < begun + span.blocks:
            items = _items(state, topic_id, span, at - begun)
            seen += len(items) // ITEM.size
            size += sum(item[1] for item in ITEM.iter_unpack(items))
            at = next(picked, None)
        begun += span.blocks
    if not seen:
        return None
    return TopicSize(size, exact=True) if seen == messages else TopicSize(size * messages // seen, exact=False)


def _items(state: BrokerState, topic_id: int, span: QueueSpan, block: int) -> bytes:
    start = span.first + block * BLOCK
    try:
        return state.fetch_packed(topic_id, span.queue_id, start, min(BLOCK, span.end - start))
    except InvariantViolationError:  # the topic was deleted meanwhile
        return b""


class Measured(NamedTuple):
    """The sizes of topics, as of one applied entry."""

    applied_index: int
    sizes: Mapping[int, TopicSize]
    """Topic id -> its size."""
    largest: Mapping[int, int] = {}
    """Topic id -> bytes, of the largest topics; {} unless all topics were measured. They are chosen off the event
    loop."""


class TopicSizes:
    """Measures the sizes of topics on a thread, when a caller asks. Event loop only."""

    def __init__(self, state: BrokerState, monotonic_ms: Callable[[], int]) -> None:
        self._state = state
        self._monotonic_ms = monotonic_ms
        self._last = Measured(-1, {})
        self._fresh_until_ms = self._begun_ms = 0
        self._running: asyncio.Future[Measured] | None = None

    @property
    def last(self) -> Measured:
        """The last measurement of all topics; an empty one before the first."""
        return self._last

    async def all(self) -> Measured:
        """Returns the sizes of all topics. They are at most FRESH_MS old, or REST times the duration of their
        measurement. Callers that ask at the same time share one measurement."""
        if self._last.applied_index >= 0 and self._monotonic_ms() < self._fresh_until_ms:
            return self._last
        if self._running is None:
            loop = asyncio.get_running_loop()
            self._running = asyncio.ensure_future(loop.run_in_executor(None, self._look))
            self._begun_ms = self._monotonic_ms()
            self._running.add_done_callback(self._done)
        return await asyncio.shield(self._running)

    async def among(self, topics: Sequence[TopicConfig]) -> Measured:
        """Returns the sizes of these topics, measured now. In a cluster with at most ALL_MAX topics, returns the result
        of `all`."""
        if len(self._state.topics) <= ALL_MAX:
            return await self.all()
        applied = self._state.applied.index
        look = asyncio.get_running_loop().run_in_executor(None, measure, self._state, list(topics), BLOCKS_MAX)
        return Measured(applied, await look)

    async def of(self, topic: TopicConfig) -> TopicSize | None:
        """Returns the present size of one topic; None if there is no such topic."""
        look = asyncio.get_running_loop().run_in_executor(None, measure, self._state, [topic], TOPIC_BLOCKS_MAX)
        return (await look).get(topic.id)

    def _look(self) -> Measured:
        applied = self._state.applied.index  # read before the rest: what follows is at least as new
        sizes = measure(self._state, list(self._state.topics.values()), BLOCKS_MAX)
        largest = nlargest(LARGEST_MAX, ((size.bytes, topic_id) for topic_id, size in sizes.items()))
        return Measured(applied, sizes, {topic_id: size for size, topic_id in largest})

    def _done(self, looked: asyncio.Future[Measured]) -> None:
        self._running = None
        if not looked.cancelled() and looked.exception() is None:
            self._last = looked.result()
            now_ms = self._monotonic_ms()
            self._fresh_until_ms = now_ms + max(FRESH_MS, REST * (now_ms - self._begun_ms))


class TopicSizeMetrics(ServiceMetrics):
    """Gauges of the sizes of topics by the last measurement. A scrape asks for a new measurement first."""

    def __init__(self, sizes: TopicSizes, state: BrokerState) -> None:
        super().__init__()
        self._sizes = sizes
        self._state = state
        self._bytes = self.gauge(
            "raftmq_topic_bytes",
            "Bytes of the topic's messages in this node's log, about (the largest topics)",
            ["topic"],
        )
        self._left_out = self.gauge(
            "raftmq_topic_bytes_left_out", "Topics left out of raftmq_topic_bytes because there are too many"
        )

    def look(self) -> None:
        """Shows the largest topics."""
        last, topics = self._sizes.last, self._state.topics_by_id
        self._bytes.clear()
        for topic, size in last.largest.items():
            if topic in topics:
                self._bytes.labels(topics[topic].name).set(size)
        self._left_out.set(max(0, len(last.sizes) - LARGEST_MAX))
