"""An object store as a process sees it that can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from cluster.tier.store.object_store import ObjectInfo, ObjectStore


class StoppableStore:
    """Passes calls to a store. While `is_stopped`, they wait, as those of a process that is stopped or killed."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.is_stopped = False

    def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """Lists the objects below a folder, stopped or not."""
        return self.store.list(folder)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)

        async def passed(*arguments: Any, **named: Any) -> Any:
            while self.is_stopped:
                await asyncio.sleep(0.01)
            return await call(*arguments, **named)

        return passed
