"""Waits in a coroutine for what a service tells a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def told(ask: Callable[[Callable[[T], None]], object]) -> T:
    """Calls `ask` with a callback, and waits for the first value that the callback receives. A value that comes after
    the caller was cancelled is ignored."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(lambda result: None if answer.done() else answer.set_result(result))
    return await answer
