"""Raw frames of a peer's log, for a file that is built here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cluster.repair.asking import Blocking, Fetches, ask
from cluster.repair.fetch import LOG, PIECE
from raftlog.errors import FrameError
from raftlog.types import LogTail, NodeId

TIMEOUT_MS = 30_000
"""For one piece, as of a checkpoint."""


class Build(Protocol):
    """What takes frames: `raftlog.storage.log_build.LogBuild` and `SegmentBuild`."""

    @property
    def tail(self) -> LogTail:
        """After the last whole frame."""

    @property
    def next_position(self) -> int:
        """Log position of the byte that `append_raw` wants next."""

    def append_raw(self, data: bytes) -> None:
        """Checks and takes the next bytes. Raises FrameError if they are not the frames that follow."""


async def fill(
    client: Fetches, peer: NodeId, build: Build, end: int, blocking: Blocking, came: Callable[[int], object]
) -> None:
    """Brings `build` to the position `end`, where a frame ends. Raises FetchError; FrameError if what comes is not
    that: the build is sound up to its tail in any case, and another peer may go on; StorageError."""
    while build.next_position < end:
        start = build.tail.end_position
        skip = build.next_position - start
        piece = await ask(client, peer, LOG, [start, skip, min(PIECE, end - start - skip)], TIMEOUT_MS)
        if not piece.payload:
            raise FrameError(f"node {peer} gives nothing for position {start + skip}")
        await blocking(build.append_raw, piece.payload)
        came(len(piece.payload))
    if build.tail.end_position != end:
        raise FrameError(f"no frame of node {peer} ends at position {end}")
