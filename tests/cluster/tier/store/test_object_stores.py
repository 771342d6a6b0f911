"""One suite for every store: what the tier relies on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import google_crc32c
import pytest

from cluster.tier.store.directory_store import DirectoryStore
from cluster.tier.store.errors import AlreadyExists, BadAnswer, Conflict, NotFound
from cluster.tier.store.object_store import OBJECT_BYTES_MAX, ObjectStore, probe
from cluster.tier.store.store_by_url import open_store
from tests.support import s3_server
from tests.support.rows import each_row

NAME = "cluster-1/log/00000000000000000000-00000000000000004096.0123456789abcdef.seg"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server.moto() as endpoint:
        yield endpoint


@pytest.fixture(params=["memory", "directory", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened: ObjectStore
    if request.param == "memory":
        opened = open_store("memory:")
    elif request.param == "directory":
        opened = DirectoryStore(tmp_path / "new" / "root", page=7)
    else:
        opened = s3_store(request.getfixturevalue("endpoint"), tmp_path)
    yield opened
    await opened.close()


def s3_store(endpoint: str, tmp_path: Path) -> ObjectStore:
    """A store with a prefix of its own: the bucket is everybody's."""
    return open_store(f"s3://{s3_server.BUCKET}/{uuid4().hex}", s3_server.options(endpoint, tmp_path))


async def names(store: ObjectStore, folder: str = "") -> list[str]:
    return sorted([info.name async for info in store.list(folder)])


async def test_what_was_created_is_read_back(store: ObjectStore) -> None:
    data = bytes(range(256)) * 16
    await store.create(NAME, memoryview(bytearray(data)))
    assert (await store.get(NAME, 4096)).data == data
    assert (await store.head(NAME))[:2] == (NAME, 4096)
    assert await store.get_range(NAME, 0, 4096) == data
    assert await store.get_range(NAME, 255, 258) == b"\xff\x00\x01"
    assert await store.get_ranges(NAME, [(4095, 4096), (0, 2), (1, 2)]) == [b"\xff", b"\x00\x01", b"\x01"]
    assert await store.checksum(NAME, 0, 4096) == google_crc32c.value(data)
    first = await store.checksum(NAME, 3, 700)
    assert await store.checksum(NAME, 700, 4001, first) == google_crc32c.value(data[3:4001])


async def test_the_probe_passes_and_leaves_nothing(store: ObjectStore) -> None:
    await probe(store, "c1", "0123")
    assert await names(store) == []


async def test_an_object_larger_than_one_request_may_carry_is_refused(store: ObjectStore) -> None:
    with pytest.raises(ValueError, match="at most 67108864"):
        await store.create("a", bytes(OBJECT_BYTES_MAX + 1))
    assert await names(store) == []


async def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    await store.create("empty", b"")
    assert (await store.get("empty", 0)).data == b""
    assert (await store.head("empty")).size == 0


async def test_a_name_is_created_once(store: ObjectStore) -> None:
    await store.create(NAME, b"first")
    with pytest.raises(AlreadyExists):
        await store.create(NAME, b"second")
    assert (await store.get(NAME, 10)).data == b"first"


async def test_of_many_creations_at_once_one_wins(store: ObjectStore) -> None:
    bodies = [bytes([each]) * 1000 for each in range(16)]
    results = await asyncio.gather(*(store.create("a/b", body) for body in bodies), return_exceptions=True)
    won = [body for body, result in zip(bodies, results, strict=True) if result is None]
    assert [type(result) for result in results if result is not None] == [AlreadyExists] * 15
    assert won == [(await store.get("a/b", 1000)).data]


async def test_a_replacement_names_the_version_that_it_replaces(store: ObjectStore) -> None:
    await store.create("HEAD", b"one")
    first = await store.get("HEAD", 100)
    await store.replace("HEAD", b"two", first.tag)
    with pytest.raises(Conflict):
        await store.replace("HEAD", b"three", first.tag)
    second = await store.get("HEAD", 100)
    assert (second.data, second.tag != first.tag) == (b"two", True)
    await store.replace("HEAD", b"four", second.tag)
    assert (await store.get("HEAD", 100)).data == b"four"


async def test_nothing_is_replaced_that_is_not_there(store: ObjectStore) -> None:
    await store.create("HEAD", b"one")
    tag = (await store.get("HEAD", 100)).tag
    await store.delete("HEAD")
    with pytest.raises((NotFound, Conflict)):
        await store.replace("HEAD", b"two", tag)
    assert await names(store) == []


async def test_of_replacements_at_once_each_version_has_one_successor(store: ObjectStore) -> None:
    await store.create("counter", b"0")

    async def increment() -> int:
        conflicts = 0
        while True:
            now = await store.get("counter", 100)
            try:
                await store.replace("counter", str(int(now.data) + 1).encode(), now.tag)
            except Conflict:
                conflicts += 1
            else:
                return conflicts

    await asyncio.gather(*(increment() for _ in range(12)))
    assert (await store.get("counter", 100)).data == b"12"


async def test_what_is_absent_is_said_to_be(store: ObjectStore) -> None:
    parts = store.get_range("x/y", 0, 1), store.get_ranges("x/y", [(0, 1)]), store.checksum("x/y", 0, 1)
    for call in (store.get("x/y", 1), store.head("x"), *parts):
        with pytest.raises(NotFound):
            await call
    await store.delete("x/y")
    assert await names(store, "x") == []


async def test_a_range_beyond_the_end_is_an_error_and_never_short(store: ObjectStore) -> None:
    await store.create("a", b"12345")
    for start, stop in ((0, 6), (4, 7), (5, 6), (9, 12)):
        for part in (store.get_range("a", start, stop), store.checksum("a", start, stop)):
            with pytest.raises(BadAnswer):
                await part
    with pytest.raises(BadAnswer):
        await store.get_ranges("a", [(0, 1), (4, 6)])


async def test_an_object_larger_than_expected_is_not_read(store: ObjectStore) -> None:
    await store.create("a", b"12345")
    with pytest.raises(BadAnswer, match="5"):
        await store.get("a", 4)


async def test_a_listing_is_complete_and_keeps_to_its_folder(store: ObjectStore) -> None:
    all_names = [f"c1/log/{each:04d}.seg" for each in range(30)] + ["c1/log-2/a", "c1/logs", "c2/log/a", "HEAD"]
    for name in all_names:
        await store.create(name, b"x")
    assert await names(store) == sorted(all_names)
    assert await names(store, "c1/log") == [name for name in all_names if name.startswith("c1/log/")]
    assert await names(store, "c2") == ["c2/log/a"]


async def test_a_name_can_be_used_again_after_its_deletion(store: ObjectStore) -> None:
    await store.create("a/b", b"1")
    old = await store.get("a/b", 1)
    await store.delete("a/b")
    await store.create("a/b", b"2")
    with pytest.raises(Conflict):
        await store.replace("a/b", b"3", old.tag)


@each_row("name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a/.b", "a b", "ä", "a" * 600])
async def test_a_name_that_a_store_could_take_for_something_else_is_refused(store: ObjectStore, name: str) -> None:
    for call in (store.create(name, b""), store.replace(name, b"", ""), store.get(name, 1), store.delete(name)):
        with pytest.raises(ValueError, match="not a name"):
            await call
