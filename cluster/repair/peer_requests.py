"""Provides what all copies from peers need: requests to a peer that may be busy, and blocking calls off the event
loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from cluster.config.local_layout import node_object
from cluster.repair.fetch import LOG, PIECE, Fetched, FetchError, Status
from raftlog.errors import FrameError
from raftlog.types import LogTail, NodeId

BUSY_TRIES = 150
"""The most times that a busy peer is asked again."""

Blocking = Callable[..., Awaitable[Any]]
"""`await blocking(function, *arguments)` calls a function that uses the disk, where it blocks no other work, and
returns its result."""


class Fetches(Protocol):
    """The part of FetchClient that `ask` uses."""

    @property
    def group(self) -> int:
        """The group of brokers of this node and its peers."""

    @property
    def busy_pause_s(self) -> float:
        """The seconds until a busy peer is asked again."""

    async def fetch(self, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        """Returns the peer's answer. Raises FetchError if there is none within `timeout_ms`, or if the peer refuses."""


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function directly. This is the `Blocking` for a process in which nothing else runs yet."""
    return function(*arguments)


def in_executor(loop: asyncio.AbstractEventLoop) -> Blocking:
    """Returns a `Blocking` for a running node: it calls the function in the loop's executor."""

    async def blocking(function: Callable[..., Any], *arguments: Any) -> Any:
        return await loop.run_in_executor(None, function, *arguments)

    return blocking


class Backoff:
    """Pauses between failed rounds, each twice as long as the one before. Event loop only."""

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s, self._max_s = min_s, max_s
        self._next_s = min_s
        self._ended = asyncio.Event()

    async def pause(self) -> None:
        """Waits for the length of the next pause, or until `end` is called."""
        self._ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._next_s):
                await self._ended.wait()
        self._next_s = min(self._next_s * 2, self._max_s)

    def end(self) -> None:
        """Ends the present pause, if there is one."""
        self._ended.set()

    def reset(self) -> None:
        """Records that the round had some success, so that the next pause is short."""
        self._next_s = self._min_s


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancels the task, and returns when it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask(client: Fetches, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
    """Returns the answer of `peer`. Asks a busy peer again, up to BUSY_TRIES times. Raises FetchError."""
    for _ in range(BUSY_TRIES):
        try:
            return await client.fetch(peer, what, arguments, timeout_ms)
        except FetchError as error:
            if error.status is not Status.BUSY:
                raise
        await asyncio.sleep(client.busy_pause_s)
    return await client.fetch(peer, what, arguments, timeout_ms)


TIMEOUT_MS = 30_000
"""Milliseconds for one fetched piece, for example of a checkpoint."""


class FrameBuild(Protocol):
    """The part of a builder that takes frames: `raftlog.storage.log_build.LogBuild` or `SegmentBuild`."""

    @property
    def tail(self) -> LogTail:
        """Tail of the log after the last complete frame."""

    @property
    def next_position(self) -> int:
        """Log position of the byte that `append_raw` expects next."""

    def append_raw(self, data: bytes) -> None:
        """Checks the next bytes and adds them. Raises FrameError if they are not the frames that follow."""


async def fill(
    client: Fetches, peer: NodeId, build: FrameBuild, end: int, blocking: Blocking, came: Callable[[int], object]
) -> None:
    """Fetches frames from the peer until `build` reaches the position `end`, where a frame ends. Raises FetchError,
    StorageError, and FrameError if the peer's bytes are not the frames that follow. After an error the build is still
    sound up to its tail, and another peer may continue it."""
    while build.next_position < end:
        start = build.tail.end_position
        skip = build.next_position - start
        piece = await ask(client, peer, LOG, [start, skip, min(PIECE, end - start - skip)], TIMEOUT_MS)
        if not piece.payload:
            raise FrameError(f"{node_object(client.group, peer)} gives nothing for position {start + skip}")
        await blocking(build.append_raw, piece.payload)
        came(len(piece.payload))
    if build.tail.end_position != end:
        raise FrameError(f"no frame of {node_object(client.group, peer)} ends at position {end}")
