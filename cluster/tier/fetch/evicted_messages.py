"""Pulls of messages that the local log no longer holds: index files say where they lie, and they are read from tiered
segments.

One answer takes few requests, within the pull's limits. While a consumer that reads in order works on an answer, the
bytes of its next answer are fetched into the cache.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import NamedTuple

from cluster.broker.evicted.evicted_key_search import EvictedPage
from cluster.broker.evicted.evicted_pulls import Gone
from cluster.broker.filters.sql import SqlFilter
from cluster.broker.filters.stepwise_evaluation import Judging
from cluster.broker.pulls.filter_search import MESSAGE_UNITS, STEP_UNITS, Verdicts
from cluster.broker.reads.message_lookup import BYTES_MAX
from cluster.broker.reads.pull_bodies import POSITION_SIZE, position_of
from cluster.broker.reads.pull_values import Pull
from cluster.broker.reads.row_scan import Found
from cluster.runtime.resource_budget import Room
from cluster.runtime.turns.work import Turns
from cluster.tier.fetch.errors import DamagedError, NotTieredError
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.fetch.tier_log import TierLog, is_dense
from cluster.tier.fetch.tier_queues import Items, TierQueues
from cluster.tier.store.errors import StoreError
from raftlog.kept_errors import bare
from raftlog.work import charge
from raftmq_wire.message_format import stored_properties
from statemachine.payload import ITEM

logger = logging.getLogger(__name__)

ITEMS_MAX = 1024
"""The most index items that one pull looks at."""
AHEAD_BYTES = 4 << 20
"""Bytes of the log that are fetched ahead for a consumer that reads a dense queue (`DENSE`) in order."""
AHEAD_MESSAGES = 64
"""Messages that are fetched ahead in a queue that is not dense, where each may take a request."""
ANSWERS_BYTES_MAX = 64 << 20
"""The most bytes of all answers that are being assembled."""
READERS_MAX = 4096
"""The most queues of which the reader's place is remembered, and the most of which a failed pull is remembered."""


class EvictedPlace(NamedTuple):
    """The offset up to which a reader has read a queue, and up to which its messages were fetched ahead."""

    next_offset: int
    """Offset at which the reader continues after the last answer."""
    ahead: int
    """The reader's messages below this offset were fetched ahead."""


class ChosenItems(NamedTuple):
    """The index items, packed, whose messages a pull is to get, and the queue offset of each."""

    packed: bytes
    offsets: list[int]
    next_offset: int
    """Offset at which the reader continues if all of the items can be read."""


