"""Finds the messages of queues by the index files of tiered segments (docs/index-file.md)."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from cluster.tier.fetch.errors import DamagedError, NotTieredError
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.store.errors import BadAnswer, NotFound, StoreError
from raftlog.kept_errors import bare
from statemachine.index_file.index_format import QUEUE_FORM, QUEUES, IndexFileError, QueueRun
from statemachine.index_file.index_reader import IndexFile, Steps, open_index
from statemachine.payload import ITEM
from statemachine.tier import LOG_PREFIX, Rows, TierPart, TierSegment, TierState
from statemachine.trim import QueueMin

logger = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
INDEXES_MAX = 128
"""The most index files whose footers are kept in memory, some 10 KB each."""
TOGETHER = 8
"""Segments that are searched for a key at once: as many as there may be requests to the store."""
RUNS_MAX = 20_000
"""The most runs that are remembered: some 4 MB. A run (`QueueRun`) is the messages of one queue in one segment. That a
queue has none there is remembered too."""
_REPAIR = "raftmq tier verify, then raftmq tier repair"


class Items(NamedTuple):
    """Packed items of one queue in one segment."""

    first_offset: int
    """Queue offset of the first item. It is above the wanted offset if the queue has a gap there."""
    packed: bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last item."""
        return self.first_offset + len(self.packed) // ITEM.size


