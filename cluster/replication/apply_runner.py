"""Decides where apply runs: on its lane, except that a single small run is applied at once on the loop.

Passing a run to the lane and back costs two thread switches and a loop iteration, several times the cost of applying a
small one (docs/performance.md). A small run is therefore applied inline if the lane is idle. RocksDB never syncs here.
If inline runs take long nevertheless, because buffers are full, the lane has all runs until that time is paid for
(`StallBudget`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.replication.apply_lane import Applied, size_of
from cluster.replication.stall_budget import StallBudget
from cluster.runtime.lanes import Lane, ThreadLaneRunner
from raftlog.types import Entry, EntryType

INLINE_BYTES_MAX = 128 * 1024
INLINE_ENTRIES_MAX = 32
"""A run with more payload bytes goes to the lane. An entry that is appended on the loop is applied there as well (see
`append_runner`)."""
SLOW_S = 0.010
"""An inline run that takes longer is a stall, whether it waited for a disk or for a core."""


def is_small(job: list[Entry], bytes_max: int = INLINE_BYTES_MAX) -> bool:
    """Whether a run may be applied on the loop.

    A TRIM is never small: it has few bytes, but walks every queue. Commands are more work than messages.
    """
    if len(job) > INLINE_ENTRIES_MAX:
        return False
    for entry in job:
        if entry.type == EntryType.TRIM:
            return False
    return size_of(job) <= bytes_max


class ApplyRunner:
    """A `lanes.LaneRunner` for the apply lane."""

    def __init__(
        self,
        name: str,
        lane: Lane[list[Entry], Applied],
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[Applied], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """See `lanes.ThreadLaneRunner`."""
        self._lane = lane
        self._loop = loop
        self._on_done = on_done
        self._on_failure = on_failure
        self._on_lane = 0
        """Entries given to the thread and not reported yet. Invariant: 0 whenever the loop applies inline, so that two
        threads never drain the lane."""
        self._stalls = StallBudget(SLOW_S)
        self._runner = ThreadLaneRunner(name, lane, loop, self._from_lane, on_failure)

    def submit(self, job: list[Entry]) -> None:
        """Applies the run, here or on the lane."""
        if self._on_lane or not is_small(job) or self._stalls.overdrawn(self._loop.time()):
            self._on_lane += len(job)
            self._runner.submit(job)
            return
        try:
            done = self._lane.drain([job])
        except Exception as error:  # noqa: BLE001 - as on the lane: whatever it is, the node must hear of it
            self._on_failure(error)
            return
        self._stalls.pay(done.seconds, self._loop.time() + done.seconds)
        self._on_done(done)

    def close(self) -> None:
        """Finishes what is on the lane."""
        self._runner.close()

    def _from_lane(self, done: Applied) -> None:
        self._on_lane -= len(done.entries)
        self._on_done(done)
