"""A tier in a store, made of messages of random bytes: segments, index files, and the rows that name them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple
from uuid import UUID

import google_crc32c
from xxhash import xxh3_128

from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.object_store import Data, ObjectInfo
from statemachine.index_file.index_format import IndexMeta, key_row, pack_keys
from statemachine.index_file.index_writer import IndexWriter
from statemachine.message_index import key_hash
from statemachine.payload import ITEM
from statemachine.tier import SegmentSpan, TierPart, TierSegment, TierState

FOLDER = "c1"
CLUSTER = UUID(int=1)


class Message(NamedTuple):
    """One message of the log."""

    topic_id: int
    queue_id: int
    queue_offset: int
    position: int
    body: bytes
    store_time_ms: int

    def packed(self) -> bytes:
        """Returns the item that a consume queue has of it."""
        return ITEM.pack(self.position, len(self.body), google_crc32c.value(self.body), 0, self.store_time_ms)


class CountingStore(MemoryStore):
    """Counts what is read. It may hide its objects in listings, and answer reads as a test says."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now_ms)
        self.now_ms = 0
        """The time that objects which are written now get."""
        self.ranges: list[tuple[str, int, int]] = []
        self.hides = False
        """True if listings show nothing."""
        self.answer: Callable[[bytes], bytes] = lambda data: data
        """What a reader of these bytes gets; may raise StoreError."""

    @property
    def read_bytes(self) -> int:
        return sum(stop - start for _, start, stop in self.ranges)

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        self.ranges.append((name, start, stop))
        return self.answer(await super().get_range(name, start, stop))

    async def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        if not self.hides:
            async for info in super().list(folder):
                yield info

    def overwrite(self, name: str, data: Data) -> None:
        """Overwrites an object as rot does, without a condition."""
        self._write(name, data)


class TierKit:
    """Segments in `store`, whose rows are `rows`; `messages` are those of all queues, ascending by position."""

    def __init__(self, seed: int, *, parts: int = 1, keyed: bool = False) -> None:
        """`parts`: objects of each segment. `keyed`: every message has the key k."""
        self._keyed = keyed
        self.random = random.Random(seed)
        self.store = CountingStore()
        self.rows: list[TierSegment] = []
        self.messages: list[Message] = []
        self._parts = parts
        self._offsets: dict[tuple[int, int], int] = {}
        self._position = 1000
        self._index = 1

    def skip(self, topic_id: int, queue_id: int, count: int) -> None:
        """The queue goes on `count` offsets later."""
        self._offsets[topic_id, queue_id] = self._offsets.get((topic_id, queue_id), 0) + count

    def segment(self, queues: list[tuple[int, int]], count: int, size: tuple[int, int] = (50, 900)) -> None:
        """One more segment, with `count` messages of random ones of the queues."""
        base, first_index = self._position, self._index
        data = bytearray()
        borders: list[int] = []
        new: list[Message] = []
        for number in range(count):
            if number and number % max(1, count // self._parts) == 0 and len(borders) < self._parts - 1:
                borders.append(len(data))
            data += self.random.randbytes(self.random.randrange(64))  # of frames and other entries
            queue = self.random.choice(queues)
            body = self.random.randbytes(self.random.randrange(*size))
            offset = self._offsets.get(queue, 0)
            self._offsets[queue] = offset + 1
            self._index += 1
            new.append(Message(*queue, offset, base + len(data), body, self._index * 10 - 10))
            data += body
        self._position = base + len(data)
        self.messages += new
        span = SegmentSpan(self._position, first_index, self._index - 1, first_index * 10, self._index * 10 - 10)
        objects = [
            self._put("log", base + start, base + stop, bytes(data[start:stop]), "seg")
            for start, stop in zip([0, *borders], [*borders, len(data)], strict=True)
        ]
        objects.append(self._put("index", base, self._position, self._index_file(base, span, new), "idx"))
        self.rows.append(TierSegment(base, TierState.VERIFIED, span, 1, tuple(objects)))

    def _index_file(self, base: int, span: SegmentSpan, messages: list[Message]) -> bytes:
        pieces: list[bytes] = []
        writer = IndexWriter(pieces.append)
        for queue in sorted({each[:2] for each in messages}):
            mine = [each for each in messages if each[:2] == queue]
            writer.add_queue(*queue, mine[0].queue_offset, [each.packed() for each in mine])
        keyed = messages if self._keyed else []
        writer.add_keys(
            pack_keys(sorted(key_row(key_hash(each.topic_id, b"k"), each.position - base) for each in keyed))
        )
        writer.finish(IndexMeta(CLUSTER, base, span.end, *span[1:3], 1, *span[3:], 0, 0, 0, group_id=1, last_crc=0))
        return b"".join(pieces)

    def _put(self, folder: str, base: int, end: int, data: bytes, suffix: str) -> TierPart:
        digest = xxh3_128(data)
        name = f"{folder}/{base:020d}-{end:020d}.{digest.hexdigest()[:16]}.{suffix}"
        self.store.overwrite(f"{FOLDER}/{name}", data)
        return TierPart(name, len(data), digest.digest(), google_crc32c.value(data))

    def of_queue(self, topic_id: int, queue_id: int) -> list[Message]:
        """Its messages, ascending."""
        return [each for each in self.messages if each[:2] == (topic_id, queue_id)]
