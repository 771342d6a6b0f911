"""Fetches one snapshot from any peer: its newest checkpoint, and a part of its log. That part begins with the segment
file that holds the checkpoint's last entry, and ends with that entry.

It does not touch the node's current log and state. The copy is in `checkpoints/install.tmp` and `install/log` and
survives a crash: the next attempt continues with the files of the same checkpoint and the frames of the same log. The
chain of frames verifies the log: every frame names the frame before it, and the last frame is the entry that the
checkpoint names. No later entry is fetched, because only entries up to that one are known as committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cluster.config.local_layout import node_object
from cluster.repair.checkpoint_copy import CheckpointCopy, CountRows
from cluster.repair.fetch import STATE, FetchError
from cluster.repair.log_source import ask_place
from cluster.repair.peer_requests import Blocking, Fetches, ask, fill
from cluster.repair.progress import InstallProgress
from cluster.state.checkpoints import INSTALLING, Checkpoints
from cluster.state.manifest import CheckpointManifest
from raftlog.errors import FrameError, StorageError
from raftlog.storage.files.fs import FileSystem
from raftlog.storage.log_build import LogBuild
from raftlog.types import NOBODY, LogTail, NodeId
from statemachine.broker_state import AppliedMark
from statemachine.rows.kv import KVError

logger = logging.getLogger(__name__)

LIST_MS = 5000
FREE_SHARE = 20
"""A snapshot must leave at least one part in this many of the disk free."""


class Where(NamedTuple):
    """The directory that needs a snapshot, and the means to access it."""

    fs: FileSystem
    path: Path
    """The node's data directory."""
    group_id: int
    count_rows: CountRows


class Snapshot(NamedTuple):
    """A snapshot that is complete and verified, but not in use yet."""

    manifest: CheckpointManifest
    build: LogBuild
    peer: NodeId

    def commit(self, where: Where, now_ms: int) -> None:
        """Records the snapshot, so that the next opening of the directory puts it in place (`raftlog.storage.install`).
        Raises StorageError, OSError."""
        mark, first = self.manifest.mark, self.build.previous.index + 1
        giver = node_object(where.group_id, self.peer)
        note = f"checkpoint {self.manifest.name} was fetched from {giver}, with the log from entry {first} on"
        checkpoints = Checkpoints(where.fs, where.path, where.group_id)
        checkpoints.adopt(checkpoints.path / INSTALLING, self.manifest._replace(peer=self.peer, note=note))
        self.build.commit(self.manifest.name, mark.index, mark.header_crc, now_ms)


class Needless(Exception):
    """Raised when the snapshot is not needed any more."""


