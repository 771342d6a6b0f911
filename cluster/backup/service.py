"""Makes backups of a running node: makes a checkpoint, starts a worker process for the rest, and records the result. It
makes one backup at a time.

Only the checkpoint, which is a few hard links, is made in the node itself. The worker copies, reads back and computes
checksums with idle priority for CPU and disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from cluster.backup import files
from cluster.backup.create import BackupOrder, MadeBackup
from cluster.backup.remote import STAGING, is_url, newest_ms
from cluster.backup.worker import WorkerLine
from cluster.config.config import Config
from cluster.runtime.alarms import Alarms
from cluster.runtime.awaited import told
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.findings import Code
from cluster.runtime.host.helper_process import background
from cluster.runtime.host.versions import versions
from cluster.runtime.read_leases import Leases
from cluster.runtime.service_lifecycle import Closing, Part, Starting
from cluster.tier.store.errors import StoreError
from raftlog.errors import StorageError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.identity import Identity
from raftmq_wire.errors import ExitCode, LocalError
from statemachine.rows.kv import KV
from statemachine.rows.live_copy import copy_open_store

logger = logging.getLogger(__name__)

CHECKPOINT = "backup.tmp"
"""Name of the folder in DATA/checkpoints with the checkpoint, while a backup is made. What a crash leaves there is
removed later."""
OVERDUE = Code("backup_overdue", "warning", "raftmq backup create --help", finding="backup_old")
FAILED = Code("backup_failed", "warning", "raftmq backup create --help")
WATCH_S = 5.0
"""Seconds between two checks of the schedule, and of the age of the newest good backup."""
WORKER_END_S = 5.0
"""Seconds for which a worker may remove its unfinished backup. Then it is killed."""
KILLED_S = 1.0
"""Seconds to wait for the end of a killed worker. It may not end in that time, if the operating system waits for the
target."""
LEASE, LEASE_MS = "a backup", 24 * 3_600_000
CONFIRM_S = 5.0
"""Seconds for which a backup waits at most, until its node has applied everything that was acknowledged before."""
CONFIRM_PAUSE_S = 0.1
WORKER = background("cluster.backup.worker")
LINE_MAX = 64 << 20
"""The most bytes of a line from the worker. Its last line contains the manifest, so it may be long."""


class Attempt(msgspec.Struct, kw_only=True):
    """The backup that is being made, or the last one of this node."""

    started_ms: int
    """Wall clock in ms at the start. It identifies the attempt, because no two attempts of a node have the same."""
    to: str
    state: str = "running"
    """`running`, `done` or `failed`."""
    stage: str = "catch up"
    error: list[str] | None = None
    """Three lines (what happened, why, what to type) if the attempt failed, else None."""
    path: str | None = None
    """Directory or URL of the backup; None until the attempt is done. The next six fields are set at the same time."""
    index: int | None = None
    """The index of the last log entry in the backup."""
    confirmed: bool | None = None
    """True if the backup has everything that was acknowledged before `started_ms`. False if that is not certain: no
    leader answered in time, or the node did not catch up in time."""
    bytes_total: int | None = None
    bytes_new: int | None = None
    """Number of bytes that were copied. The other files are hard links to the node's or to an earlier backup's."""
    seconds: float | None = None
    removed: list[str] = []


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of backups: their target, the seconds between two of them, and the number that is kept (None: all)."""

    to: str
    every_s: float
    keep: int | None


class BackupWaits(NamedTuple):
    """The longest times, in seconds, that a backup waits; `watch_s` is the pause between two checks of the schedule."""

    confirm_s: float = CONFIRM_S
    worker_end_s: float = WORKER_END_S
    killed_s: float = KILLED_S
    watch_s: float = WATCH_S


BACKUP_WAITS = BackupWaits()


