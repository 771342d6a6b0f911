"""Files in an object store: writes a set of files part by part, describes the set, and brings it back onto a disk.

A file is cut into parts of PART_BYTES, one object each. A part's name begins with the name of the set that wrote it
first, and contains a hash of its content. A later set may name the part as well, and then does not write it again. Each
part is read back before anything names it, and compared with its digest when it is brought onto a disk. The description
is written last, so a set without one does not exist.

Invariant: a removed name is never written again. A writer reuses parts only from the newest set, under their names, and
writes everything else under names of its own. So a DELETE that the network delays, for a part that only older sets
name, cannot hit an object that a newer set needs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

import msgspec

from cluster.config.sealed_json import BadSealError, SealedJson
from cluster.tier.store.errors import AlreadyExists, BadAnswer, NotFound
from cluster.tier.store.object_store import OBJECT_BYTES_MAX, ObjectStore, checksum_of
from raftlog.format_versions import remark
from raftmq_wire.checksums import crc32c
from raftmq_wire.json_text import MALFORMED

SCHEMA = 10
PART_BYTES = 16 << 20
DESCRIPTION_BYTES_MAX = 64 << 20


class StoredPart(msgspec.Struct, frozen=True):
    """A part of a file, stored as one object. `name` is below the folder of the set's owner."""

    name: str
    size: int
    sha256: str
    crc32c: int


class StoredFile(msgspec.Struct, frozen=True):
    """A file, as the sequence of its parts."""

    path: str
    """Path below the set's root, with / between folders."""
    size: int
    parts: list[StoredPart]


class BadDescriptionError(ValueError):
    """The object is not a description of a set of files, or has another format."""


_SEALED = SealedJson("content", SCHEMA)
Content = TypeVar("Content")


def encode(content: object) -> bytes:
    """Returns the bytes of a description with this content."""
    return _SEALED.seal(msgspec.json.encode(content))


def decode(data: bytes, kind: type[Content]) -> Content:
    """Returns the content that `encode` was given. Raises BadDescriptionError."""
    try:
        body = _SEALED.open(data, lambda schema: BadDescriptionError(remark("it", schema, SCHEMA)))
        return msgspec.json.decode(body, type=kind)
    except BadSealError:
        raise BadDescriptionError("its checksum does not fit") from None
    except MALFORMED as error:
        raise BadDescriptionError(str(error)) from None


TRIES = 3


class DamagedObjectError(Exception):
    """A needed object is missing or damaged, after TRIES reads. The message names it."""


async def read_object(store: ObjectStore, name: str, size: int, digest: str) -> bytes:
    """Returns the object with this size and SHA-256 (hexadecimal). Raises DamagedObjectError, StoreError."""
    return await read_checked(
        store, name, size, lambda data: sha256(data).hexdigest() == digest, "that is written down"
    )


async def read_checked(
    store: ObjectStore, name: str, size: int, is_right: Callable[[bytes], bool], expected: str
) -> bytes:
    """Returns the first `size` bytes of the object once `is_right` returns True for them; reads it at most TRIES times.
    `expected` describes the right digest in messages. Raises DamagedObjectError, StoreError."""
    why = ""
    for _ in range(TRIES):
        try:
            data = await store.get_range(name, 0, size)
        except NotFound:
            why = "it is missing"
            continue
        except BadAnswer as error:
            why = error.what
            continue
        if is_right(data):
            return data
        why = f"its digest is not the one {expected}"
    raise DamagedObjectError(f"{store.root}/{name} was read {TRIES} times: {why}")


async def parts_of(store: ObjectStore, folder: str, file: StoredFile) -> AsyncIterator[bytes]:
    """Yields the file's bytes, one part in memory at a time. Raises DamagedObjectError, StoreError."""
    prefix = f"{folder}/" if folder else ""
    for part in file.parts:
        yield await read_object(store, prefix + part.name, part.size, part.sha256)


async def fetch(store: ObjectStore, folder: str, file: StoredFile, root: Path) -> None:
    """Reads the file from the store and writes it below `root`, synced. The file must not exist there. Raises
    DamagedObjectError, StoreError, OSError, BadDescriptionError."""
    target = root / check_path(file.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as out:
        async for data in parts_of(store, folder, file):
            out.write(data)
        out.flush()
        os.fsync(out.fileno())


def check_path(path: str) -> str:
    """Returns the path. Raises BadDescriptionError if a file of this path could lie outside its root."""
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts:
        raise BadDescriptionError(f"it names a file {path!r}")
    return path


def check_files(files: list[StoredFile]) -> None:
    """Raises BadDescriptionError if a file's path could lie outside the root, if a part has an impossible size, or if
    the parts of a file do not add up to its size."""
    for file in files:
        check_path(file.path)
        if sum(part.size for part in file.parts) != file.size or not all(map(_is_possible, file.parts)):
            raise BadDescriptionError(f"the parts of {file.path} do not add up")


def _is_possible(part: StoredPart) -> bool:
    return 0 < part.size <= max(PART_BYTES, OBJECT_BYTES_MAX)


COPIES_MAX = 4
"""The most names that are tried for one part."""


class Chunk(NamedTuple):
    """Bytes of a file, and their checksums. Whoever reads the bytes computes them, on a node off the event loop."""

    data: bytes
    sha256: str
    """SHA-256 in hexadecimal."""
    crc32c: int


def chunk_of(data: bytes) -> Chunk:
    """Returns the bytes with their checksums. Takes 30 ms for a part of PART_BYTES."""
    return Chunk(data, sha256(data).hexdigest(), crc32c(data))


class FileSource(NamedTuple):
    """A file that is to be written."""

    path: str
    """Path below the set's root."""
    size: int
    read: Callable[[int, int], Awaitable[Chunk]]
    """A function (start, size) that returns exactly `size` bytes of the file from `start` on. Raises OSError,
    EOFError."""


class SetWriter:
    """Writes one set, with one part in memory at a time."""

    def __init__(self, store: ObjectStore, folder: str, prefix: str, known: Iterable[StoredFile] = ()) -> None:
        """`folder`: "" or the folder below which all names are. `prefix`: the names of new parts begin with it, and no
        other set uses it. `known`: the files of the newest set, whose parts are reused if the content is the same."""
        self._store = store
        self._folder = f"{folder}/" if folder else ""
        self._prefix = prefix
        self._known = {(part.sha256, part.size): part for file in known for part in file.parts}
        self.bytes_new = 0
        """Bytes that were written, without those of reused parts."""

    async def write(self, source: FileSource) -> StoredFile:
        """Writes one file. Raises StoreError, and what the source raises."""
        parts = []
        for start in range(0, source.size, PART_BYTES):
            chunk = await source.read(start, min(PART_BYTES, source.size - start))
            parts.append(await self._put(chunk))
            del chunk  # frees the memory before the next chunk is read
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
        """Returns True if the object has the part's content."""
        name = self._folder + part.name
        try:
            if (await self._store.head(name)).size != part.size:
                return False
            crc = await checksum_of(self._store, name, part.size)
        except (NotFound, BadAnswer):
            return False
        return crc == part.crc32c

    async def write_description(self, name: str, body: bytes) -> None:
        """Writes the last object of a set. Raises StoreError: AlreadyExists if the name has another content, BadAnswer
        if it reads back wrong. A wrong object stays; readers notice that its checksum does not fit."""
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
