"""Serves the log to peers that repair theirs (cluster/repair/fetch.py has the frames)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from cluster.repair.fetch import PAYLOAD_MAX, Fetched, Refused, Source, Status
from raftlog.errors import DamagedLogError, OutOfRangeError


class RawLog(Protocol):
    """The part of SegmentedLog that is read."""

    def read_raw(self, position: int, size_max: int) -> bytes:
        """Whole frames from `position` on, every CRC checked."""


def log_source(
    log: RawLog,
    commit_index: Callable[[], int],
    hold_log: Callable[[int], object] = lambda position: None,
) -> Source:
    """`log` [position, skip, size]: frames from the one that begins at `position`, less the first `skip` bytes.

    Fields: [this node's commit index]. The payload may end within a frame: one can be longer than a reply.
    `hold_log(position)`: a peer goes on reading there for a while.
    """

    def read(arguments: list[Any]) -> Fetched:
        position, skip, size = arguments
        if not all(type(number) is int and number >= 0 for number in arguments):
            raise ValueError(f"position, skip and size are numbers, not {arguments!r:.60}")
        hold_log(position)
        try:
            frames = log.read_raw(position, min(size, PAYLOAD_MAX))
        except (OutOfRangeError, DamagedLogError) as error:
            raise Refused(Status.MISSING, str(error)) from error
        piece = frames[skip : skip + min(size, PAYLOAD_MAX)]
        if not piece:
            raise Refused(Status.MISSING, f"the frame at position {position} has no byte {skip}")
        return Fetched([commit_index()], piece)

    return read
