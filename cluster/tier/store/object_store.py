"""The protocol of an object store: what the tier needs of one, and no more."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

OBJECT_BYTES_MAX = 64 * 1024 * 1024
"""A larger segment is cut into several objects, so that each is written by one conditional request."""
READ_BACK_BYTES = 4 << 20
"""By one request of `checksum_of`."""
NAME_BYTES_MAX = 512
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""Parts that do not begin with a dot: those are a directory store's own."""

Data = bytes | bytearray | memoryview


class ObjectInfo(NamedTuple):
    """What a store knows of an object without reading it."""

    name: str
    size: int
    """Bytes."""
    modified_ms: int
    """By the store's clock, since the Unix epoch."""


class Stored(NamedTuple):
    """A whole object and the version that was read."""

    data: bytes
    tag: str
    """Opaque; another content has another tag. For `replace`."""


class ObjectStore(Protocol):
    """Objects by name below one root. Names: `check_name`. Every call raises StoreError (errors.py).

    A write that returns is durable, and so is the object of a call that raised AlreadyExists. A write that raised an
    error with `outcome_unknown` may have been carried out, also later. A cancelled write is such a write.
    """

    @property
    def root(self) -> str:
        """The URL, without credentials, for logs and people."""

    async def create(self, name: str, data: Data) -> None:
        """Writes a new object of at most OBJECT_BYTES_MAX. Raises AlreadyExists, and then changes nothing."""

    async def replace(self, name: str, data: Data, tag: str) -> None:
        """Replaces the object if it still is the version `tag`. Raises Conflict or NotFound, and then changes
        nothing."""

    async def get(self, name: str, size_max: int) -> Stored:
        """The whole object. Raises BadAnswer if it is larger than `size_max`, before it is read."""

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop), exactly as many. Raises BadAnswer if the object ends before `stop`."""

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several ranges of one object, one request each; merging them is the caller's business."""

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        """CRC-32C of bytes [start, stop) as they are read back, continuing `crc`. Raises as `get_range`."""

    async def head(self, name: str) -> ObjectInfo:
        """Size and time."""

    def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """Everything below a folder ("" is the root), in no particular order. An absent folder is empty.

        A broken server or proxy may make it look so: only `head` proves that an object is gone."""

    async def delete(self, name: str) -> None:
        """Removes the object; nothing if there is none."""

    async def sweep(self, older_than_ms: int) -> int:
        """Removes what writes left behind that ended so many ms ago or more without a result: temporary files. Returns
        how many."""

    async def close(self) -> None:
        """Lets connections and threads go. Calls under way fail or finish."""


async def checksum_of(store: ObjectStore, name: str, size: int) -> int:
    """CRC-32C of the object's first `size` bytes, as they are read back. Raises as `ObjectStore.get_range`."""
    crc = 0
    for start in range(0, size, READ_BACK_BYTES):
        crc = await store.checksum(name, start, min(start + READ_BACK_BYTES, size), crc)
    return crc


def check_name(name: str) -> str:
    """The name itself. Raises ValueError: a name comes from this program, so a bad one is a bug."""
    if len(name) > NAME_BYTES_MAX or _NAME.fullmatch(name) is None:
        raise ValueError(f"not a name of an object: {name!r}")
    return name


def check_data(data: Data) -> Data:
    """The data itself. Raises ValueError if it is larger than one request may carry."""
    size = memoryview(data).nbytes
    if size > OBJECT_BYTES_MAX:
        raise ValueError(f"an object of {size} bytes; at most {OBJECT_BYTES_MAX}")
    return data


def check_range(start: int, stop: int) -> None:
    """Raises ValueError unless [start, stop) holds at least one byte."""
    if not 0 <= start < stop:
        raise ValueError(f"not a range of bytes: {start} to {stop}")
