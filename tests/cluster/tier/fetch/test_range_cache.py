"""The cache of ranges: bounded, emptied at start, and never wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.tier.fetch import range_cache
from cluster.tier.fetch.range_cache import RangeCache
from tests.support.pace import at_most

NAME = "c1/log/a"


@pytest.fixture
async def cache(tmp_path: Path) -> AsyncIterator[RangeCache]:
    opened = RangeCache(tmp_path / "cache", 1_000_000)
    await opened.open()
    yield opened
    opened.close()


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("*.range"))


async def test_a_range_is_found_from_any_of_its_bytes_on(cache: RangeCache) -> None:
    data = random.Random(1).randbytes(200_000)
    await cache.put(NAME, 1000, data)
    for at, stop in ((1000, 201_000), (1000, 1001), (66_000, 140_000), (200_999, 999_999)):
        assert await cache.take(NAME, at, stop) == data[at - 1000 : stop - 1000]
    for at in (0, 999, 201_000):
        assert await cache.take(NAME, at, at + 10) is None
    assert await cache.take("c1/log/b", 1000, 1010) is None
    assert (cache.counts.hits, cache.counts.misses, cache.counts.dropped) == (4, 4, 0)
    assert (cache.next_start(NAME, 0, 5000), cache.next_start(NAME, 0, 500), cache.next_start(NAME, 1000, 9)) == (
        1000,
        500,
        9,
    )


async def test_random_ranges_always_read_what_was_put(cache: RangeCache) -> None:
    chance = random.Random(2)
    whole = chance.randbytes(300_000)
    for _ in range(150):
        start = chance.randrange(300_000)
        stop = min(300_000, start + chance.randrange(1, 90_000))
        await cache.put(NAME, start, whole[start:stop])
        at = chance.randrange(300_000)
        end = min(300_000, at + chance.randrange(1, 90_000))
        found = await cache.take(NAME, at, end)
        assert found is None or (found and found == whole[at : at + len(found)] and len(found) <= end - at)
        assert (found is not None) is cache.covers(NAME, at)
        if chance.random() < 0.1:
            cache.drop(NAME, at, end)
            assert await cache.take(NAME, at, end) is None
    assert 0 < cache.bytes <= 1_000_000


async def test_the_least_recently_used_goes_first(cache: RangeCache, tmp_path: Path) -> None:
    for number in range(10):
        await cache.put(NAME, number * 100_000, bytes(100_000))
    assert await cache.take(NAME, 0, 1) == b"\0"
    await cache.put("c1/log/b", 0, bytes(100_000))
    assert cache.covers(NAME, 0)
    assert not cache.covers(NAME, 100_000)
    assert cache.bytes == 1_000_000
    await asyncio.wait_for(gone(tmp_path, 10), at_most(20))


async def gone(tmp_path: Path, count: int) -> None:
    while len(files(tmp_path)) != count:
        await asyncio.sleep(0.01)


async def test_the_number_of_files_is_bounded_too(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path / "cache", 1_000_000, files_max=5)
    await cache.open()
    for number in range(20):
        await cache.put(NAME, number * 10, b"1")
    assert [cache.covers(NAME, number * 10) for number in range(20)] == [False] * 15 + [True] * 5
    cache.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
async def test_a_file_that_is_wrong_is_dropped(cache: RangeCache, tmp_path: Path, damage: str) -> None:
    await cache.put(NAME, 0, bytes(100_000))
    (path,) = files(tmp_path)
    if damage == "flip":
        data = bytearray(path.read_bytes())
        data[70_000] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(bytes(99_999))
    else:
        path.unlink()
    assert await cache.take(NAME, 0, 100_000) is None
    assert not cache.covers(NAME, 0)
    assert (cache.bytes, cache.counts.dropped) == (0, int(damage != "remove"))


async def test_a_restart_empties_the_directory_of_what_is_its_own(cache: RangeCache, tmp_path: Path) -> None:
    await cache.put(NAME, 0, bytes(10))
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    again = RangeCache(tmp_path / "cache", 1000)
    await again.open()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["notes.txt"]
    assert not again.covers(NAME, 0)
    again.close()


async def test_a_full_disk_costs_nothing_but_the_cache(
    cache: RangeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(range_cache, "_write", full)
    await cache.put(NAME, 0, bytes(10))
    assert (cache.covers(NAME, 0), cache.bytes, cache.counts.dropped) == (False, 0, 1)
    await asyncio.wait_for(gone(tmp_path, 0), at_most(20))


async def test_a_range_larger_than_the_cache_is_not_kept(cache: RangeCache, tmp_path: Path) -> None:
    await cache.put(NAME, 0, bytes(1_000_001))
    assert (files(tmp_path), cache.bytes) == ([], 0)


async def test_a_directory_that_cannot_be_made_costs_nothing_but_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = RangeCache(tmp_path / "file" / "cache", 1000)
    await cache.open()
    await cache.put(NAME, 0, b"1")
    assert (await cache.take(NAME, 0, 1), cache.counts.dropped) == (None, 0)
    cache.close()
