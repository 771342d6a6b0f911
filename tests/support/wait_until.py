"""Waits for a condition, and for how long at most: far longer than a busy machine needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 30.0


async def until(reached: Callable[[], object], *, every_s: float = 0.002) -> None:
    """Lets the loop run until `reached()` is true; `every_s=0` looks at every turn of the loop, for a state that soon
    passes. Raises TimeoutError after PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        while not reached():
            await asyncio.sleep(every_s)
