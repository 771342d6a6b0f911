"""Requests to a peer that may be busy, and blocking calls off the loop: the common part of all copies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from cluster.repair.fetch import Fetched, FetchError, Status
from raftlog.types import NodeId

BUSY_TRIES, BUSY_PAUSE_S = 150, 0.2
"""A peer that makes a checkpoint first is asked again so often."""

Blocking = Callable[..., Awaitable[Any]]
"""`await blocking(function, *arguments)`: calls what touches the disk where it holds up nobody."""


class Fetches(Protocol):
    """The part of FetchClient that is used."""

    async def fetch(self, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        """Raises FetchError."""


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """A `Blocking` for a process in which nothing else runs yet."""
    return function(*arguments)


def in_executor(loop: asyncio.AbstractEventLoop) -> Blocking:
    """A `Blocking` for a node that runs."""

    async def blocking(function: Callable[..., Any], *arguments: Any) -> Any:
        return await loop.run_in_executor(None, function, *arguments)

    return blocking


async def ask(client: Fetches, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
    """What `peer` answers; one that is busy is asked again for a while. Raises FetchError."""
    for _ in range(BUSY_TRIES):
        try:
            return await client.fetch(peer, what, arguments, timeout_ms)
        except FetchError as error:
            if error.status is not Status.BUSY:
                raise
        await asyncio.sleep(BUSY_PAUSE_S)
    return await client.fetch(peer, what, arguments, timeout_ms)