class SnapshotTake:
    """Fetches a snapshot into a node's directory. Only one fetch per directory may run at a time."""

    def __init__(
        self,
        where: Where,
        client: Fetches,
        blocking: Blocking,
        progress: InstallProgress,
        *,
        at_least: Callable[[], int],
    ) -> None:
        """`at_least()` returns the lowest index that a checkpoint must have to be of use at present; raises Needless if
        no checkpoint is."""
        self._where = where
        self._client = client
        self._blocking = blocking
        self._progress = progress
        self._at_least = at_least
        checkpoints = Checkpoints(where.fs, where.path, where.group_id)
        folder = checkpoints.path / INSTALLING
        self._copy = CheckpointCopy(where.fs, where.count_rows, folder, where.group_id, client, blocking, self._came)
        self._mark: AppliedMark | None = None
        self.failures: dict[NodeId, str] = {}
        """Peer -> the reason why its snapshot was not used."""

    async def run(self, peers: Sequence[NodeId]) -> Snapshot | None:
        """Returns the first snapshot of `peers` that passes all checks; None if there is none. Raises Needless, and
        OSError or StorageError if this disk fails."""
        self._progress.attempt()
        begun = await self._blocking(self._copy.begun)
        giver = begun.peer if begun is not None else NOBODY
        for peer in sorted(peers, key=lambda peer: peer != giver):
            try:
                return await self._from(peer, peers, begun.name if begun is not None and peer == giver else "")
            except StorageError as error:
                # If this node's disk has failed, asking another peer would not help.
                if not isinstance(error, FrameError):
                    raise
                self._failed(peer, error)
            except (FetchError, FrameError, KVError, ValueError, TypeError, LookupError) as error:
                self._failed(peer, error)
        return None

    def _failed(self, peer: NodeId, error: Exception) -> None:
        self.failures[peer] = str(error)
        self._progress.failed(peer, str(error))
        logger.warning("no snapshot could be fetched from %s: %s", node_object(self._where.group_id, peer), error)

    async def _from(self, peer: NodeId, peers: Sequence[NodeId], begun: str) -> Snapshot:
        name = await self._choose(peer, begun)
        manifest = await self._copy.manifest(peer, name)
        # If the checkpoint is older than the beginning of the leader's log, the leader could not continue the log after
        # it.
        if manifest.mark.index < self._at_least():
            raise ValueError(f"checkpoint {name} of {node_object(self._where.group_id, peer)} is too old")
        self._mark = manifest.mark
        await self._blocking(self._check_space, manifest)
        self._progress.begin("state", peer, name, manifest.size)
        await self._copy.run(peer, manifest)
        build = await self._log(peer, peers, manifest.mark)
        return Snapshot(manifest, build, peer)

    def _check_space(self, manifest: CheckpointManifest) -> None:
        """Raises StorageError if the copy would take space that this node's log needs."""
        fs, path = self._where.fs, self._where.path
        free, kept = fs.free_bytes(path), fs.total_bytes(path) // FREE_SHARE
        missing = manifest.size - self._copy.bytes_there()
        # The log has priority: a snapshot that filled the disk would stop the node.
        if free - missing < kept:
            raise StorageError(
                f"{path}: the snapshot of entry {manifest.mark.index} takes {missing} bytes more and one segment; "
                f"{free} are free, of which {kept} are kept for the log.\nMake room on that disk"
            )

    async def _choose(self, peer: NodeId, begun: str) -> str:
        """Returns the name of the checkpoint to fetch: the one that is already here in part (`begun`), if it is new
        enough; else the peer's newest. A peer whose newest is too old makes another one first. Raises ValueError if
        even that is too old."""
        least = self._at_least()
        rows = (await ask(self._client, peer, STATE, ["list", least], LIST_MS)).fields
        there = {str(name): int(index) for name, index, *_ in rows}
        newest = max(there, key=lambda name: there[name], default="")
        name = begun if there.get(begun, -1) >= least else newest
        if there.get(name, -1) < least:
            giver = node_object(self._where.group_id, peer)
            raise ValueError(f"the newest checkpoint of {giver} is {newest or 'none'}, {least} or more is needed")
        return name

    def _came(self, size: int) -> None:
        """Counts arrived bytes. Raises Needless if the snapshot is no longer needed, and FrameError if it has become
        too old to be of use."""
        self._progress.came(size)
        if self._mark is not None and self._mark.index < self._at_least():
            raise FrameError(f"the checkpoint of entry {self._mark.index} has become too old meanwhile")

    # --- the log -----------------------------------------------------------------------------------------------------

    async def _log(self, first: NodeId, peers: Sequence[NodeId], mark: AppliedMark) -> LogBuild:
        """Fetches the log from the peer that supplied the checkpoint, else from another one: committed entries have one
        history."""
        for peer in (first, *(peer for peer in peers if peer != first)):
            try:
                return await self._log_from(peer, mark)
            except (FetchError, FrameError) as error:
                self._failed(peer, error)
        raise FrameError(f"no node gives the log up to entry {mark.index}")

    async def _log_from(self, peer: NodeId, mark: AppliedMark) -> LogBuild:
        end = mark.end_position
        place = await ask_place(self._client, peer, end - 1)
        build: LogBuild = await self._blocking(self._begin, place.previous, end)
        missing, total = end - build.next_position, end - place.previous.end_position
        self._progress.begin("log", peer, f"entries up to {mark.index}", total, total - missing)
        try:
            await fill(self._client, peer, build, end, self._blocking, self._came)
            # State and log must belong to one history. The CRC chain proves it, even if they come from different peers.
            if (build.tail.index, build.tail.header_crc) != (mark.index, mark.header_crc):
                giver = node_object(self._where.group_id, peer)
                raise FrameError(f"the log of {giver} does not lead to the entry {mark.index} of the checkpoint")
        except BaseException:
            await self._blocking(build.close)
            raise
        return build

    def _begin(self, previous: LogTail, end: int) -> LogBuild:
        """Continues the staged log of an earlier attempt if it begins at the same segment file and does not reach
        beyond `end`; otherwise begins a new one."""
        where = self._where
        build = LogBuild.resume(where.fs, where.path, where.group_id)
        if build is not None:
            # Any other staged log is discarded: continued, it could contain bytes of two different logs.
            if build.previous == previous and build.next_position <= end:
                return build
            build.discard()
        return LogBuild.begin(where.fs, where.path, where.group_id, previous)
