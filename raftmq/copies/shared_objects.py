"""Objects of a tier that may lie below the id of another cluster of the same store.

The manifest of a restored cluster lists segments that its ancestors uploaded, and they stay in the ancestors' folders
(docs/adr/0067). A name ends with its content's hash, so an object of that name is the right one wherever it lies.
"""

from __future__ import annotations

import asyncio

from cluster.tier.object_names import HEAD
from cluster.tier.store.errors import NotFound
from cluster.tier.store.object_store import ObjectStore


async def clusters_of(store: ObjectStore) -> list[str]:
    """The folders of clusters that have published a manifest, sorted."""
    found = set()
    async for info in store.list():
        folder, _, name = info.name.partition("/")
        if name == HEAD:
            found.add(folder)
    return sorted(found)


class SharedObjects:
    """The objects of a store whose place may be another cluster's folder. Used by one event loop."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._clusters: asyncio.Task[list[str]] | None = None
        """Listed once, and only if an object is not in its own folder."""
        self._folders: dict[str, str] = {}
        """Name -> the folder where it was found."""
        self._last = ""

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        """Reads as `ObjectStore.get_range` does, from the object itself or from the one of that name below another
        cluster's id."""
        own, _, rest = name.partition("/")
        folder = self._folders.get(name, own)
        try:
            return await self._store.get_range(f"{folder}/{rest}", start, stop)
        except NotFound as missing:
            for other in await self._others(own):
                try:
                    data = await self._store.get_range(f"{other}/{rest}", start, stop)
                except NotFound:
                    continue
                self._folders[name] = self._last = other
                return data
            raise missing from None

    def where(self, name: str) -> str:
        """The name under which the object lies, as far as it was found already."""
        own, _, rest = name.partition("/")
        return f"{self._folders.get(name, own)}/{rest}"

    async def _others(self, own: str) -> list[str]:
        """Folders of other clusters, the one that was right the last time first."""
        if self._clusters is None:
            self._clusters = asyncio.ensure_future(clusters_of(self._store))
        return sorted((each for each in await self._clusters if each != own), key=lambda each: each != self._last)
