"""Makes the lanes of a node: the threads that write the log, apply entries, flush the database, and prepare
segments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from cluster.replication.append_lane import RETRY, AppendLane, Persisted, PersistJob, PrepareLane
from cluster.replication.append_runner import AppendRunner
from cluster.replication.apply_lane import Applied, ApplyLane, ApplyRunner
from cluster.runtime.failpoints.failpoints import FailpointLane
from cluster.runtime.lanes import Lane, LaneRunner
from cluster.runtime.periodic_tasks import Every
from cluster.runtime.service_lifecycle import Closing, Part, Starting
from raftlog.errors import ApplyStoppedError
from raftlog.types import Entry

if TYPE_CHECKING:
    from cluster.broker.reads.entry_reads import EntryReads
    from cluster.runtime.context import NodeContext
    from cluster.state.node_storage import NodeStorage

FLUSH_EVERY_MS = 1000
"""Milliseconds between two syncs of RocksDB's write-ahead log while entries are applied. After a power loss, the next
start applies again what was applied since the last sync."""


class NodeLanes:
    """The lanes of one node, each with its own thread. The methods here run on the event loop only."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        entries: EntryReads,
        *,
        reserved: Callable[[], str],
        groups_here: Callable[[], int],
        on_persisted: Callable[[Persisted], None],
        on_applied: Callable[[Applied], None],
        on_inline: Callable[[bool], object],
        on_committed: Callable[[list[Entry]], bool],
    ) -> None:
        """Makes the lanes. `reserved` returns the reason why messages may not be written now; "" if they may.
        `groups_here` returns the number of groups of brokers whose nodes share the disk. Any thread may call these two.
        `on_inline` is explained at `AppendRunner`, `on_committed` at `ApplyLane.begins`."""
        log, clock, loop, fail = storage.directory.log, context.clock, context.loop, context.fail
        hard_state_store, idle_mark_ms = storage.directory.hard_state_store, context.config.log.idle_mark_ms
        append_lane = AppendLane(log, hard_state_store, idle_mark_ms, reserved, clock.monotonic_s, log.synced_s)
        log.time_syncs(clock.monotonic_s)
        if (cached_bytes := context.config.log.page_cache_bytes_max) > 0:
            log.limit_page_cache(cached_bytes)
        apply_lane: Lane[list[Entry], Applied] = ApplyLane(storage.state, context.environment.apply_bytes, on_committed)
        failpoints = context.failpoints
        runner = append_runner = apply_runner = context.environment.runner
        if failpoints.enabled:  # a failpoint that holds a lane must block a thread, not the event loop
            apply_lane = FailpointLane(apply_lane, failpoints, "apply.batch")
        else:
            append_runner = context.environment.append_runner or partial(AppendRunner, on_inline=on_inline)
            apply_runner = context.environment.apply_runner or ApplyRunner
        prepare_lane = PrepareLane(log, clock.monotonic_s, reserved, groups_here)
        self.append: LaneRunner[PersistJob] = append_runner("append", append_lane, loop, on_persisted, fail)
        self.apply: LaneRunner[list[Entry]] = apply_runner("apply", apply_lane, loop, on_applied, fail)
        self.catch_up: Callable[[], object] = getattr(self.apply, "catch_up", _nothing)
        """Applies at once the runs that are held back (`cluster.replication.apply_lane.HeldRuns`). A runner without
        this method holds none back."""
        self._flush: LaneRunner[object] = runner("flush", storage.checkpointer, loop, _ignore, fail)
        self._prepare: LaneRunner[object] = runner("prepare", prepare_lane, loop, _ignore, fail)
        self._entries = entries
        self._loop = loop
        self._raw = context.raw
        self._checkpointer = storage.checkpointer
        self._flush_index = storage.state.applied.index
        self._flushes = Every(FLUSH_EVERY_MS, self._flush_state)

    def part(self) -> Part:
        """Returns the hooks through which the node calls the lanes."""
        return Part(
            name="lanes",
            start=self.prepare,
            starts=Starting.WORK,
            close=self.close,
            closes=Closing.LANES,
            tick=self._flushes.tick,
        )

    def retry_append(self) -> None:
        """Makes the append lane write again what did not fit on the full disk."""
        self.append.submit(RETRY)

    def prepare(self) -> None:
        """Starts the preparation of the log's next segment file."""
        self._prepare.submit(True)

    def _flush_state(self) -> bool:
        applied = self._raw.applied_index
        if applied <= self._flush_index and not self._checkpointer.due:
            return False
        self._flush_index = applied
        self._flush.submit(True)
        return True

    async def close(self) -> None:
        """Stops the lanes one after the other; each finishes its queued jobs first."""
        with suppress(ApplyStoppedError):
            self.catch_up()
        for lane in (self.append, self.apply, self._prepare, self._flush, self._entries):
            await self._loop.run_in_executor(None, lane.close)


def _nothing() -> None:
    """Does nothing, because nothing is held back."""


def _ignore(done: object) -> None:
    """Does nothing with the results of a lane, because nobody waits for them."""
