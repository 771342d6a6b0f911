"""A restored cluster's view of a store: it reads what its ancestors uploaded, and writes below its own id only.

The rows of a restored state name objects without the folder that they lie in. Names of log and index parts have their
content's hash, so an object of that name is the right one in whichever folder it lies (docs/adr/0067).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from cluster.tier.store.errors import NotFound
from cluster.tier.store.object_store import Data, ObjectInfo, ObjectStore, Stored

T = TypeVar("T")
SHARED = ("log/", "index/")
"""Folders of a cluster whose names have their content's hash and that rows name."""


class LineageStore:
    """See ObjectStore. Event loop only."""

    def __init__(self, store: ObjectStore, own: str, ancestors: Sequence[str]) -> None:
        """`own`: the cluster's folder; `ancestors`: those of the clusters it was restored from, the nearest first."""
        self._store = store
        self._own = own
        self._ancestors = ancestors
        self._found: dict[str, str] = {}
        """Name -> where it lies: an ancestor's. Objects do not move."""

    @property
    def root(self) -> str:
        return self._store.root

    async def create(self, name: str, data: Data) -> None:
        await self._store.create(name, data)

    async def replace(self, name: str, data: Data, tag: str) -> None:
        """Replaces the version `tag` of the object (`ObjectStore.replace`). An ancestor's object stays as it is: the
        right content goes below the own id, where it is found first."""
        if self._found.pop(name, None) is not None:
            await self._store.create(name, data)
        else:
            await self._store.replace(name, data, tag)

    async def get(self, name: str, size_max: int) -> Stored:
        return await self._look(name, lambda where: self._store.get(where, size_max))

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        return await self._look(name, lambda where: self._store.get_range(where, start, stop))

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await self._look(name, lambda where: self._store.get_ranges(where, ranges))

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        return await self._look(name, lambda where: self._store.checksum(where, start, stop, crc))

    async def head(self, name: str) -> ObjectInfo:
        return await self._look(name, self._store.head)

    def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """Lists the objects below a folder (`ObjectStore.list`), of that folder alone."""
        return self._store.list(folder)

    async def delete(self, name: str) -> None:
        """Removes the object, if there is one (`ObjectStore.delete`); an ancestor's object stays."""
        await self._store.delete(name)

    async def sweep(self, older_than_ms: int) -> int:
        return await self._store.sweep(older_than_ms)

    async def close(self) -> None:
        await self._store.close()

    def where(self, name: str) -> str:
        """The name under which the object lies, as far as it was found already; for people."""
        return self._found.get(name, name)

    async def _look(self, name: str, call: Callable[[str], Awaitable[T]]) -> T:
        """The call with the name under which the object is there: the own one first."""
        known = self._found.get(name)
        if known is not None:
            try:
                return await call(known)
            except NotFound:
                del self._found[name]
        try:
            return await call(name)
        except NotFound:
            for where in self._elsewhere(name):
                try:
                    answer = await call(where)
                except NotFound:
                    continue
                self._found[name] = where
                return answer
            if elsewhere := self._elsewhere(name):
                raise NotFound(f"there is no {' and no '.join((name, *elsewhere))}") from None
            raise

    def _elsewhere(self, name: str) -> Sequence[str]:
        folder, _, part = name.partition("/")
        if folder != self._own or not part.startswith(SHARED):
            return ()
        return [f"{ancestor}/{part}" for ancestor in self._ancestors]
