"""Reads of objects: bytes are asked for once, memory is bounded, and what is given up stays given up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.tier.fetch.object_reads import BLOCK, ObjectReads
from cluster.tier.fetch.range_cache import RangeCache
from cluster.tier.store.errors import NotFound, Unreachable
from tests.support.tier_kit import CountingStore

NAME = "c1/log/a"
WHOLE = random.Random(5).randbytes(100_000)


class Gated(CountingStore):
    """Answers when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        self.most = self.now = 0
        self.overwrite(NAME, WHOLE)

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        self.now += stop - start
        self.most = max(self.most, self.now)
        try:
            data = await super().get_range(name, start, stop)
            await self.gate.wait()
        finally:
            self.now -= stop - start
        if self.error is not None:
            raise self.error
        return data


@pytest.fixture
async def store() -> Gated:
    return Gated()


@pytest.fixture(params=["cache", "no cache"])
async def reads(request: pytest.FixtureRequest, store: Gated, tmp_path: Path) -> AsyncIterator[ObjectReads]:
    cache = RangeCache(tmp_path, 1 << 20) if request.param == "cache" else None
    if cache is not None:
        await cache.open()
    opened = ObjectReads(store, cache, memory_bytes_max=30_000)
    yield opened
    await opened.close()
    if cache is not None:
        cache.close()


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_readers_of_the_same_bytes_share_a_request(reads: ObjectReads, store: Gated) -> None:
    tasks = [asyncio.ensure_future(reads.read(NAME, 100, 5000)) for _ in range(5)]
    tasks += [asyncio.ensure_future(reads.read(NAME, 200, 300))]
    while not store.ranges:
        await asyncio.sleep(0.001)
    late = asyncio.ensure_future(reads.read(NAME, 4000, 6000))
    await asyncio.sleep(0.05)
    store.gate.set()
    assert await asyncio.gather(*tasks) == [WHOLE[100:5000]] * 5 + [WHOLE[200:300]]
    assert await late == WHOLE[4000:6000]
    assert store.ranges == [(NAME, 100, 5000), (NAME, 5000, 6000)]


async def test_what_was_read_comes_from_the_cache(store: Gated, tmp_path: Path) -> None:
    store.gate.set()
    cache = RangeCache(tmp_path, 1 << 20)
    await cache.open()
    reads = ObjectReads(store, cache)
    chance = random.Random(3)
    for _ in range(100):
        start = chance.randrange(99_000)
        stop = chance.randrange(start + 1, min(100_000, start + 20_000))
        assert await reads.read(NAME, start, stop) == WHOLE[start:stop]
    assert store.read_bytes <= len(WHOLE)  # no byte was fetched twice
    assert await reads.read(NAME, 10, 20, fresh=True) == WHOLE[10:20]
    assert store.ranges[-1] == (NAME, 10, 20)
    await reads.close()
    cache.close()


async def test_memory_is_taken_before_the_work(reads: ObjectReads, store: Gated) -> None:
    tasks = [asyncio.ensure_future(reads.read(NAME, at, at + 10_000)) for at in range(0, 100_000, 10_000)]
    while reads.in_flight_bytes < 30_000:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    assert store.now == 30_000
    store.gate.set()
    assert b"".join(await asyncio.gather(*tasks)) == WHOLE
    assert store.most == 30_000
    await reads.close()
    assert reads.in_flight_bytes == 0


async def test_a_range_larger_than_the_room_is_read_alone(reads: ObjectReads, store: Gated) -> None:
    store.gate.set()
    assert await reads.read(NAME, 0, 100_000) == WHOLE


async def test_one_reader_that_gives_up_leaves_the_others_theirs(reads: ObjectReads, store: Gated) -> None:
    first = asyncio.ensure_future(reads.read(NAME, 0, 100))
    while not store.ranges:
        await asyncio.sleep(0.001)
    second = asyncio.ensure_future(reads.read(NAME, 50, 100))
    await asyncio.sleep(0.02)
    first.cancel()
    await some_turns()
    store.gate.set()
    assert await second == WHOLE[50:100]
    assert len(store.ranges) == 1


async def test_who_waits_for_room_and_gives_up_takes_none(reads: ObjectReads, store: Gated) -> None:
    first = asyncio.ensure_future(reads.read(NAME, 0, 30_000))
    while not store.ranges:
        await asyncio.sleep(0.001)
    second = asyncio.ensure_future(reads.read(NAME, 40_000, 60_000, fresh=True))
    await asyncio.sleep(0.02)
    second.cancel()
    store.gate.set()
    assert await first == WHOLE[:30_000]
    assert await reads.read(NAME, 70_000, 99_000) == WHOLE[70_000:99_000]
    await reads.close()
    assert reads.in_flight_bytes == 0


async def test_an_error_reaches_all_and_is_kept_for_its_pause_alone(reads: ObjectReads, store: Gated) -> None:
    store.error = Unreachable("reset")
    tasks = [asyncio.ensure_future(reads.read(NAME, 0, 100)) for _ in range(3)]
    while not store.ranges:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    store.gate.set()
    assert [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)] == [Unreachable] * 3
    store.error, asked = None, len(store.ranges)
    with pytest.raises(Unreachable, match="reset"):
        await reads.read(NAME, 100, 200)
    assert len(store.ranges) == asked
    reads.broken.forget()
    assert await reads.read(NAME, 0, 100) == WHOLE[:100]
    with pytest.raises(NotFound):
        await reads.read("c1/log/absent", 0, 1)


async def test_a_close_ends_what_is_under_way(reads: ObjectReads, store: Gated) -> None:
    task = asyncio.ensure_future(reads.read(NAME, 0, 100))
    while not store.ranges:
        await asyncio.sleep(0.001)
    await reads.close()
    with pytest.raises(Unreachable, match="stops"):
        await task


async def test_what_the_cache_lacks_is_fetched_to_the_end_of_its_block(tmp_path: Path) -> None:
    store, cache, size = CountingStore(), RangeCache(tmp_path, 10 << 20), 3 * BLOCK + 500
    store.overwrite(NAME, whole := random.Random(6).randbytes(size))
    await cache.open()
    reads = ObjectReads(store, cache)
    assert await reads.read(NAME, 100, 2000, reach=size) == whole[100:2000]
    assert [each[1:] for each in store.ranges] == [(100, BLOCK)]
    await asyncio.gather(*reads._tasks)  # until the cache has it
    await reads.fetch(NAME, 1000, BLOCK + 10, reach=size)
    assert [each[1:] for each in store.ranges][1:] == [(BLOCK, 2 * BLOCK)]
    assert await reads.read(NAME, 3 * BLOCK - 1, size, reach=size) == whole[3 * BLOCK - 1 :]
    assert [each[1:] for each in store.ranges][2:] == [(3 * BLOCK - 1, size)]
    await reads.close()
    cache.close()


async def test_what_is_on_its_way_is_not_fetched_again(reads: ObjectReads, store: Gated) -> None:
    reading = asyncio.ensure_future(reads.read(NAME, 0, 5000))
    while not store.ranges:
        await asyncio.sleep(0.001)
    await reads.fetch(NAME, 100, 4000)
    assert len(store.ranges) == 1
    store.gate.set()
    assert await reading == WHOLE[:5000]
