"""An object store in memory, for tests and the simulator. It has no thread and no clock of its own, and shares no bytes
with callers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from cluster.tier.store.errors import AlreadyExists, BadAnswer, Conflict, NotFound
from cluster.tier.store.object_store import Data, ObjectInfo, StoredObject, check_data, check_name, check_range
from raftmq_wire.checksums import crc32c


class MemoryStore:
    """An object store in the memory of this process (`ObjectStore`)."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.objects: dict[str, bytes] = {}
        self._modified_ms: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        self._now_ms = now_ms

    @property
    def root(self) -> str:
        return "memory:"

    async def create(self, name: str, data: Data) -> None:
        if check_name(name) in self.objects:
            raise AlreadyExists(f"{name} exists")
        self._write(name, data)

    async def replace(self, name: str, data: Data, tag: str) -> None:
        if check_name(name) not in self.objects:
            raise NotFound(f"there is no {name}")
        if str(self._versions[name]) != tag:
            raise Conflict(f"{name} was replaced meanwhile")
        self._write(name, data)

    def _write(self, name: str, data: Data) -> None:
        self.objects[name] = bytes(check_data(data))
        self._modified_ms[name] = self._now_ms()
        self._versions[name] = self._versions.get(name, 0) + 1  # never the same number again, not even after a delete

    async def get(self, name: str, size_max: int) -> StoredObject:
        data = self._read(name)
        if len(data) > size_max:
            raise BadAnswer(f"{name} has {len(data)} bytes, at most {size_max} were expected")
        return StoredObject(data, str(self._versions[name]))

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        check_range(start, stop)
        data = self._read(name)
        if stop > len(data):
            raise BadAnswer(f"{name} has {len(data)} bytes, {start} to {stop} were asked for")
        return data[start:stop]

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [await self.get_range(name, *each) for each in ranges]

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        found: int = crc32c(await self.get_range(name, start, stop), crc)
        return found

    def _read(self, name: str) -> bytes:
        data = self.objects.get(check_name(name))
        if data is None:
            raise NotFound(f"there is no {name}")
        return data

    async def head(self, name: str) -> ObjectInfo:
        return ObjectInfo(name, len(self._read(name)), self._modified_ms[name])

    async def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        start = f"{check_name(folder)}/" if folder else ""
        for name in [name for name in self.objects if name.startswith(start)]:
            if name in self.objects:
                yield ObjectInfo(name, len(self.objects[name]), self._modified_ms[name])

    async def delete(self, name: str) -> None:
        self.objects.pop(check_name(name), None)

    async def sweep(self, older_than_ms: int) -> int:
        """Removes nothing (`ObjectStore.sweep`): no write leaves anything behind."""
        return 0

    async def close(self) -> None:
        """Does nothing (`ObjectStore.close`)."""