class TierQueues:
    """Finds messages of queues in the tier. Every method raises StoreError; DamagedError if an index file is still
    damaged when it is fetched again. Event loop only."""

    def __init__(self, reads: ObjectReads, rows: Callable[[], Rows], folder: str) -> None:
        self._reads = reads
        self._rows = rows
        self._folder = folder
        self._indexes: OrderedDict[str, IndexFile] = OrderedDict()
        self._runs: OrderedDict[tuple[str, int, int], QueueRun | None] = OrderedDict()
        self._hints: OrderedDict[tuple[int, int], int] = OrderedDict()
        """(topic_id, queue_id) -> base of the segment in which the queue was last read."""
        self._seen: Rows = ()
        self._readable: list[TierSegment] = []
        """The rows of `_seen` that are VERIFIED."""

    @property
    def begins(self) -> int:
        """The position at which the tier begins; 0 if it has no segments."""
        rows = self._rows()
        return rows[0].base if rows else 0

    async def beside_trims(self, look: Callable[[], Awaitable[T]]) -> T:
        """Returns what `look` finds. If it fails while segments at the beginning of the tier are removed, it is called
        again: their objects may be gone, and the search continues behind them. Raises StoreError."""
        while True:
            begins = self.begins
            try:
                return await look()
            except StoreError:
                if self.begins == begins:
                    raise

    async def items(self, topic_id: int, queue_id: int, offset: int, count: int) -> Items:
        """Returns up to `count` items of the queue from `offset` on, at least one, all from one segment. Raises
        NotTieredError if the tier has none from there on."""
        rows = self._verified()
        number = await self._segment(rows, topic_id, queue_id, offset)
        run = None if number is None else await self._run(rows[number], topic_id, queue_id)
        if number is None or run is None:
            raise NotTieredError(f"the tier has no message of queue {queue_id} of topic {topic_id} from {offset} on")
        first = max(offset, run.first_offset)
        packed = await self._steps(rows[number], lambda index: index.items(run, first, count))
        return Items(first, packed)

    async def after_segment(self, topic_id: int, queue_id: int, offset: int) -> int | None:
        """Returns the offset after the queue's last message in the segment that holds `offset`; None if the tier does
        not hold it."""
        rows = self._verified()
        number = await self._segment(rows, topic_id, queue_id, offset)
        run = None if number is None else await self._run(rows[number], topic_id, queue_id)
        return None if run is None else run.first_offset + run.count

    async def first_offset(self, topic_id: int, queue_id: int) -> int | None:
        """Returns the offset of the queue's first message in the tier; None if there is none."""
        rows = self._verified()
        number = await self._segment(rows, topic_id, queue_id, 0)
        run = None if number is None else await self._run(rows[number], topic_id, queue_id)
        return None if run is None else run.first_offset

    async def ends(self, rows: Sequence[TierSegment]) -> list[QueueMin]:
        """Returns, for each queue that has messages in these segments, the offset after the last of them. A segment
        whose index file is damaged contributes nothing."""
        found: dict[tuple[int, int], int] = {}
        for row in rows:
            try:
                runs = await self._steps(row, _runs)
            except DamagedError as error:
                logger.warning("tier: where queues go on above %d is not known: %s", row.end, error)
                continue
            for run in runs:
                queue = run.topic_id, run.queue_id
                found[queue] = max(found.get(queue, 0), run.first_offset + run.count)
        return [(*queue, end) for queue, end in sorted(found.items())]

    async def offset_by_time(self, topic_id: int, queue_id: int, timestamp_ms: int) -> int | None:
        """Returns the first offset that was stored at or after the time; None if the tier has none."""
        rows = self._verified()
        first = bisect_left(rows, timestamp_ms, key=lambda row: row.span.last_ms)  # log times never fall
        for row in islice(rows, first, None):
            run = await self._run(row, topic_id, queue_id)
            if run is None:
                continue
            offset: int = await self._steps(row, partial(_by_time, run, timestamp_ms))
            if offset < run.first_offset + run.count:
                return offset
        return None

    async def positions(self, topic_id: int, key: bytes, begin_ms: int, end_ms: int) -> AsyncGenerator[int, None]:
        """Yields, descending, the positions of messages that may have the key, in segments whose log times overlap
        `begin_ms` to `end_ms`. A few segments are searched at a time, so a caller that has enough leaves older segments
        alone."""

        async def look(row: TierSegment) -> list[int]:
            return await self._steps(row, lambda index: index.positions(topic_id, key))

        rows = [row for row in self._verified() if row.span.last_ms >= begin_ms and row.span.first_ms <= end_ms]
        for stop in range(len(rows), 0, -TOGETHER):
            for found in reversed(await asyncio.gather(*map(look, rows[max(0, stop - TOGETHER) : stop]))):
                for position in reversed(found):
                    yield position

    def _verified(self) -> list[TierSegment]:
        rows = self._rows()
        if rows is not self._seen:  # the rows are replaced by a new list when one changes
            self._seen, self._readable = rows, [row for row in rows if row.state is TierState.VERIFIED]
        return self._readable

    async def _segment(self, rows: Sequence[TierSegment], topic_id: int, queue_id: int, offset: int) -> int | None:
        """Returns the number of the first row in which the queue ends above `offset`; None if there is none.

        This is a binary search. A segment without messages of the queue does not tell on which side to go on, so the
        segments above it are looked at.
        """
        hinted = await self._hinted(rows, topic_id, queue_id, offset)
        if hinted is not None:
            return hinted
        found: int | None = None
        low, high = 0, len(rows)
        while low < high:
            middle = at = (low + high) // 2
            run = await self._run(rows[at], topic_id, queue_id)
            while run is None and at + 1 < high:
                at += 1
                run = await self._run(rows[at], topic_id, queue_id)
            if run is not None and run.first_offset + run.count <= offset:
                low = at + 1
            else:
                high = middle
                found = found if run is None else at
        if found is not None:
            self._keep(self._hints, (topic_id, queue_id), rows[found].base, RUNS_MAX)
        return found

    async def _hinted(self, rows: Sequence[TierSegment], topic_id: int, queue_id: int, offset: int) -> int | None:
        """Returns the number of the row in which the queue was last found, if the offset lies there."""
        base = self._hints.get((topic_id, queue_id))
        if base is None:
            return None
        number = bisect_left(rows, base, key=lambda row: row.base)
        if number == len(rows):
            return None
        run = await self._run(rows[number], topic_id, queue_id)
        return number if run is not None and run.first_offset <= offset < run.first_offset + run.count else None

    async def _run(self, row: TierSegment, topic_id: int, queue_id: int) -> QueueRun | None:
        """Returns the queue's run of messages in the segment; None if the queue has none there."""
        key = _index_of(row).name, topic_id, queue_id
        if key in self._runs:
            self._runs.move_to_end(key)
            return self._runs[key]
        run = await self._steps(row, lambda index: index.queue(topic_id, queue_id))
        self._keep(self._runs, key, run, RUNS_MAX)
        return run

    async def _steps(self, row: TierSegment, steps: Callable[[IndexFile], Steps[T]]) -> T:
        """Runs steps on the segment's index file. If something is damaged, runs them once more past the cache."""
        part = _index_of(row)
        for fresh in (False, True):
            try:
                index = await self._open(part, fresh=fresh)
                found = await self._drive(part, steps(index), fresh=fresh)
            except (IndexFileError, BadAnswer, NotFound) as error:
                failure = bare(error)
                self._indexes.pop(part.name, None)
                logger.debug("tier: %s is damaged: %s", part.name, error)
            else:
                self._reads.broken.whole(part.name)
                return found
        if not isinstance(failure, IndexFileError):
            raise DamagedError(failure.what, _REPAIR)  # `ObjectReads` has logged it and begun a pause
        damaged = DamagedError(f"{self._reads.where(f'{self._folder}/{part.name}')} is damaged: {failure}", _REPAIR)
        # This logs the damage. The key is not the object's full name, so no read is paused: other blocks of the file
        # may be sound.
        self._reads.broken.failed(part.name, damaged)
        raise damaged

    async def _open(self, part: TierPart, *, fresh: bool) -> IndexFile:
        index = None if fresh else self._indexes.get(part.name)
        if index is None:
            index = await self._drive(part, open_index(part.size), fresh=fresh)
        self._keep(self._indexes, part.name, index, INDEXES_MAX)
        return index

    async def _drive(self, part: TierPart, steps: Steps[T], *, fresh: bool) -> T:
        name = f"{self._folder}/{part.name}"
        try:
            wanted = next(steps)
            while True:
                data = await self._reads.read(name, wanted.at, wanted.at + wanted.length, fresh=fresh)
                wanted = steps.send(data)
        except StopIteration as end:
            found: T = end.value
            return found

    @staticmethod
    def _keep(kept: OrderedDict[K, V], key: K, value: V, count_max: int) -> None:
        kept[key] = value
        kept.move_to_end(key)
        if len(kept) > count_max:
            kept.popitem(last=False)


def _by_time(run: QueueRun, timestamp_ms: int, index: IndexFile) -> Steps[int]:
    return index.offset_by_time(run, timestamp_ms)


def _runs(index: IndexFile) -> Steps[list[QueueRun]]:
    """Reads the file in steps, and returns the run of each queue that has messages in it."""
    found: list[QueueRun] = []
    for block in index.blocks(QUEUES):
        data = yield from block
        found += [QueueRun(*row) for row in QUEUE_FORM.iter_unpack(data)]
    return found


def _index_of(row: TierSegment) -> TierPart:
    """Returns the segment's index part. Raises DamagedError if it has none, because passing over the segment would lose
    its messages."""
    for part in row.parts:
        if not part.name.startswith(LOG_PREFIX):
            return part
    raise DamagedError(f"the tiered segment at {row.base} has no index file", _REPAIR)
