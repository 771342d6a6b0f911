"""Disk space: when the leader refuses sends, when the log waits for space, and when both resume.

Three stages, as space runs out:

* above `retention.disk_refuse_writes_percent` the leader refuses sends (code 14) with the reason. It accepts them
  again RESUME_POINTS below that limit, so that a disk close to it does not flap;
* when less than the reserve is left, the append lane puts messages aside, unwritten and unacknowledged. The reserve is
  for writes that must continue: term and vote, RocksDB, checkpoints, TRIM;
* when a write finds no space nevertheless, its messages are put aside too, and tried again every RETRY_MS.

Nothing is lost: entries put aside were never acknowledged, and later ones wait behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cluster.replication.append_lane import Persisted
from cluster.retention.disk_warnings import Filling, SlowAppends
from cluster.retention.metrics import DiskMetrics
from cluster.runtime.findings import Code
from cluster.runtime.listeners import Signal
from cluster.runtime.service_lifecycle import Part
from raftlog.errors import DiskFullError
from statemachine.rows.kv import KVFullError

if TYPE_CHECKING:
    from cluster.config.storage_sections import RetentionSection
    from cluster.runtime.alarms import Alarms
    from raftlog.storage.files.fs import FileSystem

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 1000
RETRY_MS = 250
RESUME_POINTS = 2
"""Percentage points below `retention.disk_refuse_writes_percent` at which sends are accepted again."""
RESERVE_BYTES_MAX = 512 << 20
"""The most bytes reserved per group of brokers that has nodes on the disk. In all, at most half of the space above
`retention.disk_refuse_writes_percent` is reserved."""
OPENING_BYTES = 64 << 20
"""Bytes that a node may write at once when it is opened, because RocksDB then writes its buffers to disk."""
FULL = Code("disk_full", "critical", "raftmq retention --run")
PARKED = Code("log_waits_for_space", "critical", "df -h")
"""Keys of the alarms of this module."""


def is_full(error: BaseException) -> bool:
    """Returns True if the error means lack of space and nothing else."""
    return isinstance(error, DiskFullError | KVFullError)


def reserve_of(total_bytes: int, refuse_percent: int, groups: int = 1) -> int:
    """Returns the number of bytes of the disk that are reserved for writes other than messages. `groups`: the number of
    groups of brokers that have nodes on this disk."""
    return min(groups * RESERVE_BYTES_MAX, total_bytes * (100 - refuse_percent) // 200)


async def wait_for_space(
    fs: FileSystem,
    directory: Path,
    limits: RetentionSection,
    ended: Callable[[], bool],
    look_every_ms: int = LOOK_EVERY_MS,
) -> bool:
    """Waits until the disk has enough space to reopen a node that was closed for lack of space. Returns True then;
    returns False if `ended` returns True first. Looks at the disk every `look_every_ms` milliseconds."""
    while not ended():
        free, total = fs.free_bytes(directory), fs.total_bytes(directory)
        enough = reserve_of(total, limits.disk_refuse_writes_percent) + min(OPENING_BYTES, total // 10)
        if free >= enough:
            return True
        await asyncio.sleep(look_every_ms / 1000)
    return False


class DiskView(msgspec.Struct, frozen=True, kw_only=True):
    """The file system of the data directory, as of the last check (once a second)."""

    used_percent: float
    free_bytes: int
    total_bytes: int
    refuse_percent: int
    """The used share of the disk, in per cent, above which sends are refused."""
    refusing: bool
    parked: str
    """The reason why the log is not written now; "" if it is written."""
    refusals: int
    """The number of times that sends began to be refused since the start."""
    parkings: int
    """The number of times that the log began to wait for space since the start."""
    full_in_s: int | None = None
    """Seconds until sends are refused at the rate of the last hour; None if the usage does not grow, is already above
    `refuse_percent`, or the rate is not known yet."""
    slow_appends: int = 0
    """Appends that took longer than `log.slow_append_ms` since the start."""


class DiskSpace:
    """Watches the disk of one node: measures it, refuses sends, and resumes. Event loop only, except `reserved`."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        limits: RetentionSection,
        alarms: Alarms,
        *,
        refuse: Callable[[str], None],
        hold: Callable[[bool], None] = lambda held: None,
        slow_append_ms: int = 0,
        groups_here: Callable[[], int] = lambda: 1,
    ) -> None:
        """`refuse` receives the reason why no send may enter ("": sends may). `hold(True)` keeps the node from becoming
        leader while it cannot write. `slow_append_ms` is explained at `SlowAppends`. `groups_here` returns the number
        of groups of brokers whose nodes share the disk."""
        self._fs = fs
        self._directory = directory
        self._limit = limits.disk_refuse_writes_percent
        self._alarms = alarms
        self._refuse = refuse
        self.retry: Signal[[]] = Signal()
        """Called when the append lane should try to write again what it has put aside."""
        self._hold = hold
        self._groups_here = groups_here
        self._metrics = DiskMetrics(directory)
        self._filling = Filling(str(directory), limits, alarms)
        self._slow_appends = SlowAppends(slow_append_ms, alarms)
        self._appends = 0
        self._now_ms = 0
        self._look_ms = self._retry_ms = 0
        self._reserved = ""
        self._parked = ""
        self._refusing = False
        self._refusals = self._parkings = 0
        self._used = 0.0
        self._free = self._total = 0

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="disk",
            tick=self.tick,
            reload=lambda config: self.reload(config.retention),
            metrics=(self._metrics,),
        )

    def reload(self, limits: RetentionSection) -> None:
        """Applies new limits."""
        self._limit = limits.disk_refuse_writes_percent
        self._filling.reload(limits)
        self._look_ms = 0

    def reserved(self) -> str:
        """Returns the reason why messages may not be written now, "" if they may. Any thread."""
        return self._reserved

    @property
    def parked(self) -> str:
        """The reason why the log is not written now; "" if it is written."""
        return self._parked

    def tick(self, now_ms: int) -> None:
        """Checks the disk when that is due, and lets the append lane retry the writes for which there was no space."""
        self._now_ms = now_ms
        self._slow_appends.tick(now_ms, self._appends)
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_EVERY_MS
            self.look()
        if self._parked and now_ms >= self._retry_ms:
            self._retry_ms = now_ms + RETRY_MS
            self.retry()

    def look(self) -> None:
        """Measures the disk, then refuses or accepts sends, and raises or clears alarms. Changes nothing if the disk
        cannot be measured."""
        try:
            self._free, self._total = self._fs.free_bytes(self._directory), self._fs.total_bytes(self._directory)
        except OSError as error:
            logger.warning("the free space for %s is unknown: %s", self._directory, error)
            return
        self._used = 100.0 * (1.0 - self._free / self._total) if self._total else 100.0
        reserve = reserve_of(self._total, self._limit, self._groups_here())
        self._reserved = (
            ""
            if self._free >= reserve
            else (f"{self._free} bytes are left for {self._directory}, less than the reserve of {reserve}")
        )
        line = self._limit - RESUME_POINTS if self._refusing else self._limit
        self._set_refusing(self._used > line)
        self._filling.look(self._now_ms, self._used, refusing=self._refusing)
        self._metrics.disk(self._used / 100, refusing=self._refusing, parked=bool(self._parked))
        self._metrics.outlook(self._filling.full_in_ms)

    def on_persisted(self, persisted: Persisted) -> None:
        """Takes the result of one batch of writes by the append lane. Counts it as slow if it was. Raises the alarm
        PARKED if messages were put aside for lack of space, and clears it once all are written."""
        if persisted.bytes_written:
            self._appends += 1
            slow = self._slow_appends
            if persisted.seconds > slow.suspect_s and slow.note(persisted.seconds):
                self._metrics.slow_append.inc()
        if persisted.parked:
            if not self._parked:
                self._parkings += 1
                self._hold(True)
            self._parked = persisted.parked
            self._alarms.raise_alarm(
                PARKED,
                f"the log of this node is waiting for disk space and acknowledges nothing until then: "
                f"{persisted.parked} Free space on the disk of {self._directory}. The node retries every {RETRY_MS} ms "
                f"and resumes automatically.",
            )
        elif self._parked:
            self._parked = ""
            self._hold(False)
            self._alarms.clear(PARKED)
        else:
            return
        self.look()

    def view(self) -> DiskView:
        """Returns the state of the disk, for the node's status."""
        return DiskView(
            used_percent=round(self._used, 1),
            free_bytes=self._free,
            total_bytes=self._total,
            refuse_percent=self._limit,
            refusing=self._refusing,
            parked=self._parked,
            refusals=self._refusals,
            parkings=self._parkings,
            slow_appends=self._slow_appends.slow_total,
            full_in_s=None if self._filling.full_in_ms is None else self._filling.full_in_ms // 1000,
        )

    def _set_refusing(self, full: bool) -> None:
        if full:
            self._alarms.raise_alarm(
                FULL,
                f"the disk of {self._directory} is above retention.disk_refuse_writes_percent = {self._limit}. While "
                f"this node leads, it refuses sends (code 14); it accepts them again below "
                f"{self._limit - RESUME_POINTS} %. Free space, shorten retention.hours, or raise the limit.",
            )
        else:
            self._alarms.clear(FULL)
        if full and not self._refusing:
            self._refusals += 1
        self._refusing = full
        text = ""
        if full:
            text = (
                f"the disk is full: {self._used:.1f} per cent of {self._total} bytes used, "
                f"retention.disk_refuse_writes_percent = {self._limit}; nothing was stored, sends are taken again "
                f"below {self._limit - RESUME_POINTS}"
            )
        elif self._parked:
            text = "the disk is full: the log waits for space; nothing was stored, sends enter again when there is some"
        self._refuse(text)
