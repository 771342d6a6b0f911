"""A directory as an object store: a disk of its own, or a network mount that all nodes share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from cluster.runtime.call_threads import CallThreads
from cluster.tier.store.directory_files import DirectoryFiles
from cluster.tier.store.object_store import Data, ObjectInfo, Stored, check_data, check_name, check_range

THREADS = 4
PAGE = 1000
"""Names that one step of a listing reads."""


class DirectoryStore:
    """See ObjectStore. Every call runs on a thread of the store's own: a dead mount stops neither the event loop nor
    the end of the process."""

    def __init__(self, root: Path) -> None:
        """`root` need not exist: the first write makes it."""
        self._files = DirectoryFiles(root)
        self._threads = CallThreads("tier-store", THREADS)

    @property
    def root(self) -> str:
        """As `ObjectStore.root`."""
        return self._files.root.absolute().as_uri()

    async def create(self, name: str, data: Data) -> None:
        """As `ObjectStore.create`."""
        await self._threads.call(self._files.create, check_name(name), check_data(data))

    async def replace(self, name: str, data: Data, tag: str) -> None:
        """As `ObjectStore.replace`."""
        await self._threads.call(self._files.replace, check_name(name), check_data(data), tag)

    async def get(self, name: str, size_max: int) -> Stored:
        """As `ObjectStore.get`."""
        return await self._threads.call(self._files.get, check_name(name), size_max)

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        """As `ObjectStore.get_range`."""
        check_range(start, stop)
        return await self._threads.call(self._files.get_range, check_name(name), start, stop)

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As `ObjectStore.get_ranges`."""
        for start, stop in ranges:
            check_range(start, stop)
        return await self._threads.call(self._files.get_ranges, check_name(name), list(ranges))

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        """As `ObjectStore.checksum`."""
        check_range(start, stop)
        return await self._threads.call(self._files.checksum, check_name(name), start, stop, crc)

    async def head(self, name: str) -> ObjectInfo:
        """As `ObjectStore.head`."""
        return await self._threads.call(self._files.head, check_name(name))

    async def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """As `ObjectStore.list`."""
        if folder:
            check_name(folder)
        after = ""
        while page := await self._threads.call(self._files.list, folder, after, PAGE):
            for info in page:
                yield info
            after = page[-1].name

    async def delete(self, name: str) -> None:
        """As `ObjectStore.delete`."""
        await self._threads.call(self._files.delete, check_name(name))

    async def sweep(self, older_than_ms: int) -> int:
        """As `ObjectStore.sweep`."""
        return await self._threads.call(self._files.sweep, older_than_ms)

    async def close(self) -> None:
        """As `ObjectStore.close`: waits for no thread."""
        self._threads.close()
