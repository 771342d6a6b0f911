"""The lanes under the driver: what writes the log, applies it, syncs the rows and prepares the next segment; and what
looks up entries for requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker.reads.entry_reads import EntryReads
from cluster.replication.append_lane import RETRY, AppendLane, Persisted, PersistJob, PrepareLane
from cluster.replication.append_runner import AppendRunner
from cluster.replication.apply_lane import Applied, ApplyLane, ApplyRunner
from cluster.runtime.chores import Every
from cluster.runtime.failpoints.failpoint_seams import FailpointLane
from cluster.runtime.lanes import Lane, LaneRunner
from raftlog.types import Entry

if TYPE_CHECKING:
    from cluster.runtime.context import NodeContext
    from cluster.runtime.failpoints.failpoints import FailpointSet
    from cluster.state.node_storage import NodeStorage

FLUSH_EVERY_MS = 1000
"""RocksDB's WAL is synced this often while entries are applied: what a power loss makes a restart replay."""


class NodeLanes:
    """Event loop only; each lane has its own thread."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        failpoints: FailpointSet,
        *,
        reserved: Callable[[], str],
        on_persisted: Callable[[Persisted], None],
        on_applied: Callable[[Applied], None],
        on_inline: Callable[[bool], object],
    ) -> None:
        """`reserved`: why messages may not be written, "" if they may; any thread. `on_inline`: see AppendRunner."""
        log, clock, loop, fail = storage.directory.log, context.clock, context.loop, context.fail
        hard_state_store, idle_mark_ms = storage.directory.hard_state_store, context.config.log.idle_mark_ms
        append_lane = AppendLane(log, hard_state_store, idle_mark_ms, reserved, clock.monotonic_s, log.synced_s)
        log.time_syncs(clock.monotonic_s)
        if (cached_bytes := context.config.log.page_cache_bytes_max) > 0:
            log.limit_page_cache(cached_bytes)
        apply_lane: Lane[list[Entry], Applied] = ApplyLane(storage.state, context.environment.apply_bytes)
        runner = append_runner = apply_runner = context.environment.runner
        if failpoints.enabled:  # a point that holds a lane must hold a thread, not the loop
            apply_lane = FailpointLane(apply_lane, failpoints, "apply.batch")
        else:
            append_runner = context.environment.append_runner or partial(AppendRunner, on_inline=on_inline)
            apply_runner = context.environment.apply_runner or ApplyRunner
        prepare_lane = PrepareLane(log, clock.monotonic_s, reserved)
        self.append: LaneRunner[PersistJob] = append_runner("append", append_lane, loop, on_persisted, fail)
        self.apply: LaneRunner[list[Entry]] = apply_runner("apply", apply_lane, loop, on_applied, fail)
        self._flush: LaneRunner[object] = runner("flush", storage.checkpointer, loop, _ignore, fail)
        self._prepare: LaneRunner[object] = runner("prepare", prepare_lane, loop, _ignore, fail)
        self.entries = EntryReads(context, log.entry_at)
        self._loop = loop
        self._raw = context.raw
        self._checkpointer = storage.checkpointer
        self._flush_index = storage.state.applied.index
        self.flushes = Every(FLUSH_EVERY_MS, self._flush_state)
        """A chore."""

    def retry_append(self) -> None:
        """Has the append lane try again what it has put aside."""
        self.append.submit(RETRY)

    def prepare(self) -> None:
        """Has the next segment made ready."""
        self._prepare.submit(True)

    def _flush_state(self) -> bool:
        applied = self._raw.applied_index
        if applied <= self._flush_index and not self._checkpointer.due:
            return False
        self._flush_index = applied
        self._flush.submit(True)
        return True

    async def close(self) -> None:
        """Ends one after the other, each when it has finished what is queued."""
        for lane in (self.append, self.apply, self._prepare, self._flush, self.entries):
            await self._loop.run_in_executor(None, lane.close)


def _ignore(done: object) -> None:
    """Nobody waits for this lane."""
