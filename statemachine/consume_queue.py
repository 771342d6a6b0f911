"""Consume queues: chunks of 32-byte items, one item per message, and the bounds of each queue.

The items that one entry adds to a queue become one chunk, cut at multiples of BLOCK offsets. The entry that completes
an aligned block of BLOCK offsets replaces the block's chunks by one. A chunk therefore never crosses a block, and the
rows depend on the log alone, not on how entries were grouped into runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Mapping, Set
from typing import Self

from raftlog.errors import InvariantViolationError
from statemachine import queue_reads
from statemachine.family import Families, Family
from statemachine.payload import ITEM
from statemachine.removals import Done, Removals
from statemachine.rows import keys
from statemachine.rows.keys import Queue
from statemachine.rows.kv import CQ, KV
from statemachine.rows.write_batch import Stage

BLOCK = 256
"""The number of queue offsets in an aligned block, whose items become one chunk of 8 KiB."""
STEPS_MAX = 8
"""The most rows of a queue that a TRIM steps over one by one to reach the next queue. After that it seeks, which costs
as much as several steps."""
UNUSED_MAX = 512
"""The most queues of deleted topics whose bounds are dropped from memory after one applied batch."""
TAILS_BYTES_MAX = 32 * 1024 * 1024
"""The memory for the tails (end and newest chunks) of queues that grew lately, in bytes. A tail that is not in memory
is read from the store: the queue's end when the queue grows again, the chunks of its open block when the block is
completed, once in BLOCK messages."""
TAIL_BYTES, PIECE_BYTES = 384, 160
"""The bytes that a tail, and each chunk in it, take in addition to the chunk's items: about what CPython needs for the
objects."""

_LAST_IN_BLOCK = BLOCK - 1
_ITEM_SIZE = ITEM.size
_POSITION = keys.U64
"""The format of an item's first field, the message's position in the log."""


class _Tail:
    """The end of a queue: its next offset, and the newest chunks of its open block, as (base offset, items)."""

    __slots__ = ("bytes", "known_from", "next_offset", "pieces")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.pieces: list[tuple[int, bytes]] = []
        self.known_from = next_offset
        """The first offset whose chunk is in memory; chunks of the open block below it are in the store only."""
        self.bytes = TAIL_BYTES


class _Rows:
    """A walk over the rows of all queues, from a key on. It can skip the rest of a long queue or topic."""

    __slots__ = ("_kv", "_left", "_scan", "row")

    def __init__(self, kv: KV, start: bytes, count_max: int) -> None:
        self._kv = kv
        self._left = count_max
        self._scan = kv.scan(CQ, start, keys.LAST)
        self.step()

    def is_spent(self) -> bool:
        """Returns True if the walk has read its `count_max` rows. `leave` may read a few more."""
        return self._left <= 0

    def step(self) -> None:
        """Moves the walk to the next row."""
        self.row = next(self._scan, None)
        self._left -= 1

    def leave_topic(self, topic_id: int) -> None:
        """Moves the walk to the first row of the next topic."""
        self._scan = self._kv.scan(CQ, keys.cq_after_topic(topic_id), keys.LAST)
        self.step()

    def leave(self, queue: Queue) -> None:
        """Moves to the first row of the next queue: first by a few single steps, because a seek costs as much as
        several of them, then by a seek."""
        for _ in range(STEPS_MAX):
            if self.row is None or keys.cq_queue(self.row[0]) != queue:
                return
            self.step()
        self._scan = self._kv.scan(CQ, keys.cq_after_queue(*queue), keys.LAST)
        self.step()


class ConsumeQueues(Family):
    """All consume queues. Any thread may call `max_offset`, `min_offset` and `stored_queues`. All other methods are for
    the apply thread."""

    ROWS = ((CQ, b""),)

    def __init__(self, kv: KV, tails_bytes_max: int = TAILS_BYTES_MAX, removed: Set[int] = frozenset()) -> None:
        """`removed`: ids of topics whose rows are being removed. Their queues look empty to callers."""
        self._kv = kv
        self._removed = removed
        self._tails_bytes_max = tails_bytes_max
        self._tails: OrderedDict[Queue, _Tail] = OrderedDict()
        self._tails_bytes = 0
        self._touched: dict[Queue, _Tail] = {}
        self._dropped: set[int] = set()
        self._removed_queues: set[Queue] = set()
        """The queues from which the batch being applied has removed rows."""
        self._unused: deque[tuple[int, int]] = deque()
        """Deleted topics whose queues' bounds may still be in memory: (topic_id, queues), with queue ids below
        `queues`."""
        self._ends: dict[Queue, int] = {}
        self._firsts: dict[int, int] = {}
        """The lowest offset of each queue. The key is the queue's number (`_name`), which takes less memory than a
        second tuple per queue."""
        self._trimmed: dict[Queue, int] = {}
        self.grown: set[Queue] = set()
        """The queues to which the last applied batch has added messages."""

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, removed=families[Removals].topics)

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the offset that the queue's next message gets; 0 if it never had one, or for a deleted topic. Every
        item below it that was not trimmed can be read.

        The first call derives it from the queue's last chunk. `setdefault` keeps a value that the apply thread
        published meanwhile, which is never lower.
        """
        if topic_id in self._removed:
            return 0
        queue = (topic_id, queue_id)
        end = self._ends.get(queue)
        if end is None:
            end = self._ends.setdefault(queue, queue_reads.end_offset(self._kv, topic_id, queue_id))
        return end

    def stored_queues(self, topic_id: int, queues: int) -> int:
        """Returns the number of queues that a topic of `queues` queues has or had: those that it lost when their number
        was reduced count as long as they have rows. Any thread may call it."""
        if topic_id in self._removed:
            return queues
        return max(queues, queue_reads.queues_with_rows(self._kv, topic_id))

    def min_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the first offset of the queue that was not trimmed; `max_offset` if all were; 0 for a deleted topic.
        Any thread may call it."""
        if topic_id in self._removed:
            return 0
        name = _name(topic_id, queue_id)
        first = self._firsts.get(name)
        if first is None:
            first = self._firsts.setdefault(name, queue_reads.first_offset(self._kv, topic_id, queue_id))
        return first

    def append(self, stage: Stage, topic_id: int, queue_id: int, base: int, count: int, items: bytes) -> None:
        """Adds `count` packed items to a queue at offset `base`. Raises InvariantViolationError unless that is its next
        offset."""
        queue = (topic_id, queue_id)
        tail = self._tails.get(queue)
        if tail is None:
            tail = self._tails[queue] = self._load(topic_id, queue_id)
            self._tails_bytes += TAIL_BYTES
        if base != tail.next_offset or count < 1:
            raise InvariantViolationError(
                f"{count} rows at offset {base} of queue {queue_id} of topic {topic_id}, which ends at "
                f"{tail.next_offset}"
            )
        rows, before = stage.rows[CQ], stage.before[CQ]
        end = base + count
        at = base
        while at < end:
            stop = min(end, (at | _LAST_IN_BLOCK) + 1)
            piece = items if stop - at == count else items[(at - base) * _ITEM_SIZE : (stop - base) * _ITEM_SIZE]
            if stop & _LAST_IN_BLOCK:
                key = keys.cq_key(topic_id, queue_id, at)
                rows[key] = piece
                before.setdefault(key, None)
                tail.pieces.append((at, piece))
                held = len(piece) + PIECE_BYTES
                tail.bytes += held
                self._tails_bytes += held
            else:
                self._close_block(stage, queue, tail, at, piece)
            at = stop
        tail.next_offset = end
        self._touched[queue] = tail

    def topic_deleted(self, stage: Stage, topic_id: int, queues: int) -> None:
        """Hides all queues of a deleted topic. `remove_topic` removes their rows from the store. Their tails leave
        memory like those of any queue that does not grow."""
        queues = self.stored_queues(topic_id, queues)
        for queue in [queue for queue in self._touched if queue[0] == topic_id]:
            del self._touched[queue]
        self._unused.append((topic_id, queues))

    def remove_topic(self, stage: Stage, topic_id: int, at: bytes, rows_max: int) -> Done:
        """Removes at most `rows_max` rows of a deleted topic, from the key `at` on, and returns how far it came. The
        batch must contain nothing else."""
        start, end = keys.cq_topic_range(topic_id)
        removed, known = stage.rows[CQ], stage.before[CQ]
        used = 0
        for key, row in self._kv.scan(CQ, max(start, at), end):
            if used == rows_max:
                return Done(used, key)
            used += 1
            removed[key] = None
            known[key] = row
            self._removed_queues.add(keys.cq_queue(key))
        return Done(used, None)

    def trim(
        self,
        stage: Stage,
        position: int,
        wanted: Mapping[Queue, int],
        start: bytes = keys.FIRST,
        rows_max: int = keys.U64_MAX,
        *,
        keeps: bool = False,
    ) -> bytes | None:
        """Moves the first offset of every queue to its first message at or above `position` of the log; for queues in
        `wanted`, at least to the offset given there. A first offset never moves back, or beyond the queue's end. Chunks
        wholly below it are removed.

        The walk begins at the key `start` and reads at most `rows_max` rows, or up to STEPS_MAX more. Returns the key
        at which to continue, None at the end. If the walk stops within a queue, the key is that of the chunk where the
        queue now begins.

        `keeps`: the removed messages stay in the tier. Each queue's first offset in the tier is then kept, except for
        queues in `wanted`.

        Reads rows as they are in the store: `stage` must contain no other change of a queue.
        """
        rows = _Rows(self._kv, start, rows_max)
        resumed = len(start) > keys.CQ_BOUNDS_KEY_SIZE
        while rows.row is not None and not rows.is_spent():
            queue = keys.cq_queue(rows.row[0])
            if queue[0] in self._removed:
                rows.leave_topic(queue[0])
                continue
            first, base, kept_first, before = 0, 0, 0, None
            if len(rows.row[0]) == keys.CQ_BOUNDS_KEY_SIZE:
                before = rows.row[1]
                rows.step()
            elif resumed:
                before = self._kv.get(CQ, keys.cq_bounds_key(*queue))
            if before is not None:
                first, base, kept_first = keys.unpack_bounds(before)
            resumed = False
            asked = wanted.get(queue, 0)
            new, kept, gone = _split(rows, queue, base, position, first, max(first, asked))
            kept_new = min(new, max(kept_first, asked)) if keeps else new
            if new != first or kept_new != kept_first:
                self._move(stage, queue, keys.pack_bounds(new, kept, kept_new), gone, before)
            if rows.row is not None and rows.is_spent() and gone and keys.cq_queue(rows.row[0]) == queue:
                break  # in the middle of it
            rows.leave(queue)
        return None if rows.row is None else rows.row[0]

    def _move(
        self, stage: Stage, queue: Queue, bounds: bytes, gone: list[tuple[bytes, bytes]], before: bytes | None
    ) -> None:
        removed, known = stage.rows[CQ], stage.before[CQ]
        for key, chunk in gone:
            removed[key] = None
            known[key] = chunk
        key = keys.cq_bounds_key(*queue)
        stage.put(CQ, key, bounds)
        known[key] = before
        self._trimmed[queue], kept, _ = keys.unpack_bounds(bounds)
        tail = self._tails.get(queue)
        if tail is not None:
            tail.pieces = [piece for piece in tail.pieces if piece[0] >= kept]

    def publish(self) -> None:
        """Shows the queues' new bounds to readers; called after the batch is written."""
        touched = self._touched
        self._touched = {}
        self._firsts.update((_name(*queue), first) for queue, first in self._trimmed.items())
        self._trimmed = {}
        for queue, tail in touched.items():
            self._ends[queue] = tail.next_offset
            self._tails.move_to_end(queue)
        if self._dropped:
            for queue in [queue for queue in list(self._ends) if queue[0] in self._dropped]:
                self._ends.pop(queue, None)
            for name in [name for name in list(self._firsts) if name >> 32 in self._dropped]:
                self._firsts.pop(name, None)
            self._dropped = set()
        if self._removed_queues or self._unused:
            self._forget_some()
        while self._tails_bytes > self._tails_bytes_max:
            self._tails_bytes -= self._tails.popitem(last=False)[1].bytes
        self.grown = set(touched)

    def _forget_some(self) -> None:
        """Drops the bounds of some queues of deleted topics from memory."""
        queues, self._removed_queues = self._removed_queues, set()
        while self._unused and len(queues) < UNUSED_MAX:
            topic_id, count = self._unused.popleft()
            low = max(0, count - UNUSED_MAX)
            queues.update([(topic_id, queue_id) for queue_id in range(low, count)])
            if low:
                self._unused.appendleft((topic_id, low))
        for queue in queues:
            self._ends.pop(queue, None)
            self._firsts.pop(_name(*queue), None)

    def _close_block(self, stage: Stage, queue: Queue, tail: _Tail, at: int, piece: bytes) -> None:
        if tail.known_from & _LAST_IN_BLOCK:
            tail.pieces = [*self._read_back(queue, tail.known_from), *tail.pieces]
        first = tail.pieces[0][0] if tail.pieces else at  # where the block begins, unless that was trimmed
        before = stage.before[CQ]
        for base, items in tail.pieces:
            key = keys.cq_key(*queue, base)
            before.setdefault(key, items)
            if base != first:
                stage.unput(CQ, key)
        key = keys.cq_key(*queue, first)
        before.setdefault(key, None)
        stage.rows[CQ][key] = b"".join([*(items for _, items in tail.pieces), piece])
        tail.pieces = []
        tail.known_from = at + len(piece) // _ITEM_SIZE
        self._tails_bytes -= tail.bytes - TAIL_BYTES
        tail.bytes = TAIL_BYTES

    def _load(self, topic_id: int, queue_id: int) -> _Tail:
        """Reads a queue's tail from the store. Only tails that the batch being applied has not changed are read,
        because changed ones stay in memory until the batch is written."""
        end = self._ends.get((topic_id, queue_id))
        return _Tail(queue_reads.end_offset(self._kv, topic_id, queue_id) if end is None else end)

    def _read_back(self, queue: Queue, end: int) -> list[tuple[int, bytes]]:
        """Reads the chunks of the queue's open block below the offset `end`, all of which are in the store."""
        block = end & ~_LAST_IN_BLOCK
        rows = self._kv.scan(CQ, keys.cq_key(*queue, block), keys.cq_key(*queue, end))
        return [(keys.cq_base(key), value) for key, value in rows]


