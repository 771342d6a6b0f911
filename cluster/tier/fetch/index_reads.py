"""Queries by key, position or store time for messages that the local log no longer holds: positions and store times
come from index files, messages from tiered segments.

As in the local index, equal hashes do not mean equal keys, and a position proves nothing. A message counts only if the
index file lists it in a queue of the topic at exactly this position, and if its bytes match the CRC in that file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import TypeVar

from cluster.broker.evicted.evicted_pulls import evicted_position
from cluster.broker.evicted.evicted_time_search import TimeAnswer
from cluster.broker.reads.message_lookup import (
    BYTES_MAX,
    CANDIDATES_MAX,
    KeyQuery,
    QueryResult,
    StoredMessage,
    is_wanted,
)
from cluster.runtime.request_limits import TOPIC_LENGTH_MAX
from cluster.tier.fetch.errors import NotTieredError
from cluster.tier.fetch.tier_log import TierLog
from cluster.tier.fetch.tier_queues import TierQueues
from cluster.tier.store.errors import StoreError
from raftlog.frame import FRAME_LENGTH_MAX
from raftlog.kept_errors import bare
from raftmq_wire.message_format import (
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    Message,
    MessageClaim,
    MessageFormatError,
    claim_in,
    decode_message,
)
from statemachine.broker_state import BrokerState
from statemachine.payload import ITEM
from statemachine.rows.keys import Queue
from statemachine.topics.topics import TopicConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_READ = 4096
"""Bytes of a message that are fetched before its size is known."""


async def _answer(look: Awaitable[T], what: str, done: Callable[[T | Exception], None]) -> None:
    """Calls `done` with what was found, or with the reason for which it is not known."""
    found: T | Exception
    try:
        found = await look
    except StoreError as error:
        logger.warning("tier: %s: %s", what, error)
        found = bare(error)
    except Exception as error:
        logger.exception("tier: %s failed", what)
        found = bare(error)
    done(found)


class EvictedKeyReads:
    """Finds messages that only the tier has, by key, and any message in the tier, by its position. Implements
    `cluster.broker.evicted.evicted_key_search.EvictedKeys`. Event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queues: TierQueues, log: TierLog, state: BrokerState) -> None:
        self._loop = loop
        self._queues = queues
        self._log = log
        self._state = state
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, topic: TopicConfig, query: KeyQuery, done: Callable[[QueryResult | Exception], None]) -> None:
        """Finds the newest messages that the query wants (`EvictedKeys.find`)."""
        self._start(self.found(topic, query), f"a query for the key {query.shown} of {topic.name}", done)

    def at(self, position: int, done: Callable[[StoredMessage | Exception | None], None]) -> None:
        """Finds the message whose first byte is at the position (`EvictedKeys.at`)."""
        self._start(self._at(position), f"a query for the position {position}", done)

    def _start(self, look: Coroutine[None, None, T], what: str, done: Callable[[T | Exception], None]) -> None:
        task = self._loop.create_task(_answer(look, what, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancels the queries in progress; their callers get no answer any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def found(self, topic: TopicConfig, query: KeyQuery) -> QueryResult:
        """Returns the wanted messages below the local log. Raises StoreError."""
        key = query.key.encode("utf-8", "replace")
        end = evicted_position(self._state)
        found: list[StoredMessage] = []
        size = read = 0
        stopped = False
        async with aclosing(self._queues.positions(topic.id, key, query.begin_ms, query.end_ms)) as positions:
            async for position in positions:
                if not self._state.kept.position <= position < end:
                    continue
                if len(found) == query.count_max or size > BYTES_MAX or read == CANDIDATES_MAX:
                    stopped = True
                    break
                stored = await self._stored(topic, query, position)
                read += 1
                if stored is not None:
                    found.append(stored)
                    size += len(stored.data)
        return QueryResult(found, None, stopped)

    async def _stored(self, topic: TopicConfig, query: KeyQuery, position: int) -> StoredMessage | None:
        """Returns the message at the position; None if the query does not want it, or if no index file confirms it."""
        message = await self._unchecked(position)
        if message is None or not is_wanted(message, topic.name, query):
            return None
        return await self._intact(topic, message, position)

    async def _at(self, position: int) -> StoredMessage | None:
        """Returns the message at the position; None if it is in no queue of an existing topic. Until an index file
        confirms the message, only its first bytes and its topic are read, because other bytes may look like a message
        of any size."""
        try:
            head = await self._log.part(position, FIRST_READ)
            claim = claim_in(head)
            tail, wanted = head[claim.topic_at :], claim.length_bytes + TOPIC_LENGTH_MAX
            if len(head) < claim.size and len(tail) < wanted:
                tail = await self._log.part(position + claim.topic_at, wanted)
        except (NotTieredError, MessageFormatError):
            return None
        topic = self._state.topics.get(claim.topic_in(tail))
        return None if topic is None else await self._intact(topic, claim, position)

    async def _intact(self, topic: TopicConfig, message: Message | MessageClaim, position: int) -> StoredMessage | None:
        """Checks a message whose bytes are not checked yet. Returns None if no queue of the topic has it at this
        position."""
        if not 0 <= message.queue_id < self._state.stored_queues(topic) or message.queue_offset < 0:
            return None
        try:
            items = await self._queues.items(topic.id, message.queue_id, message.queue_offset, 1)
        except NotTieredError:
            return None
        if items.first_offset != message.queue_offset or ITEM.unpack(items.packed)[0] != position:
            return None
        data = (await self._log.messages(items.packed)).body
        return StoredMessage(decode_message(data)[0], data, topic.name)

    async def _unchecked(self, position: int) -> Message | None:
        """Returns the message that begins at the position, without checking its bytes; None if there is none."""
        head = await self._log.part(position, FIRST_READ)
        if len(head) < HEAD.size:
            return None
        total, magic = HEAD.unpack_from(head)[:2]
        if magic not in (MAGIC_V1, MAGIC_V2) or not HEAD.size <= total <= FRAME_LENGTH_MAX:
            return None
        try:
            return decode_message(head[:total] if total <= len(head) else await self._log.part(position, total))[0]
        except MessageFormatError as error:
            logger.warning("tier: no message can be read at position %d: %s", position, error)
            return None


class EvictedBoundReads:
    """Searches a queue by store time among its messages in the tier: for the first offset at or after a time, and for
    the time of the first message. Its callers ask when this node has evicted messages that may be the result.
    Implements `cluster.broker.evicted.evicted_time_search.EvictedBounds`. Event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queues: TierQueues) -> None:
        self._loop = loop
        self._queues = queues
        self._tasks: set[asyncio.Task[None]] = set()

    def offset_by_time(self, queue: Queue, time_ms: int, done: TimeAnswer) -> None:
        """Finds the first offset that was stored at or after the time (`EvictedBounds.offset_by_time`)."""
        self._start(lambda: self._queues.offset_by_time(*queue, time_ms), done)

    def earliest_store_ms(self, queue: Queue, done: TimeAnswer) -> None:
        """Finds the store time of the queue's first message in the tier (`EvictedBounds.earliest_store_ms`)."""
        self._start(lambda: self._first_ms(queue), done)

    async def close(self) -> None:
        """Cancels the lookups in progress; their callers get no answer any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _first_ms(self, queue: Queue) -> int | None:
        try:
            items = await self._queues.items(*queue, 0, 1)
        except NotTieredError:
            return None
        store_ms: int = ITEM.unpack(items.packed)[4]
        return store_ms

    def _start(self, look: Callable[[], Awaitable[int | None]], done: TimeAnswer) -> None:
        task = self._loop.create_task(_answer(self._queues.beside_trims(look), "a search by time", done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
