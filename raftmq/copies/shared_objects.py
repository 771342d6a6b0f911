"""Objects of a tier that may lie in the folder of another cluster in the same store.

The manifest of a restored cluster lists segments that the clusters it was restored from have uploaded, and these
segments stay in those clusters' folders (docs/adr/0067). A name ends with its content's hash, so an object of that name
is the right one wherever it lies.
"""

from __future__ import annotations

import asyncio

from cluster.tier.object_names import HEAD
from cluster.tier.store.errors import NotFound
from cluster.tier.store.object_store import ObjectStore


async def clusters_of(store: ObjectStore) -> list[str]:
    """Returns the folders of clusters that have published a manifest, sorted."""
    found = set()
    async for info in store.list():
        folder, _, name = info.name.partition("/")
        if name == HEAD:
            found.add(folder)
    return sorted(found)


class SharedObjects:
    """Finds the objects of a store that may lie in another cluster's folder. Used by one event loop."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._clusters: asyncio.Task[list[str]] | None = None
        """The list of the clusters' folders, fetched once, and only if an object is missing in its own folder."""
        self._folders: dict[str, str] = {}
        """Name of an object -> the folder where it was found."""
        self._last = ""

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        """Reads as `ObjectStore.get_range` does, from the object itself or from the object of the same name in another
        cluster's folder."""
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
        """Returns the name under which the object lies, or its own name if it was not found elsewhere yet."""
        own, _, rest = name.partition("/")
        return f"{self._folders.get(name, own)}/{rest}"

    async def _others(self, own: str) -> list[str]:
        """Returns the folders of other clusters, beginning with the one in which the last object was found."""
        if self._clusters is None:
            self._clusters = asyncio.ensure_future(clusters_of(self._store))
        return sorted((each for each in await self._clusters if each != own), key=lambda each: each != self._last)