def _name(topic_id: int, queue_id: int) -> int:
    return topic_id << 32 | queue_id


def _position_at(chunk: bytes, item: int) -> int:
    position: int = _POSITION.unpack_from(chunk, item * _ITEM_SIZE)[0]
    return position


def _split(
    rows: _Rows, queue: Queue, base: int, position: int, first_offset: int, at_least: int
) -> tuple[int, int, list[tuple[bytes, bytes]]]:
    """Walks over a queue's chunks with `rows`, which is at the first one, up to the first chunk that a trim keeps.
    Returns (first offset to keep, base of the chunk with that offset, the rows of the chunks below it). If the walk is
    spent before, returns the point that it has reached."""
    gone: list[tuple[bytes, bytes]] = []
    while rows.row is not None and keys.cq_queue(rows.row[0]) == queue:
        key, chunk = rows.row
        first, count = keys.cq_base(key), len(chunk) // _ITEM_SIZE
        base = first + count
        if base > at_least and _position_at(chunk, count - 1) >= position:
            below = bisect_left(range(count), position, key=lambda item, data=chunk: _position_at(data, item))  # type: ignore[misc]
            return max(at_least, first + below), first, gone
        if rows.is_spent() and gone:
            return max(first_offset, first), first, gone
        gone.append(rows.row)
        rows.step()
    return base, base, gone