class Backups:
    """Makes the backups of one node. Event loop only."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        kv: KV,
        alarms: Alarms,
        wall_ms: Callable[[], int],
        leases: Leases | None = None,
        confirm: Callable[[Callable[[bool], None]], None] | None = None,
        worker: Sequence[str] = WORKER,
        waits: BackupWaits = BACKUP_WAITS,
    ) -> None:
        """`leases` keeps files of the log from being removed while a backup is made; None: nothing does. `confirm`
        calls its argument with True once this node has applied everything that was acknowledged before, or with False
        if that cannot be known within a second; None: no backup counts as confirmed. `worker` is the command of the
        worker process."""
        self._worker, self._waits = worker, waits
        self._config = config
        self._leases = leases
        self._confirm = confirm
        self._identity = identity
        self._kv = kv
        self._alarms = alarms
        self._wall_ms = wall_ms
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._files = asyncio.Lock()
        """Held while a thread writes or removes the checkpoint, so that none removes what another one makes."""
        self._begun_ms = wall_ms()
        section = config.backup
        self._configured = (
            Schedule(to=section.to, every_s=section.every_minutes * 60.0, keep=section.keep) if section.to else None
        )
        self.schedule = self._configured
        """The schedule by which an overdue backup raises an alarm; None without one. It is that of the last call of
        `begin`, if that had `every_s`, else the configuration's. The node itself starts backups by the configuration's
        schedule only."""
        self.attempt: Attempt | None = None
        self.last_good_ms: int | None = None
        """Wall clock in ms when this node's newest good backup was begun; None if none is known."""

    def start(self) -> None:
        """Starts to check the schedule periodically, and to make the backups of the configuration's schedule if it has
        one."""
        self._timer = asyncio.get_running_loop().create_task(self._keep_schedule(), name="backups")

    async def close(self) -> None:
        """Cancels a backup that is being made. The worker removes its unfinished files."""
        tasks = [task for task in (self._timer, self._task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def running(self) -> bool:
        """True while a backup is being made."""
        return self._task is not None and not self._task.done()

    def part(self) -> Part:
        """Returns the functions that the node calls to start and close this service, and its metrics."""
        return Part(
            name="backups",
            start=self.start,
            starts=Starting.WORK,
            close=self.close,
            closes=Closing.WORK,
            metrics=(BackupMetrics(self),),
        )

    @property
    def age_s(self) -> float | None:
        """Seconds since this node's newest known good backup was begun; None if none is known."""
        return None if self.last_good_ms is None else max(0.0, (self._wall_ms() - self.last_good_ms) / 1000)

    def begin(
        self, to: str, *, keep: int | None = None, copy_all: bool = False, every_s: float | None = None
    ) -> Attempt:
        """Starts a backup to `to`, a directory or a URL. Returns its Attempt, which then shows the progress. Raises
        LocalError if a backup is being made already.

        `keep` is the number of backups to keep; None keeps all. `every_s` is the number of seconds after which the
        caller will ask for the next backup. An alarm is raised if no backup succeeds in twice that time. Without
        `every_s`, only the configuration's schedule is watched.
        """
        if self.running:
            assert self.attempt is not None
            raise LocalError(
                "a backup is being made",
                f"to {self.attempt.to}, since {self.attempt.started_ms} ms",
                "wait for it to end, then repeat the command",
                ExitCode.REFUSED,
            )
        self.schedule = Schedule(to=to, every_s=every_s, keep=keep) if every_s is not None else self._configured
        last = self.attempt.started_ms if self.attempt else 0
        self.attempt = Attempt(started_ms=max(self._wall_ms(), last + 1), to=to)
        request = BackupOrder(
            data=self._config.node.data_dir,
            checkpoint=str(self._checkpoint),
            to=to,
            made_ms=self.attempt.started_ms,
            cluster_name=self._config.cluster.name,
            broker_name=self._config.cluster.broker_name,
            keep=keep,
            copy_all=copy_all,
            versions=versions(),
            store=self._config.tier if is_url(to) else None,
        )
        self._task = asyncio.get_running_loop().create_task(self._run(request, self.attempt), name="backup")
        return self.attempt

    @property
    def _checkpoint(self) -> Path:
        return Path(self._config.node.data_dir) / layout.CHECKPOINTS / CHECKPOINT

    async def _run(self, request: BackupOrder, attempt: Attempt) -> None:
        if self._leases is not None:
            self._leases.touch(LEASE, 0, LEASE_MS)
        try:
            confirmed = await self._is_confirmed()
            attempt.stage = "checkpoint"
            await self._on_a_thread(self._make_checkpoint)
            made = await self._work(request, attempt)
        except LocalError as error:
            logger.error("backup to %s failed: %s; %s; %s", attempt.to, error.what, error.why, error.fix)
            self._failed(attempt, error)
        except asyncio.CancelledError:
            attempt.state = "failed"
            attempt.error = [
                "the backup was given up",
                "the node is stopping",
                f"raftmq backup create --to {request.to}",
            ]
            raise
        except Exception as error:  # callers wait until the attempt has ended
            logger.exception("a defect ended the backup to %s", attempt.to)
            again = f"raftmq backup create --to {request.to}    (again; raftmq logs shows where it happened)"
            self._failed(attempt, LocalError("a defect ended the backup", f"{type(error).__name__}: {error}", again))
        else:
            attempt.confirmed = confirmed
            self._done(attempt, made)
        finally:
            if self._leases is not None:
                self._leases.release(LEASE)
            with contextlib.suppress(RuntimeError):  # the loop is ending; a later start or backup removes the folder
                await self._on_a_thread(self._remove_checkpoint)
        self._watch()

    def _failed(self, attempt: Attempt, error: LocalError) -> None:
        attempt.state, attempt.error = "failed", [error.what, error.why, error.fix]
        self._alarms.raise_alarm(FAILED, f"the last backup to {attempt.to} failed: {error.what}; {error.fix}")

    def _done(self, attempt: Attempt, made: MadeBackup) -> None:
        manifest = made.manifest
        attempt.state, attempt.path, attempt.index = "done", made.path, manifest.index
        attempt.bytes_total, attempt.bytes_new, attempt.removed = manifest.bytes_total, manifest.bytes_new, made.removed
        attempt.seconds = (self._wall_ms() - attempt.started_ms) / 1000
        self.last_good_ms = attempt.started_ms
        self._alarms.clear(FAILED)
        logger.info(
            "backup %s made and read back in %.1f s: index %d, %d bytes, %d of them copied",
            made.path,
            attempt.seconds,
            manifest.index,
            manifest.bytes_total,
            manifest.bytes_new,
        )

    async def _is_confirmed(self) -> bool:
        """Waits until this node has applied everything that was acknowledged before, and returns True. Returns False
        after `confirm_s` seconds without success, for example if there is no leader, and at once without a `confirm`.
        The backup is made all the same: without a leader, it is needed most."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self._waits.confirm_s
        while self._confirm is not None and loop.time() < ends_s:
            if await told(self._confirm):
                return True
            await asyncio.sleep(CONFIRM_PAUSE_S)
        return False

    async def _on_a_thread(self, work: Callable[[], None]) -> None:
        """Runs `work`, which makes or removes the checkpoint, on a thread, after all such calls before it. If the task
        is cancelled, waits until a `work` that has begun has ended, so that it cannot disturb the next backup."""
        async with self._files:
            done = asyncio.get_running_loop().run_in_executor(None, work)
            try:
                await asyncio.shield(done)
            except asyncio.CancelledError:
                await asyncio.wait([done])
                raise

    def _make_checkpoint(self) -> None:
        """Makes the checkpoint of the state. It blocks, so it is called on an executor's thread. Raises LocalError."""
        try:
            self._remove_checkpoint()
            self._checkpoint.parent.mkdir(exist_ok=True)
            state = Path(self._config.node.data_dir) / layout.STATE
            copy_open_store(OsFileSystem(), self._kv, state, self._checkpoint)
        except (OSError, StorageError) as error:
            raise LocalError(
                "no checkpoint of the state could be made",
                str(error),
                "the same command with another --node    (and free space on this node's disk)",
            ) from error

    def _remove_checkpoint(self) -> None:
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        shutil.rmtree(self._checkpoint.with_name(STAGING), ignore_errors=True)

    async def _work(self, request: BackupOrder, attempt: Attempt) -> MadeBackup:
        """Starts the worker process, updates `attempt.stage`, and returns the worker's result. Raises LocalError."""
        try:
            worker = await asyncio.create_subprocess_exec(
                *self._worker,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_MAX,
            )
        except OSError as error:
            raise LocalError(
                "the process that makes the backup could not be started",
                str(error),
                f"raftmq backup create --to {request.to}    (again, when this machine has memory to spare)",
            ) from error
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(msgspec.json.encode(request) + b"\n")
            while data := await worker.stdout.readline():
                line = msgspec.json.decode(data, type=WorkerLine)
                if line.made is not None:
                    return line.made
                if line.error is not None:
                    raise LocalError(line.error.what, line.error.why, line.error.fix)
                attempt.stage = line.stage
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                worker.terminate()  # the worker removes its files on SIGTERM
            raise
        finally:
            worker.stdin.close()  # the end of stdin ends the worker
            await _ended(worker, self._waits)
        raise LocalError(
            "the process that makes the backup ended without a word",
            f"exit code {worker.returncode}; it may have been killed for lack of memory",
            f"raftmq backup create --to {request.to}    (again; raftmq logs shows its output)",
        )

    # --- schedule ----------------------------------------------------------------------------------------------------

    async def _keep_schedule(self) -> None:
        await self._on_a_thread(self._remove_checkpoint)
        scheduled, next_ms = self._configured, 0.0  # not `self.schedule`, which a request may have changed already
        if scheduled is not None and (found_ms := await self._newest(scheduled.to)) is not None:
            self.last_good_ms = max(found_ms, self.last_good_ms or 0)  # a requested backup may be complete by now
            next_ms = found_ms + scheduled.every_s * 1000
        while True:
            if scheduled is not None and self._wall_ms() >= next_ms and not self.running:
                next_ms = self._wall_ms() + scheduled.every_s * 1000
                self.begin(scheduled.to, keep=scheduled.keep)
            self._watch()
            await asyncio.sleep(self._waits.watch_s)

    async def _newest(self, to: str) -> int | None:
        if not is_url(to):
            return await asyncio.get_running_loop().run_in_executor(None, self._newest_in, to)
        cluster, node = str(self._identity.cluster_uuid), self._identity.node_id
        try:
            return await newest_ms(to, self._config.tier, cluster, node)
        except (StoreError, LocalError) as error:
            logger.warning("the backups at %s cannot be listed: %s", to, error)
            return None

    def _newest_in(self, to: str) -> int | None:
        try:
            found = files.newest(Path(to), str(self._identity.cluster_uuid), self._identity.node_id)
        except (OSError, LocalError) as error:
            logger.warning("the backups in %s cannot be listed: %s", to, error)
            return None
        return None if found is None else found.made_ms

    def _watch(self) -> None:
        """Raises an alarm if the newest good backup is older than twice the schedule's interval, and clears it
        otherwise. If no good backup is known, the age counts from the start of this service."""
        if self.schedule is None:
            self._alarms.clear(OVERDUE)
            return
        age_s = (self._wall_ms() - (self.last_good_ms or self._begun_ms)) / 1000
        if age_s <= 2 * self.schedule.every_s:
            self._alarms.clear(OVERDUE)
            return
        since = "no good backup is known" if self.last_good_ms is None else "the last good backup is too old"
        self._alarms.raise_alarm(
            OVERDUE,
            f"{since}: a backup is due every {self.schedule.every_s:.0f} s in {self.schedule.to}; "
            f"raftmq backup create --to {self.schedule.to}",
        )


class BackupMetrics(ServiceMetrics):
    """The gauge with the age of the newest backup."""

    def __init__(self, backups: Backups) -> None:
        super().__init__()
        self._backups = backups
        self._age = self.gauge(
            "raftmq_backup_age_seconds",
            "Age of the newest good backup of this node that it knows of; NaN if there is none",
        )

    def look(self) -> None:
        """Sets the gauge to the age in seconds; NaN if no good backup is known."""
        age_s = self._backups.age_s
        self._age.set(math.nan if age_s is None else age_s)


async def _ended(worker: asyncio.subprocess.Process, waits: BackupWaits) -> None:
    """Waits a limited time for the end of the worker, and then kills it. If the target hangs, the worker does too, but
    the node must not."""
    if await _ends_within(worker, waits.worker_end_s):
        return
    logger.warning(
        "process %d, which made a backup, takes more than %.0f s to end and is killed: the backup target hangs, or "
        "this machine has no CPU time left for it",
        worker.pid,
        waits.worker_end_s,
    )
    with contextlib.suppress(ProcessLookupError):
        worker.kill()
    await _ends_within(worker, waits.killed_s)


async def _ends_within(worker: asyncio.subprocess.Process, seconds: float) -> bool:
    """Returns True if the worker ends within that many seconds. `asyncio.timeout` is not used here, because it raises
    no TimeoutError in a task that is being cancelled (Python 3.11.2)."""
    waiting = asyncio.ensure_future(worker.wait())
    ended, _ = await asyncio.wait([waiting], timeout=seconds)
    waiting.cancel()
    return bool(ended)
