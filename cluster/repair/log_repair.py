"""Repairs damaged ranges of the log from peers, one after another until there are none.

Any peer may supply the bytes: the log accepts them only if every CRC fits and the chain leads from the frame before the
range to the frame after it. If no frame after the range is known, only a peer that knows the range as committed may
supply it, because committed entries have one history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cluster.config.local_layout import node_object
from cluster.repair.fetch import LOG, PAYLOAD_MAX, FetchError, Status
from cluster.repair.peer_requests import Backoff, Fetches, end_task
from cluster.runtime.alarms import Alarms
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.findings import Code
from raftlog.errors import FrameError, OutOfRangeError, RaftLogError
from raftlog.storage.log.log_repair import RangeRepair
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.damage import DamagedRange
from raftlog.types import NodeId

logger = logging.getLogger(__name__)

ALARM = Code("log_damage", "warning", "raftmq repair --node {n}")
FETCH_MS = 5_000
RETRY_MIN_S, RETRY_MAX_S = 0.2, 30.0
"""The shortest and the longest pause after a round in which no range could be repaired, in seconds; it doubles each
time."""


class LogRepairer:
    """Repairs damage of the log. Runs on the event loop, with disk access in an executor."""

    def __init__(
        self,
        log: SegmentedLog,
        client: Fetches,
        loop: asyncio.AbstractEventLoop,
        *,
        peers: Callable[[], list[NodeId]],
        on_change: Callable[[], None],
        alarms: Alarms,
        retry_min_s: float = RETRY_MIN_S,
    ) -> None:
        """`peers`: the peers to ask, best first. `on_change` is called when damage was found or repaired."""
        self._log = log
        self._client = client
        self._loop = loop
        self._peers = peers
        self._on_change = on_change
        self._alarms = alarms
        self.metrics = RepairMetrics()
        self._task: asyncio.Task[None] | None = None
        self._last_failure = ""
        self._closing = False
        self._pauses = Backoff(retry_min_s, RETRY_MAX_S)
        self._busy_pause_s = retry_min_s

    def start(self) -> None:
        """Starts the repair in the background. Known damage is repaired as soon as a peer answers."""
        self._log.damage.on_change(self._changed_elsewhere)
        self._changed()

    def now(self) -> None:
        """Ends the pause after a failed round, so that the next round begins at once."""
        self._pauses.end()

    def _changed_elsewhere(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: the node has stopped
            self._loop.call_soon_threadsafe(self._changed)

    async def close(self) -> None:
        """Cancels the work in progress; a range that was fetched only in part stays damaged."""
        self._closing = True
        await end_task(self._task)

    def _changed(self) -> None:
        ranges = self._log.damage.ranges
        self.metrics.damaged.set(self._log.damage.bytes)
        if ranges:
            self._raise_alarm(ranges)
            if not self._closing and (self._task is None or self._task.done()):
                self._task = self._loop.create_task(self._run(), name="repair")
        else:
            self._alarms.clear(ALARM)
        self._on_change()

    def _raise_alarm(self, ranges: tuple[DamagedRange, ...]) -> None:
        first = ranges[0]
        more = f" and {len(ranges) - 1} more" if len(ranges) > 1 else ""
        self._alarms.raise_alarm(
            ALARM,
            f"the log is damaged at positions {first.first_position}..{first.end_position} (entries "
            f"{first.first_index}..{first.last_index}){more}: {first.why}. It is being fetched from the other nodes"
            + (f"; so far: {self._last_failure}" if self._last_failure else ""),
        )

    # --- the work ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._pauses.reset()
        while ranges := self._log.damage.ranges:
            repaired = [await self._repair(damaged) for damaged in ranges]
            if any(repaired):
                self._pauses.reset()
                continue
            self._raise_alarm(self._log.damage.ranges or ranges)
            await self._pauses.pause()
        self._last_failure = ""
        self._changed()  # also clears an alarm that was raised between the last repair and now

    async def _repair(self, damaged: DamagedRange) -> bool:
        """Returns True if the range is repaired, or was removed from the log for another reason; False if no peer could
        repair it."""
        failures = []
        for peer in self._peers():
            giver = node_object(self._client.group, peer)
            try:
                await self._repair_from(peer, damaged)
            except OutOfRangeError:
                return True  # a conflict has truncated the range, or it has grown: damage.ranges has its present extent
            except (FetchError, RaftLogError) as error:
                failures.append(f"{giver}: {error}")
                self.metrics.failed.labels(str(peer)).inc()
                logger.warning(
                    "positions %d..%d of the log cannot be repaired from %s: %s",
                    damaged.first_position,
                    damaged.end_position,
                    giver,
                    error,
                )
            else:
                self.metrics.repaired(damaged.size)
                logger.warning(
                    "positions %d..%d of the log (entries %d..%d) have been repaired from %s",
                    damaged.first_position,
                    damaged.end_position,
                    damaged.first_index,
                    damaged.last_index,
                    giver,
                )
                return True
        self._last_failure = "; ".join(failures) or "no other node is known"
        return False

    async def _repair_from(self, peer: NodeId, damaged: DamagedRange) -> None:
        """Repairs the range from this peer. Raises FetchError if the peer does not have it, FrameError if the peer's
        bytes do not fit."""
        repair = await self._blocking(self._log.repairing, damaged)
        try:
            while not repair.complete:
                await self._blocking(repair.feed, await self._next_piece(peer, repair))
            # Only this step makes the repair effective: until all frames fit their neighbours, the range stays damaged.
            await self._blocking(repair.finish)
        finally:
            # If only a part was fetched, the range stays damaged, and the staged files are closed.
            repair.abort()

    async def _next_piece(self, peer: NodeId, repair: RangeRepair) -> bytes:
        position = repair.tail.end_position
        skip = repair.next_position - position
        size = min(PAYLOAD_MAX, repair.damaged.end_position - repair.next_position)
        while True:
            try:
                fields, payload = await self._client.fetch(peer, LOG, [position, skip, size], FETCH_MS)
            except FetchError as error:
                if error.status is not Status.BUSY:
                    raise
                await asyncio.sleep(self._busy_pause_s)
                continue
            _check_committed(node_object(self._client.group, peer), repair.damaged, fields)
            return payload

    async def _blocking(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(None, call, *arguments)


def _check_committed(giver: str, damaged: DamagedRange, fields: list[Any]) -> None:
    commit_index = fields[0] if fields else None
    # Without a frame behind the damage, the chain cannot verify the bytes. Only committed entries are sure to be the
    # same.
    if damaged.after is None and (type(commit_index) is not int or commit_index < damaged.last_index):
        raise FrameError(
            f"no frame is known after entry {damaged.last_index}, and {giver} does not know that it is committed"
        )


class RepairMetrics(ServiceMetrics):
    """Metrics of repairs, updated once per repaired range."""

    def __init__(self) -> None:
        super().__init__()
        gauge, counter = self.gauge, self.counter
        self.damaged = gauge("raftmq_log_damaged_bytes", "Damaged bytes of the log that wait for repair")
        self._repaired_bytes = counter("raftmq_log_repaired_bytes", "Bytes of the log repaired with a peer's copy")
        self._repairs = counter("raftmq_log_repairs", "Damaged ranges of the log repaired")
        self.failed = counter("raftmq_log_repair_failures", "Damaged ranges that a peer could not supply", ["peer"])

    def repaired(self, size_bytes: int) -> None:
        """Counts a repaired range."""
        self._repairs.inc()
        self._repaired_bytes.inc(size_bytes)
