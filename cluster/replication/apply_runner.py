"""Decides where apply runs: on its lane, except that a single small run is applied at once on the loop.

Passing a run to the lane and back costs two thread switches and a loop iteration, several times the cost of applying a
small one (docs/performance.md). A small run is therefore applied inline if the lane is idle. RocksDB never syncs here.
If an inline run takes long nevertheless, because buffers are full, all runs go to the lane for a minute, so that a slow
disk costs the loop at most one pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.replication.apply_lane import Applied
from cluster.runtime.lanes import Lane, ThreadLaneRunner
from raftlog.types import Entry, EntryType

INLINE_BYTES_MAX = 128 * 1024
"""A run with more payload bytes goes to the lane. An entry that is appended on the loop is applied there as well (see
`append_runner`)."""
SLOW_S = 0.010
"""After an inline run that took longer, runs go to the lane for a minute."""
LANE_ONLY_S = 60.0


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
        self._lane_until = 0.0
        self._runner = ThreadLaneRunner(name, lane, loop, self._from_lane, on_failure)

    def submit(self, job: list[Entry]) -> None:
        """Applies the run, here or on the lane."""
        if self._on_lane or not self._is_small(job) or self._loop.time() < self._lane_until:
            self._on_lane += len(job)
            self._runner.submit(job)
            return
        try:
            done = self._lane.drain([job])
        except Exception as error:  # noqa: BLE001 - as on the lane: whatever it is, the node must hear of it
            self._on_failure(error)
            return
        if done.seconds > SLOW_S:
            self._lane_until = self._loop.time() + LANE_ONLY_S
        self._on_done(done)

    def close(self) -> None:
        """Finishes what is on the lane."""
        self._runner.close()

    def _from_lane(self, done: Applied) -> None:
        self._on_lane -= len(done.entries)
        self._on_done(done)

    @staticmethod
    def _is_small(job: list[Entry]) -> bool:
        """A TRIM is never small: it has few bytes, but walks every queue."""
        size = job[-1].position - job[0].position + len(job[-1].payload)
        return size <= INLINE_BYTES_MAX and not any(entry.type == EntryType.TRIM for entry in job)
