"""Handles a node's snapshot installs: serves those of other nodes, performs its own, and fetches older segments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from cluster.repair.backfill import Backfill
from cluster.repair.fetch import LOG, STATE
from cluster.repair.log_source import SEGMENT, log_source, segment_source, state_source
from cluster.repair.progress import InstallMetrics, InstallProgress, InstallView
from cluster.repair.repair_service import Repairs
from cluster.repair.snapshot_fetch import Where
from cluster.repair.snapshot_install import SnapshotInstaller
from cluster.runtime.context import NodeContext
from cluster.runtime.read_leases import Leases
from cluster.runtime.service_lifecycle import Part
from cluster.state.node_storage import NodeStorage
from raftlog.errors import OutOfRangeError
from raftlog.messages import InstallSnapshot
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem

logger = logging.getLogger(__name__)

HELD_MS = 60_000
"""Milliseconds for which a part of the log is kept for a peer after each of its requests."""


class InstallService:
    """All parts of installs on one node. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        repairs: Repairs,
        leases: Leases,
        *,
        restart: Callable[[str], None],
    ) -> None:
        """`restart(why)` ends the node so that its process opens it again."""
        raw, directory, fs = context.raw, storage.directory, context.fs
        self._log = log = directory.log
        self._leases = leases
        self._loop = context.loop
        self._storage = storage
        self._fs = fs
        self._metrics = metrics = InstallMetrics()
        self.progress = progress = InstallProgress(metrics, context.loop.time, directory.identity.group_id)
        where = Where(fs, directory.path, directory.identity.group_id, context.environment.count_rows)
        self._service = SnapshotInstaller(
            context,
            where,
            repairs.client,
            peers=repairs.peers,
            metrics=metrics,
            progress=progress,
            restart=restart,
            needless=lambda: self._backfill.go_on(),
        )
        self._removal: asyncio.Future[None] | None = None
        self._backfill = Backfill(
            context,
            log,
            directory.path,
            repairs.client,
            trim_position=lambda: storage.state.trim_position,
            applied=lambda: storage.state.applied.index,
            peers=repairs.givers,
            metrics=metrics,
            progress=progress,
        )
        repairs.server.sources.update(
            {
                LOG: log_source(log, lambda: raw.commit_index, self._hold_log),
                STATE: state_source(fs, storage.checkpointer, self._hold_log),
                SEGMENT: segment_source(log),
            }
        )

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="installs",
            start=self.start,
            close=self.close,
            metrics=(self._metrics,),
        )

    def start(self) -> None:
        """Begins the backfill if it is needed. Called before the driver starts, because a node that lacks a part of the
        log must not campaign."""
        installed = self._storage.directory.installed
        if installed is not None:
            logger.warning("the last run fetched a snapshot: %s", installed.why)
        # If the node was opened with the snapshot, the replaced log may go. Before that, it was the only log.
        if installed is not None and installed.done:
            self._metrics.installed.inc()
            names = [installed.set_aside, self._storage.recovery.state_set_aside]
            self._removal = self._loop.run_in_executor(
                None, remove_leftovers, self._fs, self._storage.directory.path, names
            )
        self._backfill.start()

    def offered(self, offer: InstallSnapshot) -> None:
        """Called when the leader offers a snapshot (see SnapshotInstaller). Stops the backfill, because the log that it
        completes is about to be replaced. The backfill continues if the offer leads to nothing."""
        # The log that the backfill completes is about to be replaced, and its space on disk is needed.
        self._backfill.stop()
        self._service.offered(offer)

    @property
    def missing_bytes(self) -> int:
        """The bytes of log that other nodes have and this node lacks."""
        return self._backfill.missing

    def log_begins(self) -> int:
        """Returns the position below which this node lacks log that other nodes have; 0 if it lacks nothing."""
        # Below this position the node must not answer "not found", because other nodes have the messages.
        return self._log.first_position if self._backfill.missing else 0

    def view(self) -> InstallView:
        """Returns the progress of the install, for the node's status."""
        return self.progress.view()

    async def close(self) -> None:
        """Cancels the work in progress; the next start continues it."""
        await self._service.close()
        await self._backfill.close()

    def _hold_log(self, position: int) -> None:
        """Leases the segment file that contains `position` to the peers that read it. Each file has a lease of its own,
        because peers read at different positions. May be called in any thread."""
        try:
            base = self._log.segment_at(position).previous.end_position
        # If the segment was trimmed at this moment, the read itself fails, which tells the peer so.
        except OutOfRangeError:
            return
        self._leases.touch(f"a peer reads the segment at {base}", base, HELD_MS)


# Removes log and state that a snapshot has replaced: they are in trash/ and are never needed again.
#
# Everything below the snapshot is committed and on the nodes that supplied it; everything else was never committed. If
# they stayed, the disk could fill up, because it would have the log twice. The reports in trash/ stay.


def remove_leftovers(fs: FileSystem, directory: Path, names: Iterable[str]) -> None:
    """Removes each of these names that exists in trash/; `directory` is DATA. Blocking. Files that cannot be removed
    stay."""
    for name in names:
        path = directory / layout.TRASH / name.rpartition("/")[2]
        try:
            if name and fs.exists(path):
                fs.remove_tree(path)
                logger.info("%s is removed: a snapshot has replaced it", path)
        except OSError as error:
            logger.warning("%s cannot be removed: %s", path, error)
