"""Installs a snapshot on a node that needs trimmed entries: the node fetches it while it keeps voting, and then
restarts.

The leader sends offers (`raftlog.messages.InstallSnapshot`, repeated as needed). The node fetches from the leader or
from any other node (snapshot_fetch.py). Once the snapshot is complete and verified, the node records that and ends, and
its process opens it again (`cluster.node.node_runs`). The opening replaces log and state with the snapshot
(`raftlog.storage.install`), unless a leader has brought the log forward to the same entry meanwhile, which is possible
up to the last moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.config.local_layout import node_object
from cluster.repair.peer_requests import Backoff, Fetches, end_task, in_executor
from cluster.repair.progress import InstallMetrics, InstallProgress
from cluster.repair.snapshot_fetch import Needless, Snapshot, SnapshotTake, Where
from cluster.runtime.context import NodeContext
from cluster.runtime.findings import Code
from raftlog.errors import RaftLogError
from raftlog.messages import InstallSnapshot
from raftlog.types import LogTail, NodeId
from statemachine.rows.kv import KVError

logger = logging.getLogger(__name__)

ALARM = Code("install_failing", "warning", "raftmq logs {n}")
ALARM_AFTER = 3
"""Failed rounds over all peers after which an alarm is raised."""
RETRY_MIN_S, RETRY_MAX_S = 0.5, 30.0
"""The shortest and the longest pause after a failed round, in seconds; it doubles each time."""


class SnapshotInstaller:
    """Fetches and installs the snapshots that one node needs. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        where: Where,
        client: Fetches,
        *,
        peers: Callable[[], list[NodeId]],
        metrics: InstallMetrics,
        progress: InstallProgress,
        restart: Callable[[str], None],
        needless: Callable[[], None] = lambda: None,
        retry_s: tuple[float, float] = (RETRY_MIN_S, RETRY_MAX_S),
    ) -> None:
        """`peers()`: the peers to ask, best first. `restart(why)` ends the node so that its process opens it again.
        `needless()` is called when an offer has led to nothing, because the leader's log continues this node's log
        after all. `retry_s`: the shortest and the longest pause after a failed round."""
        self._raw = context.raw
        self._where = where
        self._client = client
        self._blocking = in_executor(context.loop)
        self._loop = context.loop
        self._peers = peers
        self._alarms = context.alarms
        self._metrics = metrics
        self._wall_ms = context.clock.wall_ms
        self._restart = restart
        self._needless = needless
        self._offer: InstallSnapshot | None = None
        self._task: asyncio.Task[None] | None = None
        self._done = False
        self._closing = False
        self._pauses = Backoff(*retry_s)
        self.progress = progress

    def offered(self, offer: InstallSnapshot) -> None:
        """Called when the leader says that its log no longer has the next entry that this node needs. Starts to fetch a
        snapshot, unless that has begun, a snapshot is already recorded, or the node closes."""
        self._metrics.offered.inc()
        news = self._offer is None or (self._offer.term, self._offer.first_index) != (offer.term, offer.first_index)
        self._offer = offer
        # If a snapshot is already recorded, the next start uses it. A second one would be ambiguous.
        if self._closing or self._done:
            return
        if news:
            self._pauses.end()
        if self._task is None or self._task.done():
            logger.warning(
                "%s no longer has the entries after %d, which this node needs: its log begins at %d. Fetching a"
                " snapshot",
                node_object(self._where.group_id, offer.from_id),
                self._raw.last_index,
                offer.first_index,
            )
            self._task = self._loop.create_task(self._run(self._raw.tail), name="install")

    async def close(self) -> None:
        """Cancels the work in progress; copied files stay for the next attempt."""
        self._closing = True
        await end_task(self._task)

    # --- while the node runs -----------------------------------------------------------------------------------------

    async def _run(self, tail: LogTail) -> None:
        self._pauses.reset()
        rounds = 0
        try:
            while True:
                snapshot = await self._round(tail)
                # Everything is copied and checked before the one step that puts the snapshot into effect. A crash
                # before that changes nothing.
                if snapshot is not None and await self._committed(snapshot):
                    return
                rounds += 1
                if rounds >= ALARM_AFTER:
                    self._alarm(rounds)
                await self._pauses.pause()
        except Needless as why:
            logger.warning("the snapshot is no longer needed: %s", why)
            self.progress.end()
            self._alarms.clear(ALARM)
            self._needless()

    async def _round(self, tail: LogTail) -> Snapshot | None:
        """Asks every peer once for a snapshot; returns None if none supplied it. Raises Needless if none is needed any
        more."""

        def at_least() -> int:
            # If the log has changed, the leader continues it after all. Replacing it now could remove acknowledged
            # entries of this replica.
            if self._raw.tail.id != tail.id:
                raise Needless(f"the log, which ended at {tail.index}, has changed and ends at {self._raw.last_index}")
            assert self._offer is not None
            return self._offer.first_index - 1

        take = SnapshotTake(self._where, self._client, self._blocking, self.progress, at_least=at_least)
        try:
            return await take.run(self._peers())
        except (RaftLogError, KVError, OSError) as error:
            self._cannot_store(error)
            return None

    async def _committed(self, snapshot: Snapshot) -> bool:
        """Records the snapshot and ends the node; returns True if that succeeded. The log and the state of the
        running node stay as they are."""
        index, peer = snapshot.manifest.mark.index, snapshot.peer
        try:
            await self._blocking(snapshot.commit, self._where, self._wall_ms())
        except (RaftLogError, OSError) as error:
            self._cannot_store(error)
            return False
        self._alarms.clear(ALARM)
        self.progress.begin("restart", peer, snapshot.manifest.name)
        # The running node still has the old log in memory, so only a new start may open the new log.
        self._done = True
        self._restart(
            f"to go on from the snapshot of entry {index} that {node_object(self._where.group_id, peer)} gave"
        )
        return True

    def _cannot_store(self, error: Exception) -> None:
        """Reports a failure of the disk. The node continues, because its own files are unchanged."""
        self.progress.cannot_store(str(error))
        logger.error("a snapshot cannot be stored: %s", error)

    def _alarm(self, rounds: int) -> None:
        self._alarms.raise_alarm(
            ALARM,
            f"this node needs entries that the other nodes have trimmed, and {rounds} attempts to fetch a snapshot "
            f"have failed: {self.progress.last_failure or 'no other node can be reached'}. It keeps trying",
        )
