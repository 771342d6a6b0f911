"""Proves before anything is tiered that a store keeps the conditions of writes: servers that speak S3 may accept a
conditional header and ignore it, and then a deposed leader overwrites the manifest of its successor."""

from __future__ import annotations

from cluster.tier.store.errors import AlreadyExists, Conflict, NotFound, StoreError, Unsupported
from cluster.tier.store.object_store import ObjectStore

FIRST, SECOND, THIRD = b"first", b"second, longer", b"third"
SIZE_MAX = 1024
_FIX = "use a store with conditional writes (If-None-Match, If-Match), or a directory: file:///path"


async def probe(store: ObjectStore, folder: str, token: str) -> None:
    """Writes, replaces, reads, lists and removes one object `<folder>/probe/<token>`; `token` is random.

    Raises Unsupported if a condition is ignored or an answer is wrong, and what a call raises: nothing is then known of
    the store. The object is removed in either case, as far as the store lets it be.
    """
    name = f"{folder}/probe/{token}"
    try:
        await _creates_once(store, name)
        await _replaces_what_was_read(store, name)
        await _reads_exactly(store, f"{folder}/probe", name)
    except BaseException:
        await _removed(store, name)
        raise
    await store.delete(name)
    try:
        await store.head(name)
    except NotFound:
        return
    raise Unsupported(f"{store.root} still has {name} after its deletion", "switch its cache or versioning proxy off")


async def _creates_once(store: ObjectStore, name: str) -> None:
    await store.create(name, FIRST)
    try:
        await store.create(name, SECOND)
    except AlreadyExists:
        pass
    else:
        raise Unsupported(f"{store.root} overwrites an object that was to be created (If-None-Match is ignored)", _FIX)
    if (await store.get(name, SIZE_MAX)).data != FIRST:
        raise Unsupported(f"{store.root} refuses a second create and carries it out", _FIX)


async def _replaces_what_was_read(store: ObjectStore, name: str) -> None:
    read = await store.get(name, SIZE_MAX)
    await store.replace(name, SECOND, read.tag)
    try:
        await store.replace(name, THIRD, read.tag)
    except Conflict:
        pass
    else:
        raise Unsupported(f"{store.root} replaces a version that was not named (If-Match is ignored)", _FIX)
    if (await store.get(name, SIZE_MAX)).data != SECOND:
        raise Unsupported(f"{store.root} refuses a replacement and carries it out", _FIX)


async def _reads_exactly(store: ObjectStore, folder: str, name: str) -> None:
    if await store.get_range(name, 2, 5) != SECOND[2:5] or (await store.head(name)).size != len(SECOND):
        raise Unsupported(f"{store.root} answers a range or a size wrongly", "look at proxies in front of the store")
    if name not in [info.name async for info in store.list(folder)]:
        raise Unsupported(
            f"{store.root} does not list an object that was written", "grant ListBucket; a stale listing hides orphans"
        )


async def _removed(store: ObjectStore, name: str) -> None:
    try:
        await store.delete(name)
    except StoreError:
        return  # the first error says more
