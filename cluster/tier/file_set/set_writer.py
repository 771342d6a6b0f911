"""Writes files into an object store, part by part; reads each part back before anything names it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from typing import NamedTuple

from cluster.tier.file_set.stored_files import PART_BYTES, StoredFile, StoredPart
from cluster.tier.store.errors import AlreadyExists, BadAnswer, NotFound
from cluster.tier.store.object_store import ObjectStore, checksum_of
from raftlog.checksums import crc32c

COPIES_MAX = 4
"""Names tried for one part in a row."""


class Chunk(NamedTuple):
    """Bytes of a file, and their sums. Who reads them computes these: on a node, off the event loop."""

    data: bytes
    sha256: str
    """Hexadecimal."""
    crc32c: int


def chunk_of(data: bytes) -> Chunk:
    """30 ms for a part."""
    return Chunk(data, sha256(data).hexdigest(), crc32c(data))


class FileSource(NamedTuple):
    """A file to be written."""

    path: str
    """Below the set's root."""
    size: int
    read: Callable[[int, int], Awaitable[Chunk]]
    """(start, size) -> exactly as many bytes. Raises OSError, EOFError."""


class SetWriter:
    """Writes one set. One part is in memory at a time."""

    def __init__(self, store: ObjectStore, folder: str, prefix: str, known: Iterable[StoredFile] = ()) -> None:
        """`folder`: "" or what all names are below. `prefix` begins the names of new parts, and no other set's has it.
        `known`: the newest set's files, whose parts are taken where the content is the same."""
        self._store = store
        self._folder = f"{folder}/" if folder else ""
        self._prefix = prefix
        self._known = {(part.sha256, part.size): part for file in known for part in file.parts}
        self.bytes_new = 0
        """Written, rather than found in the set before."""

    async def write(self, source: FileSource) -> StoredFile:
        """Raises StoreError, and what the source raises."""
        parts = []
        for start in range(0, source.size, PART_BYTES):
            chunk = await source.read(start, min(PART_BYTES, source.size - start))
            parts.append(await self._put(chunk))
            del chunk  # before the next one is read
        return StoredFile(source.path, source.size, parts)

    async def _put(self, chunk: Chunk) -> StoredPart:
        data, digest, crc = chunk
        known = self._known.get((digest, len(data)))
        if known is not None and await self._holds(known):
            return known
        for copy in range(COPIES_MAX):
            name = f"{self._prefix}-{digest[:32]}{f'-{copy}' if copy else ''}.part"
            part = StoredPart(name, len(data), digest, crc)
            try:
                await self._store.create(self._folder + name, data)
                self.bytes_new += len(data)
            except AlreadyExists:
                pass  # an earlier attempt wrote it, or this one's answer was lost: it is read back like any other
            if await self._holds(part):
                self._known[digest, len(data)] = part
                return part
        raise BadAnswer(f"{name} read back wrong under {COPIES_MAX} names", "look at the store")

    async def _holds(self, part: StoredPart) -> bool:
        """Whether the object has the part's content."""
        name = self._folder + part.name
        try:
            if (await self._store.head(name)).size != part.size:
                return False
            crc = await checksum_of(self._store, name, part.size)
        except (NotFound, BadAnswer):
            return False
        return crc == part.crc32c

    async def write_description(self, name: str, body: bytes) -> None:
        """The last object of a set. Raises StoreError: AlreadyExists if the name has another content, BadAnswer if it
        reads back wrong. A wrong one stays: who reads it sees that its checksum does not fit."""
        full = self._folder + name
        try:
            await self._store.create(full, body)
        except AlreadyExists:
            if not await self._is(full, body):
                raise
        if not await self._is(full, body):
            raise BadAnswer(f"{name} read back wrong", "look at the store")

    async def _is(self, full: str, body: bytes) -> bool:
        try:
            return (await self._store.get(full, len(body))).data == body
        except (NotFound, BadAnswer):
            return False
