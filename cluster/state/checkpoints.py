"""Keeps DATA/checkpoints: the newest two copies of the state. A start uses one if the state itself is unusable.

A copy is made under `next.tmp`, and its manifest is written last. Then the directory gets its final name, so a
directory with such a name is complete. The tables of a checkpoint are hard links to those of the state, so a rotten
block is rotten in both. A checkpoint is therefore used only after the CRC of each of its files was compared; the older
checkpoint may be sound where the newer is not.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple, cast

from cluster.runtime.environment import Rows
from cluster.state import manifest as manifests
from cluster.state.manifest import CheckpointFile, CheckpointManifest
from cluster.state.table_checksums import Crcs, file_crc
from raftlog.storage.files import layout
from raftlog.storage.files.fs import ZERO_CHUNK, FileSystem, read_file, storage_error, write_file
from statemachine.broker_state import NOTHING_APPLIED, AppliedMark
from statemachine.rows import meta_keys, running_digest
from statemachine.rows.kv import KV, META, TABLE_SUFFIX
from statemachine.rows.live_copy import CheckpointBusyError, copy_database
from statemachine.rows.row_format import level_in

logger = logging.getLogger(__name__)

NEXT, FETCHED, REMOVED = "next.tmp", "fetched.tmp", "removed.tmp"
"""Names of directories that are being made, fetched or removed. Their contents count as incomplete."""
INSTALLING = "install.tmp"
"""Name of the directory of a checkpoint that is fetched while the node runs (cluster/repair), perhaps over several
starts. This module never removes it."""
KEPT = 2
_TRIES = 3


def stored_sums(rows: Rows) -> dict[str, int]:
    """Returns the digest sums that the state keeps, as of its applied index; {} if it keeps none."""
    index = mark_of(rows).index
    return (
        dict(running_digest.load(cast("KV", rows), index) or {}) if index >= 0 else {}
    )  # only `get` is called on the rows


def mark_of(kv: Rows) -> AppliedMark:
    """Returns the mark of the last entry that the store has applied."""
    row = kv.get(META, meta_keys.APPLIED_KEY)
    return NOTHING_APPLIED if row is None else AppliedMark(*meta_keys.APPLIED.unpack(row))


class Checkpoint(NamedTuple):
    """A directory with a sound manifest. Its files match the manifest once `problems` has found none."""

    path: Path
    manifest: CheckpointManifest


class Checkpoints:
    """The checkpoints of one data directory. One thread makes them; any thread may list, verify and read them."""

    def __init__(self, fs: FileSystem, directory: Path, group_id: int) -> None:
        """`directory` is DATA."""
        self._fs = fs
        self._group_id = group_id
        self._state = directory / layout.STATE
        self.path = directory / layout.CHECKPOINTS

    def names(self) -> list[str]:
        """Returns the names of all checkpoints, sound or not, newest first."""
        names = self._fs.listdir(self.path) if self._fs.exists(self.path) else []
        return sorted(filter(manifests.is_name, names), reverse=True)

    def load(self, name: str) -> Checkpoint | None:
        """Returns the checkpoint of this name. Returns None if its manifest is missing or damaged, or is that of
        another checkpoint. Raises OSError."""
        path = self.path / name
        if not self._fs.exists(path / manifests.FILE):
            return None
        found = manifests.decode(read_file(self._fs, path / manifests.FILE), self._group_id, path / manifests.FILE)
        return Checkpoint(path, found) if found is not None and found.name == name else None

    def all(self) -> list[Checkpoint]:
        """Returns the checkpoints with a sound manifest, newest first."""
        return [one for one in map(self.load, self.names()) if one is not None]

    def problems(self, checkpoint: Checkpoint) -> Iterator[tuple[Path, str]]:
        """Reads all of a checkpoint and yields (file, damage found). Raises OSError if the disk fails."""
        wanted = {file.name for file in checkpoint.manifest.files} | {manifests.FILE}
        names = set(self._fs.listdir(checkpoint.path))
        for name in sorted(wanted - names):
            yield checkpoint.path / name, "is missing"
        for name in sorted(names - wanted):
            yield checkpoint.path / name, "is not in the manifest"
        for file in checkpoint.manifest.files:
            if file.name in names and file_crc(self._fs, checkpoint.path / file.name) != (file.size, file.crc32c):
                yield checkpoint.path / file.name, "does not have the size and CRC in the manifest"

    # --- making ------------------------------------------------------------------------------------------------------

    def make(self, kv: KV, tables: Crcs, now_ms: int) -> Checkpoint:
        """Makes a checkpoint of the open store. Raises CheckpointBusyError, KVError or StorageError; there is then no
        new checkpoint."""
        try:
            return self._make(kv, tables, now_ms)
        except OSError as error:
            self._remove(self.path / NEXT)
            raise storage_error(self._fs, "making a checkpoint in", self.path, error) from error

    def _make(self, kv: KV, tables: Crcs, now_ms: int) -> Checkpoint:
        self._fs.mkdir(self.path)
        copy = self.path / NEXT
        mark, summed = self._copy(kv, copy)
        files = []
        for name in self._fs.listdir(copy):
            size, crc = tables[name] if name in tables else file_crc(self._fs, copy / name)
            files.append(CheckpointFile(name, size, crc))
        level = level_in(kv.get(META, meta_keys.LEVEL_KEY))
        return self.adopt(copy, CheckpointManifest(mark, now_ms, summed, tuple(files), level=level))

    def _copy(self, kv: KV, copy: Path) -> tuple[AppliedMark, dict[str, int]]:
        """Copies the database; returns the last applied entry and the sums in the copy. They are known only if nothing
        was written during the copy. Writers are not stopped, so it may take several attempts."""
        kv.flush_tables()
        if kv.sequence() >= 0:
            return copy_database(self._fs, kv, self._state, copy, lambda: (mark_of(kv), stored_sums(kv)))
        for _ in range(_TRIES):
            self._remove(copy)
            before = mark_of(kv), stored_sums(kv)
            kv.checkpoint(str(copy))
            if mark_of(kv) == before[0]:
                return before
        raise CheckpointBusyError(f"rows were written during each of {_TRIES} attempts to make a checkpoint")

    def adopt(self, source: Path, manifest: CheckpointManifest) -> Checkpoint:
        """Writes the manifest into a complete directory and renames it to its final name, durably. Returns the
        checkpoint."""
        target = self.path / manifest.name
        write_file(self._fs, source / manifests.FILE, manifests.encode(manifest, self._group_id))
        self._drop(target)
        self._fs.rename(source, target)
        self._fs.fsync_dir(self.path)
        return Checkpoint(target, manifest)

    def prune(self, held: Collection[str] = ()) -> None:
        """Removes all checkpoints but the newest KEPT and those in `held`, and leftovers. It removes only hard links:
        the state keeps its own."""
        old = [name for name in self.names()[KEPT:] if name not in held]
        for name in (*old, NEXT, FETCHED, REMOVED):
            self._drop(self.path / name)

    def _drop(self, path: Path) -> None:
        """Removes a directory. It is renamed first, because a directory with a checkpoint's name must be complete."""
        if self._fs.exists(path):
            removed = self.path / REMOVED
            if path != removed:
                self._remove(removed)
                self._fs.rename(path, removed)
            self._remove(removed)

    def _remove(self, path: Path) -> None:
        if self._fs.exists(path):
            self._fs.remove_tree(path)

    # --- using -------------------------------------------------------------------------------------------------------

    def install(self, checkpoint: Checkpoint, state: Path) -> None:
        """Makes the directory `state` (which must not exist) from the checkpoint, which stays unchanged. Raises
        StorageError.

        Tables are linked; all other files are copied, because RocksDB goes on writing to them.
        """
        fresh = state.with_name(state.name + ".tmp")
        try:
            self._remove(fresh)
            self._fs.mkdir(fresh)
            for file in checkpoint.manifest.files:
                if file.name.endswith(TABLE_SUFFIX):
                    self._fs.link(checkpoint.path / file.name, fresh / file.name)
                else:
                    self._copy_file(checkpoint.path / file.name, fresh / file.name)
            self._fs.fsync_dir(fresh)
            self._fs.rename(fresh, state)
            self._fs.fsync_dir(state.parent)
        except OSError as error:
            raise storage_error(self._fs, "restoring", state, error) from error

    def _copy_file(self, source: Path, target: Path) -> None:
        reader, writer = self._fs.open(source), self._fs.open(target, create=True)
        at = 0
        while data := reader.pread(len(ZERO_CHUNK), at):
            writer.pwritev([data], at)
            at += len(data)
        writer.fdatasync()
        reader.close()
        writer.close()
