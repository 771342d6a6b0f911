"""The protocol of an object store: only the calls that the tier needs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from cluster.tier.store.errors import AlreadyExists, Conflict, NotFound, StoreError, Unsupported

OBJECT_BYTES_MAX = 64 * 1024 * 1024
"""The largest object. A larger segment is cut into several objects, so that each is written by one conditional
request."""
READ_BACK_BYTES = 4 << 20
"""Bytes that `checksum_of` reads with one request."""
NAME_BYTES_MAX = 512
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""A name: no part of it begins with a dot, because such names are a directory store's own."""

Data = bytes | bytearray | memoryview


class ObjectInfo(NamedTuple):
    """Facts about an object that a store knows without reading it."""

    name: str
    size: int
    """Size in bytes."""
    modified_ms: int
    """Time of the last change, by the store's clock, in milliseconds since the Unix epoch."""


class StoredObject(NamedTuple):
    """A whole object and the version that was read."""

    data: bytes
    tag: str
    """Names the version, for `replace`. Opaque; another content has another tag."""


class ObjectStore(Protocol):
    """Objects by name below one root. `check_name` says which names are allowed. Every call raises StoreError
    (errors.py).

    If a write returns, or raises AlreadyExists, the object is durable. A write that raised an error with
    `outcome_unknown` may have been carried out, or be carried out later. The same holds for a cancelled write.
    """

    @property
    def root(self) -> str:
        """The URL without credentials, for logs and people."""

    async def create(self, name: str, data: Data) -> None:
        """Writes a new object of at most OBJECT_BYTES_MAX. If the name is taken, changes nothing and raises
        AlreadyExists."""

    async def replace(self, name: str, data: Data, tag: str) -> None:
        """Replaces the object if it still has the version `tag`. Otherwise changes nothing and raises Conflict or
        NotFound."""

    async def get(self, name: str, size_max: int) -> StoredObject:
        """Returns the whole object. Raises BadAnswer, before reading it, if it is larger than `size_max`."""

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        """Returns exactly the bytes [start, stop). Raises BadAnswer if the object ends before `stop`."""

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns several ranges of one object, with one request each; the caller merges ranges where it wants to."""

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        """Returns the CRC-32C of bytes [start, stop) as they are read back, continuing `crc`. Raises as `get_range`."""

    async def head(self, name: str) -> ObjectInfo:
        """Returns size and time of the object."""

    def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """Yields every object below a folder ("" is the root), in no particular order. An absent folder is empty.

        A broken server or proxy may show an empty folder: only `head` proves that an object is gone.
        """

    async def delete(self, name: str) -> None:
        """Removes the object if it exists."""

    async def sweep(self, older_than_ms: int) -> int:
        """Removes temporary files of interrupted writes that are older than this number of milliseconds. Returns how
        many it removed."""

    async def close(self) -> None:
        """Closes connections and threads. Calls in progress fail or finish."""


async def checksum_of(store: ObjectStore, name: str, size: int) -> int:
    """Returns the CRC-32C of the object's first `size` bytes, as they are read back. Raises as
    `ObjectStore.get_range`."""
    crc = 0
    for start in range(0, size, READ_BACK_BYTES):
        crc = await store.checksum(name, start, min(start + READ_BACK_BYTES, size), crc)
    return crc


def check_name(name: str) -> str:
    """Returns the name. Raises ValueError if it is not allowed. Names come from this program, so that is a bug."""
    if len(name) > NAME_BYTES_MAX or _NAME.fullmatch(name) is None:
        raise ValueError(f"not a name of an object: {name!r}")
    return name


def check_data(data: Data) -> Data:
    """Returns the data. Raises ValueError if it is larger than one request may carry."""
    size = memoryview(data).nbytes
    if size > OBJECT_BYTES_MAX:
        raise ValueError(f"an object of {size} bytes; at most {OBJECT_BYTES_MAX}")
    return data


def check_range(start: int, stop: int) -> None:
    """Raises ValueError unless [start, stop) holds at least one byte."""
    if not 0 <= start < stop:
        raise ValueError(f"not a range of bytes: {start} to {stop}")


FIRST, SECOND, THIRD = b"first", b"second, longer", b"third"
SIZE_MAX = 1024
_FIX = "use a store with conditional writes (If-None-Match, If-Match), or a directory: file:///path"


async def probe(store: ObjectStore, folder: str, token: str) -> None:
    """Tests a store: writes, replaces, reads, lists and removes one object `<folder>/probe/<token>`; `token` is random.

    Raises Unsupported if the store ignores a condition or gives a wrong answer. Raises what a call raises, which proves
    nothing about the store. The object is removed in either case, as far as the store allows it.
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
