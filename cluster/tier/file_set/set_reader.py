"""Brings files of an object store onto a disk; every part is compared with its digest."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path, PurePosixPath

from cluster.tier.file_set.stored_files import PART_BYTES, BadDescriptionError, StoredFile, StoredPart
from cluster.tier.store.errors import BadAnswer, NotFound
from cluster.tier.store.object_store import OBJECT_BYTES_MAX, ObjectStore

TRIES = 3


class DamagedObjectError(Exception):
    """An object that is needed is missing or damaged. It was read TRIES times. The message names it."""


async def read_object(store: ObjectStore, name: str, size: int, digest: str) -> bytes:
    """The object with this size and SHA-256 (hexadecimal). Raises DamagedObjectError, StoreError."""
    return await read_checked(
        store, name, size, lambda data: sha256(data).hexdigest() == digest, "that is written down"
    )


async def read_checked(
    store: ObjectStore, name: str, size: int, is_right: Callable[[bytes], bool], expected: str
) -> bytes:
    """The object with this size, if it `is_right`. `expected` says in a message which digest was wanted.
    Raises DamagedObjectError, StoreError."""
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
    """The file's bytes, one part in memory at a time. Raises DamagedObjectError, StoreError."""
    prefix = f"{folder}/" if folder else ""
    for part in file.parts:
        yield await read_object(store, prefix + part.name, part.size, part.sha256)


async def fetch(store: ObjectStore, folder: str, file: StoredFile, root: Path) -> None:
    """Writes the file below `root`, synced. Raises DamagedObjectError, StoreError, OSError, BadDescriptionError."""
    target = root / check_path(file.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as out:
        async for data in parts_of(store, folder, file):
            out.write(data)
        out.flush()
        os.fsync(out.fileno())


def check_path(path: str) -> str:
    """The path itself. Raises BadDescriptionError if a file of this path could lie outside its root."""
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts:
        raise BadDescriptionError(f"it names a file {path!r}")
    return path


def check_files(files: list[StoredFile]) -> None:
    """Raises BadDescriptionError unless the parts can be what the files say."""
    for file in files:
        check_path(file.path)
        if sum(part.size for part in file.parts) != file.size or not all(map(_is_possible, file.parts)):
            raise BadDescriptionError(f"the parts of {file.path} do not add up")


def _is_possible(part: StoredPart) -> bool:
    return 0 < part.size <= max(PART_BYTES, OBJECT_BYTES_MAX)
