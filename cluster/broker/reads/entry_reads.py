"""Finds the entries of the Raft log that contain the messages at given positions, off the event loop. 1,024 positions
may lie in as many segment files. For each segment, the positions of its entries are read from an index file, or, if
that is damaged, from the segment's 64 MiB of frames."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.refusal import Reason, Refused
from cluster.runtime.host.error_containment import contain
from cluster.runtime.lanes import NeverIdle
from raftlog.errors import RaftLogError
from raftlog.kept_errors import bare

if TYPE_CHECKING:
    from cluster.runtime.context import NodeContext
    from cluster.runtime.lanes import LaneRunner
    from raftlog.storage.log.log_reader import EntrySpan

WAITING_MAX = 256
"""The most requests that wait, of at most 8 KiB each. A further request is refused and may be sent again."""
_RUN = struct.Struct(">QQI")

EntryAt = Callable[[int], "EntrySpan"]
EntryAnswer = Callable[[bytes | RaftLogError], None]
ReadEntries = Callable[[Sequence[int], EntryAnswer], None]
"""(ascending positions, function to call with the result). The result is the packed runs of `runs_of`, or the reason
why they cannot be found. Raises Refused (BUSY) if too many requests wait."""


class _Ask(NamedTuple):
    positions: Sequence[int]
    told: EntryAnswer


_Found = tuple[_Ask, bytes | RaftLogError]


class EntryReads:
    """Finds entries on a lane (a thread of its own, `cluster.runtime.lanes`), which starts with the first request.
    Everything except for the look-up runs on the event loop."""

    def __init__(self, context: NodeContext, entry_at: EntryAt) -> None:
        """`entry_at`: `raftlog.storage.log.log_reader.LogReader.entry_at`."""
        self._context = context
        self._lane = _EntryLane(entry_at)
        self._waiting = 0
        self._runner: LaneRunner[_Ask] | None = None

    def ask(self, positions: Sequence[int], told: EntryAnswer) -> None:
        """Queues these log positions for the lane, which looks up their entries (`ReadEntries`) and calls `told` with
        the result on the event loop. Raises Refused (BUSY) if WAITING_MAX requests wait already."""
        if self._waiting >= WAITING_MAX:
            raise Refused(Reason.BUSY, f"{WAITING_MAX} requests for places of messages wait already")
        if self._runner is None:
            context = self._context
            self._runner = context.environment.runner("entries", self._lane, context.loop, self._on_done, context.fail)
        self._waiting += 1
        self._runner.submit(_Ask(positions, told))

    def _on_done(self, found: list[_Found]) -> None:
        self._waiting -= len(found)
        for ask, answer in found:
            contain("telling the places of messages", ask.told, answer)

    def close(self) -> None:
        """Stops the lane. Blocks until its current work is done."""
        if self._runner is not None:
            self._runner.close()


class _EntryLane(NeverIdle):
    def __init__(self, entry_at: EntryAt) -> None:
        self._entry_at = entry_at

    def drain(self, batch: Sequence[_Ask]) -> list[_Found]:
        return [(ask, self._answer(ask.positions)) for ask in batch]

    def _answer(self, positions: Sequence[int]) -> bytes | RaftLogError:
        try:
            return runs_of(positions, self._entry_at)
        except RaftLogError as error:
            return bare(error)


def runs_of(positions: Sequence[int], entry_at: EntryAt) -> bytes:
    """Returns packed runs (index, term, number of positions): one run for neighbouring positions whose messages are in
    the same entry. Raises RaftLogError if the entry at a position cannot be found."""
    runs: list[bytes] = []
    at, count = 0, len(positions)
    while at < count:
        entry = entry_at(positions[at])
        first = at
        while at < count and positions[at] < entry.end:
            at += 1
        runs.append(_RUN.pack(entry.index, entry.term, at - first))
    return b"".join(runs)
