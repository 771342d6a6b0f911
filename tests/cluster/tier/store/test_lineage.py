"""A restored cluster reads its ancestors' objects and changes none of them."""

from __future__ import annotations

import pytest

from cluster.tier.store.errors import NotFound
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.tier_assembly import LineageStore, where_of


async def test_the_own_folder_comes_first_then_the_nearest_ancestor() -> None:
    inner = MemoryStore()
    store = LineageStore(inner, "c", ["b", "a"])
    for name, data in (("a/log/1", b"a1"), ("a/log/2", b"a2"), ("b/log/2", b"b2"), ("a/index/3", b"a3")):
        await inner.create(name, data)
    assert (await store.get("c/log/1", 9)).data == b"a1"
    assert await store.get_range("c/log/2", 0, 2) == b"b2"
    assert await store.get_ranges("c/index/3", [(0, 1), (1, 2)]) == [b"a", b"3"]
    assert (await store.head("c/log/1")).size == 2
    await store.create("c/log/2", b"c2!")
    assert [info.name async for info in store.list("c")] == ["c/log/2"]
    for name in ("c/log/4", "x/log/1"):
        with pytest.raises(NotFound):
            await store.head(name)
    await inner.create("a/manifest/HEAD", b"{}")
    with pytest.raises(NotFound):
        await store.get("c/manifest/HEAD", 9)


async def test_writes_and_removals_stay_in_the_own_folder() -> None:
    inner = MemoryStore()
    store = LineageStore(inner, "c", ["a"])
    await inner.create("a/log/1", b"rotten")
    await store.delete("c/log/1")
    stored = await store.get("c/log/1", 9)
    await store.replace("c/log/1", b"right!", stored.tag)
    assert inner.objects == {"a/log/1": b"rotten", "c/log/1": b"right!"}
    stored = await store.get("c/log/1", 9)
    await store.replace("c/log/1", b"again!", stored.tag)
    assert inner.objects == {"a/log/1": b"rotten", "c/log/1": b"again!"}
    await store.delete("c/log/1")
    assert (await store.get("c/log/1", 9)).data == b"rotten"


async def test_what_an_ancestor_removes_is_gone() -> None:
    inner = MemoryStore()
    store = LineageStore(inner, "c", ["a"])
    await inner.create("a/log/1", b"1")
    await store.head("c/log/1")
    await inner.delete("a/log/1")
    with pytest.raises(NotFound, match="c/log/1"):
        await store.head("c/log/1")


async def test_an_object_is_named_where_it_lies() -> None:
    """Damage there is the ancestor's: a search below the new id finds nothing."""
    inner = MemoryStore()
    store = LineageStore(inner, "c", ["b", "a"])
    await inner.create("a/log/1", b"1")
    assert await store.get_range("c/log/1", 0, 1) == b"1"
    assert (store.where("c/log/1"), store.where("c/log/2")) == ("a/log/1", "c/log/2")
    assert (where_of(store)("c/log/1"), where_of(inner)("c/log/1")) == ("a/log/1", "c/log/1")
    await inner.delete("a/log/1")
    with pytest.raises(NotFound, match="there is no c/log/1 and no b/log/1 and no a/log/1"):
        await store.get_range("c/log/1", 0, 1)