class OldReads:
    """Answers pulls below the beginning of the local log (`cluster.broker.evicted.evicted_pulls`). Event loop only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        queues: TierQueues,
        log: TierLog,
        reads: ObjectReads,
        turns: Turns | None = None,
    ) -> None:
        """`turns`: the node's turns, in which filters run; if None, this object makes turns of its own."""
        self._loop = loop
        self._turns = turns or Turns(loop.call_soon)
        self._verdicts = Verdicts()
        self._queues = queues
        self._log = log
        self._reads = reads
        self._room = Room(ANSWERS_BYTES_MAX, loop.call_soon)
        self._tasks: set[asyncio.Task[None]] = set()
        self._places: OrderedDict[tuple[int, int], EvictedPlace] = OrderedDict()
        """(topic_id, queue_id) -> place."""
        self._failing: dict[tuple[int, int], None] = {}
        """Queues whose last pull failed, oldest first."""

    def find(self, pull: Pull, stop: int, done: Callable[[Found | Gone | Exception], None]) -> None:
        """Reads messages from the pull's offset up to but not including `stop`. Calls `done` later: with the
        messages, with Gone if the tier does not hold them, or with the error that says why they cannot be read."""
        share = self._room.share()

        def begin() -> None:
            share.hold(pull.bytes_max)
            self._start(answer())

        async def answer() -> None:
            found: Found | Gone | Exception
            try:
                found = await self.found(pull, stop)
                self._works(pull)
            except StoreError as error:
                found = await self._told(pull, error)
            except Exception as error:
                logger.exception("tier: a pull of %s queue %d at %d failed", pull.topic, pull.queue_id, pull.offset)
                found = bare(error)
            finally:
                share.hold(0)
            done(found)

        if self._room.fits(pull.bytes_max):
            begin()
        else:
            self._room.wait(pull.bytes_max, begin)

    async def _told(self, pull: Pull, error: StoreError) -> StoreError:
        """Returns an error of the same kind that tells the client which offsets cannot be read. Logs it only for the
        first of a queue's pulls that fail in a row."""
        behind = None
        try:
            behind = await self._queues.after_segment(pull.topic_id, pull.queue_id, pull.offset)
        except StoreError as why:
            logger.debug("tier: where %s queue %d goes on is not known: %s", pull.topic, pull.queue_id, why)
        offsets = f"offsets from {pull.offset} on" if behind is None else f"offsets {pull.offset} to {behind - 1}"
        fix = error.fix
        if isinstance(error, DamagedError):
            onward = "" if behind is None else f"; to go on without these messages, read from offset {behind}"
            fix = f"raftmq tier repair writes it again if a node still has it{onward}"
        told = type(error)(f"{pull.topic} queue {pull.queue_id} {offsets}: {error.what}", fix)
        queue = pull.topic_id, pull.queue_id
        if queue not in self._failing:
            logger.warning("tier: %s", told, extra={"topic": pull.topic, "queue": pull.queue_id})
            self._failing[queue] = None
            if len(self._failing) > READERS_MAX:
                del self._failing[next(iter(self._failing))]
        return told

    def _works(self, pull: Pull) -> None:
        """Records that a pull of the queue succeeded."""
        queue = pull.topic_id, pull.queue_id
        if queue in self._failing:
            del self._failing[queue]
            logger.info("tier: %s queue %d is read again", pull.topic, pull.queue_id)

    async def close(self) -> None:
        """Cancels the pulls in progress; their callers get no answer any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def found(self, pull: Pull, stop: int) -> Found | Gone:
        """Returns the messages for the pull, with offsets below `stop`; or Gone, with the offset at which the reader
        continues. Raises StoreError."""
        return await self._queues.beside_trims(lambda: self._read(pull, stop))

    async def _read(self, pull: Pull, stop: int) -> Found | Gone:
        queue = pull.topic_id, pull.queue_id
        try:
            items = _below(await self._queues.items(*queue, pull.offset, ITEMS_MAX), stop)
        except NotTieredError:
            return Gone(stop)
        if not items.packed:
            return Gone(stop)
        if items.first_offset > pull.offset:
            return Gone(items.first_offset)
        chosen = _choose(items, pull)
        if not chosen.packed:
            return Found(0, b"", chosen.next_offset)
        place, dense = self._places.get(queue), is_dense(items.packed)
        in_order = place is not None and place.next_offset == pull.offset
        messages = await self._log.messages(chosen.packed, dense=dense, blocks=dense and in_order)
        whole = messages.count == len(chosen.offsets)
        next_offset = chosen.next_offset if whole else chosen.offsets[messages.count]
        ahead = next_offset
        if place is not None and in_order and self._reads.keeps:
            ahead = max(next_offset, place.ahead)
            if ahead < next_offset + 2 * (next_offset - pull.offset):  # less than two answers like this one
                ahead += self._read_ahead(items.packed[(ahead - items.first_offset) * ITEM.size :], dense=dense)
        self._places[queue] = EvictedPlace(next_offset, ahead)
        self._places.move_to_end(queue)
        if len(self._places) > READERS_MAX:
            self._places.popitem(last=False)
        read = chosen.packed[: messages.count * ITEM.size]
        count, body = messages.count, messages.body
        if isinstance(pull.wanted, SqlFilter):
            count, body = await self._filtered(pull.puller.client.owner, read, body, pull.wanted)
        return Found(count, body, next_offset, position_of(read, messages.count - 1))

    async def _filtered(self, owner: Hashable, items: bytes, body: bytes, wanted: SqlFilter) -> tuple[int, bytes]:
        """Returns (number of messages that the filter wants, these messages back to back). Filtering is divided among
        turns of the loop."""
        kept: list[bytes] = []
        at = 0
        for position, size in POSITION_SIZE.iter_unpack(items):
            await self._turns.breathe(owner)
            charge(MESSAGE_UNITS)
            message = body[at : at + size]
            at += size
            judged = self._verdicts.judge(wanted, position, stored_properties(message))
            if isinstance(judged, Judging):
                while not judged.step(STEP_UNITS):
                    await self._turns.breathe(owner)
                judged = judged.verdict is True
            if judged:
                kept.append(message)
        return len(kept), b"".join(kept)

    def _read_ahead(self, rest: bytes, *, dense: bool) -> int:
        """Starts to fetch the messages of the first items of `rest` into the cache. Returns the number of these
        items."""
        ahead = rest[: ITEM.size * (_fitting(rest, AHEAD_BYTES) if dense else AHEAD_MESSAGES)]
        if ahead:
            self._start(self._warm(ahead, dense=dense))
        return len(ahead) // ITEM.size

    async def _warm(self, items: bytes, *, dense: bool) -> None:
        try:
            await self._log.warm(items, dense=dense)
        except StoreError as error:
            logger.debug("tier: nothing is read ahead: %s", error)  # the client's next pull gets the error

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _below(items: Items, stop: int) -> Items:
    """Returns the items with offsets below `stop`."""
    return items._replace(packed=items.packed[: max(0, stop - items.first_offset) * ITEM.size])


def _choose(items: Items, pull: Pull) -> ChosenItems:
    """Chooses items with a wanted tag within the pull's limits, but at least one if there is any. For an SQL92 filter,
    chooses items of all tags, because that filter reads the messages."""
    tags = None if isinstance(pull.wanted, SqlFilter) else pull.wanted
    parts: list[bytes] = []
    offsets: list[int] = []
    total = 0
    for offset, item in enumerate(ITEM.iter_unpack(items.packed), items.first_offset):
        if tags is not None and item[3] not in tags:
            continue
        total += item[1]
        if parts and (total > pull.bytes_max or len(parts) == pull.messages_max):
            return ChosenItems(b"".join(parts), offsets, offset)
        parts.append(ITEM.pack(*item))
        offsets.append(offset)
    return ChosenItems(b"".join(parts), offsets, items.next_offset)


def _fitting(items: bytes, bytes_max: int) -> int:
    """Returns the number of packed items whose messages end within `bytes_max` bytes of the log, counted from the first
    message."""
    count = len(items) // ITEM.size
    if not count:
        return 0
    until = POSITION_SIZE.unpack_from(items)[0] + bytes_max
    return bisect_right(range(count), until, key=lambda at: sum(POSITION_SIZE.unpack_from(items, at * ITEM.size)))


class OldPageReads:
    """Implements `cluster.broker.evicted.evicted_key_search.EvictedPages`. Event loop only."""

    def __init__(self, queues: TierQueues, log: TierLog) -> None:
        self._queues = queues
        self._log = log

    async def page(self, topic_id: int, queue_id: int, offset: int, stop: int, count: int) -> EvictedPage:
        """Reads one page of a queue (`EvictedPages.page`). Raises StoreError."""
        return await self._queues.beside_trims(lambda: self._page(topic_id, queue_id, offset, stop, count))

    async def _page(self, topic_id: int, queue_id: int, offset: int, stop: int, count: int) -> EvictedPage:
        found = EvictedPage([], offset, [])
        while offset < stop and len(found.messages) + len(found.unreadable) < count:
            wanted = min(stop - offset, count - len(found.messages) - len(found.unreadable))
            try:
                items = await self._queues.items(topic_id, queue_id, offset, wanted)
            except NotTieredError:
                return found._replace(next_offset=stop)  # the messages are trimmed up to the first that the nodes hold
            if items.first_offset >= stop:
                return found._replace(next_offset=stop)
            offset = await self._read(items, stop, found)
            found = found._replace(next_offset=offset)
            if _size(found) > BYTES_MAX:
                break
        return found

    async def _read(self, items: Items, stop: int, found: EvictedPage) -> int:
        """Adds the items' messages with offsets below `stop` to `found`, until it has more than BYTES_MAX. Adds the
        offsets of damaged ones to `found.unreadable`. Returns the offset after the last."""
        for number, offset in enumerate(range(items.first_offset, min(items.next_offset, stop))):
            try:
                one = await self._log.messages(items.packed[number * ITEM.size : (number + 1) * ITEM.size])
            except DamagedError:
                found.unreadable.append(offset)
            else:
                found.messages.append(one.body)
                if _size(found) > BYTES_MAX:
                    return offset + 1
        return min(stop, items.next_offset)


def _size(found: EvictedPage) -> int:
    return sum(map(len, found.messages))
