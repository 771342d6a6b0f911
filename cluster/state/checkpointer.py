"""Syncs the state (RocksDB), records the synced index in DATA/RUN, and makes checkpoints, without delaying apply.

None of this is needed for correctness; it only shortens the next start. The order matters: rows are on disk before RUN
names their index, and a checkpoint is complete before RUN names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import CHECKPOINT_BYTES, CHECKPOINT_EVERY_MS
from cluster.runtime.findings import Code
from cluster.runtime.lanes import NeverIdle
from cluster.state.checkpoints import Checkpoints, mark_of
from cluster.state.table_checksums import Tables
from raftlog.errors import OutOfSpaceError, StorageError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem
from raftlog.storage.files.run_file import Run, RunFile, RunState
from raftlog.types import FIRST_GROUP
from statemachine.broker_state import AppliedMark
from statemachine.rows.kv import KV, KVCorruptError, KVError
from statemachine.rows.live_copy import CheckpointBusyError

logger = logging.getLogger(__name__)

HELD_MS = 60_000
"""Milliseconds for which a checkpoint is kept after a peer last read from it."""
AGAIN_MS = 10_000
"""Milliseconds after a failed attempt during which growth of the log alone leads to no other attempt, because each
attempt flushes all tables."""
ALARM = Code("checkpoint_failed", "warning", "raftmq logs {n}")


def head_start_ms(group_id: int, every_ms: int) -> int:
    """Returns the milliseconds by which the first checkpoint comes early. Nodes of several groups may share a disk and
    start together. Steps of 0.618 of the interval (the golden ratio) spread their checkpoints over it, however many
    they are."""
    return (group_id - FIRST_GROUP) * 618 % 1000 * every_ms // 1000


class Checkpointer(NeverIdle):
    """The worker that syncs the state and makes checkpoints, on a thread of its own (a lane, see
    `cluster.runtime.lanes`). Its jobs carry no content: each only signals that there may be work, and one pass does the
    work for all queued jobs. An exception on the thread stops the node."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        group_id: int,
        kv: KV,
        run_file: RunFile,
        run: Run,
        alarms: Alarms,
        *,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        checkpoint_every_ms: int = CHECKPOINT_EVERY_MS,
    ) -> None:
        """`run` describes this run of the node, as RUN should record it; the newest checkpoint is looked up."""
        self._kv = kv
        self._run_file = run_file
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        self._bytes, self._every_ms = checkpoint_bytes, checkpoint_every_ms
        self._alarms = alarms
        self._tables = Tables(fs, directory / layout.STATE, group_id)
        self.checkpoints = Checkpoints(fs, directory, group_id)
        newest = next(iter(self.checkpoints.all()), None)
        self._newest = newest.manifest.mark if newest else AppliedMark(0, -1, 0, 0, 0)
        self._tried_ms = monotonic_ms() - head_start_ms(group_id, checkpoint_every_ms)
        self._has_failed = False
        """True if the last attempt to make a checkpoint failed."""
        self._held_until_ms: dict[str, int] = {}
        self.run = run._replace(checkpoint_index=self._newest.index)
        """The contents of RUN now. It is replaced as a whole, so any thread may read it."""
        self.frozen = False
        """True once the rows are known to be wrong: no checkpoint is made of them."""
        self.wanted = False
        """True if a checkpoint was asked for although none is due; False again after the attempt."""
        kv.flush_wal()
        self._run_file.write(self.run)

    def drain(self, batch: Sequence[object]) -> None:
        """Syncs the state, then makes a checkpoint if one is due."""
        self.sync()
        if self._has_grown() or self.due:
            self._tried_ms = self._monotonic_ms()
            self._has_failed = True
            try:
                self.checkpoint()
            finally:
                self.wanted = False

    def _has_grown(self) -> bool:
        """Returns True if the log has grown enough since the newest checkpoint, and no attempt has just failed."""
        if self._has_failed and self._monotonic_ms() - self._tried_ms < AGAIN_MS:
            return False
        return mark_of(self._kv).end_position - self._newest.end_position >= self._bytes

    @property
    def due(self) -> bool:
        """True if entries were applied since the newest checkpoint and the interval is over, or if a checkpoint was
        asked for. Any thread."""
        if self.wanted:
            return True
        waited = self._monotonic_ms() - self._tried_ms
        return waited >= self._every_ms and self.run.synced_index > self._newest.index

    def want_checkpoint(self) -> None:
        """Makes the next drain make a checkpoint even if none is due. Any thread."""
        self.wanted = True

    def freeze(self) -> None:
        """Stops the making of checkpoints, because the rows are known to be wrong. Any thread."""
        self.frozen = True

    def sync(self) -> None:
        """Syncs the rows, then writes RUN, then the list of tables. Raises StorageError if RUN cannot be written."""
        mark = mark_of(self._kv)
        try:
            self._kv.flush_wal()
        except KVCorruptError:
            raise
        except KVError as error:
            logger.warning("the state could not be synced, so a restart would replay more: %s", error)
            return
        # RUN is written after the rows are on disk. Otherwise a restart would trust rows that a power loss took.
        if mark.index > self.run.synced_index:
            now = self._wall_ms()
            self._write(
                self.run._replace(
                    synced_index=mark.index,
                    synced_term=mark.term,
                    synced_header_crc=mark.header_crc,
                    log_flushed_ms=now,
                    queues_flushed_ms=now,
                    index_flushed_ms=now,
                )
            )
        try:
            self._tables.refresh(self._kv)
        except OSError as error:
            logger.warning("the list of table files could not be written: %s", error)

    def checkpoint(self) -> None:
        """Makes a checkpoint and removes the oldest, unless `frozen`. A failure loses nothing; an alarm states the
        reason."""
        # If frozen, the rows are known to be wrong. They would spread into the next start, and to every peer that
        # fetches this checkpoint.
        if self.frozen:
            return
        try:
            made = self.checkpoints.make(self._kv, self._tables.crcs, self._wall_ms())
            self.checkpoints.prune(self._held())
        except KVCorruptError:
            raise
        # The log still holds what the older checkpoint lacks, so this costs time at the next start and nothing else.
        except (CheckpointBusyError, StorageError, OSError) as error:
            self._alarm(f"no checkpoint of the state could be made: {error}")
            return
        self._newest, self._has_failed = made.manifest.mark, False
        self._write(self.run._replace(checkpoint_index=self._newest.index))
        self._alarms.clear(ALARM)
        logger.info("checkpoint %s made, %d bytes", made.path.name, made.manifest.size)

    def hold(self, name: str) -> None:
        """Keeps the checkpoint `name` for HELD_MS, because a peer reads from it. Any thread."""
        self._held_until_ms[name] = self._monotonic_ms() + HELD_MS

    def _held(self) -> list[str]:
        now = self._monotonic_ms()
        for name in [name for name, until_ms in self._held_until_ms.copy().items() if until_ms <= now]:
            del self._held_until_ms[name]
        return list(self._held_until_ms)

    def stop(self) -> None:
        """Syncs at the end of an orderly stop, and makes a checkpoint if entries were applied since the newest one.
        Nothing is applied afterwards."""
        self.sync()
        if mark_of(self._kv).index > self._newest.index:
            self.checkpoint()

    def write_stopped(self) -> None:
        """Records in RUN that the stop was orderly. Called when everything else is closed."""
        self._write(self.run._replace(state=RunState.STOPPED))

    def _write(self, run: Run) -> None:
        self.run = run
        try:
            self._run_file.write(run)
        except OutOfSpaceError as error:
            logger.warning("RUN is not up to date, so a restart would check more: %s", error)

    def _alarm(self, text: str) -> None:
        self._alarms.raise_alarm(ALARM, text + "; a restart replays from an older one. Check the disk: raftmq fsck")
