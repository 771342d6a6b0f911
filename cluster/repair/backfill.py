"""Fetches the segments that a snapshot left out, from the newest to the oldest, down to the trim position.

A leader without them would give wrong answers, because a consumer may ask for any message above the group's trim
position (docs/adr/0032). The node therefore does not campaign before it has them. It follows, votes and acknowledges
like any other node. A segment is accepted only if its frames are chained from the tail that its header names to the
first frame of the local log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cluster.config.local_layout import node_object
from cluster.repair.fetch import FetchError
from cluster.repair.log_source import ask_place
from cluster.repair.peer_requests import Fetches, end_task, fill, in_executor
from cluster.repair.progress import InstallMetrics, InstallProgress
from cluster.runtime.context import NodeContext
from cluster.runtime.findings import Code
from raftlog.errors import FrameError, RaftLogError, StorageError
from raftlog.storage.files import layout
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.log_build import SegmentBuild, abandon
from raftlog.types import NOBODY, LogTail, NodeId

logger = logging.getLogger(__name__)

HOLD = "backfill"
STAGED = "backfill.tmp"
ALARM = Code("backfill_failing", "warning", "raftmq logs {n}")
LOST = Code("older_log_lost", "critical", "raftmq backup list")
ALARM_AFTER = 3
"""The number of failed rounds over all peers after which an alarm is raised."""


class BackfillPauses(NamedTuple):
    """The pauses of a backfill, in seconds."""

    look_s: float = 0.2
    """The time between two checks of a state that is behind."""
    leaderless_s: float = 10.0
    """The time without a leader after which this node may campaign although its state is behind."""
    retry_min_s: float = 0.2
    """The shortest pause after a failed round over all peers. It doubles each time."""
    retry_max_s: float = 30.0
    """The longest pause after a failed round."""


WAITS = BackfillPauses()


class Backfill:
    """Fetches the older log that this node lacks from its peers. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        log: SegmentedLog,
        path: Path,
        client: Fetches,
        *,
        trim_position: Callable[[], int],
        applied: Callable[[], int],
        peers: Callable[[], list[NodeId]],
        metrics: InstallMetrics,
        progress: InstallProgress,
        waits: BackfillPauses = WAITS,
    ) -> None:
        """`path`: the directory DATA of the node. `applied()` returns the index of the last applied entry.
        `trim_position()` returns the position where the group's log begins, as far as this node has applied it."""
        self._waits = waits
        self._raw = context.raw
        self._fs = context.fs
        self._path = path
        self._log = log
        self._client = client
        self._blocking = in_executor(context.loop)
        self._loop = context.loop
        self._trim_position = trim_position
        self._applied = applied
        self._peers = peers
        self._alarms = context.alarms
        self._metrics = metrics
        self._progress = progress
        self._wake = context.wake
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def missing(self) -> int:
        """The bytes of log that other nodes have and this node lacks; 0 if it lacks nothing."""
        return max(0, self._log.first_position - self._trim_position())

    def start(self) -> None:
        """Begins the backfill if anything is missing."""
        if self.missing:
            logger.warning(
                "fetching %d bytes of older log from the other nodes; until then this node does not lead", self.missing
            )
            self._begin_run()

    def stop(self) -> None:
        """Cancels the work in progress. Complete segments stay. This node still may not lead until `go_on` is called
        and the work that it continues has ended."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self._stopped = True

    def go_on(self) -> None:
        """Continues the work that `stop` ended, even if nothing is missing any more: only the end of this work allows
        the node to lead again."""
        if self._stopped:
            self._stopped = False
            self._begin_run()

    def _begin_run(self) -> None:
        self._raw.hold_campaigns(HOLD, True)
        self._task = self._loop.create_task(self._run(self._task), name="backfill")

    async def close(self) -> None:
        """Cancels the work in progress, and waits until it has ended."""
        await end_task(self._task)

    async def _run(self, stopped: asyncio.Task[None] | None) -> None:
        """Fetches everything that is missing, and then lets this node lead again. Waits first until `stopped`, the
        former run of this work, has ended."""
        await end_task(stopped)
        delay_s, rounds = self._waits.retry_min_s, 0
        await self._replayed()
        while self.missing and self._peers():
            if await self._round():
                delay_s, rounds = self._waits.retry_min_s, 0
            elif self.missing:
                rounds += 1
                self._tell(rounds)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, self._waits.retry_max_s)
        self._alarms.clear(ALARM)
        if lost := self.missing:
            self._give_up()
        self._progress.end()
        try:
            await self._blocking(abandon, self._fs, self._path)
        except StorageError as error:  # the next fetch begins a new file there
            logger.warning("what the fetch of older log has left stays: %s", error)
        self._raw.hold_campaigns(HOLD, False)
        self._wake()
        if lost:
            logger.warning("this node may lead without %d bytes of older log, which no other node has", lost)
        else:
            logger.warning("the log is complete again from entry %d on: this node may lead", self._log.first_index)

    async def _replayed(self) -> None:
        """Waits until the state shows how far the log was trimmed. A state from an older checkpoint learns that from
        entries of this log, once a leader says that they are committed. If all members of a group waited for a leader,
        they would wait for ever. So after `leaderless_s` without a leader this node may campaign in the meantime."""
        last, alone_s = self._log.tail.index, 0.0
        while self.missing and self._applied() < min(last, self._log.tail.index):
            await asyncio.sleep(self._waits.look_s)
            alone_s = alone_s + self._waits.look_s if self._raw.leader_id == NOBODY else 0.0
            if alone_s >= self._waits.leaderless_s:
                self._raw.hold_campaigns(HOLD, False)
        if self.missing:
            self._raw.hold_campaigns(HOLD, True)

    def _give_up(self) -> None:
        """Raises an alarm, because the backfill ends without the missing segments. This happens if this node is the
        only voter (after unsafe-recover): it has no peer to ask, and otherwise the group would never have a leader."""
        self._alarms.raise_alarm(
            LOST,
            f"no other node has {self.missing} bytes of older log, from position {self._trim_position()} on: their "
            "messages cannot be read. To remove them from the queues: raftmq retention --run",
        )

    def _tell(self, rounds: int) -> None:
        if rounds >= ALARM_AFTER:
            self._alarms.raise_alarm(
                ALARM,
                f"this node lacks {self.missing} bytes of older log and does not lead until it has them. {rounds} "
                f"attempts to fetch the next segment failed: {self._progress.last_failure or 'no node can be reached'}",
            )

    async def _round(self) -> bool:
        """Fetches one segment from the first peer that has it. Returns False if no peer supplied it."""
        for peer in self._peers():
            try:
                await self._segment(peer)
            except (FetchError, RaftLogError, OSError) as error:
                self._progress.failed(peer, str(error))
                giver = node_object(self._client.group, peer)
                logger.warning("no older log below position %d from %s: %s", self._log.first_position, giver, error)
            else:
                return True
        return False

    async def _segment(self, peer: NodeId) -> None:
        end = self._log.first_position
        place = await ask_place(self._client, peer, end - 1)
        if place.end_position != end:
            giver = node_object(self._client.group, peer)
            raise FrameError(f"{giver} has a segment that ends at {place.end_position}, this log begins at {end}")
        start = place.previous.end_position
        build = await self._blocking(self._begin, place.previous, end)
        self._progress.begin("backfill", peer, f"segment {start}", self.missing, build.next_position - start)
        try:
            await fill(self._client, peer, build, end, self._blocking, self._progress.came)
        finally:
            path = await self._blocking(build.finish)
        await self._blocking(self._log.prepend, path)
        self._raw.trimmed()
        self._metrics.backfilled.inc()
        logger.info(
            "segment %d is back, from %s; %d bytes are missing",
            start,
            node_object(self._client.group, peer),
            self.missing,
        )

    def _begin(self, previous: LogTail, end: int) -> SegmentBuild:
        """Continues the staged file if a crash or an unreachable peer left a part of it; otherwise begins a new one.
        `previous` is the tail before the segment, `end` the position where it ends."""
        path = self._path / layout.INSTALL_DIR / STAGED
        build = SegmentBuild.resume(self._fs, path, self._log.genesis.group_id)
        if build is not None:
            if build.previous == previous and build.next_position <= end:
                return build
            build.finish()
        return SegmentBuild(self._fs, path, self._log.genesis.group_id, previous)
