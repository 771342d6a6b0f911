"""Copies a peer's checkpoint, file by file, into a local directory, and continues an earlier attempt.

The manifest is kept beside the files during the copy (`manifest.part`), so that after a crash a file of the same
checkpoint is continued where it ends. Existing files are not trusted: a file counts as complete when all its bytes
match the CRC in the manifest. The checkpoint counts as complete when its rows add up to the manifest's sums.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cluster.repair.fetch import PIECE, STATE
from cluster.repair.peer_requests import Blocking, Fetches, ask
from cluster.runtime.figures.row_count import CountedRows
from cluster.state import manifest as manifests
from cluster.state.manifest import CheckpointFile, CheckpointManifest
from cluster.state.table_checksums import file_crc
from raftlog.storage.files.fs import File, FileSystem, read_file, write_file
from raftlog.types import NodeId
from raftmq_wire.checksums import crc32c

CountRows = Callable[[Path], CountedRows]
"""Counts the rows of the checkpoint in a folder, without changing it (`cluster.runtime.figures.row_count`). Raises
KVError, ValueError."""
TIMEOUT_MS = 30_000
"""Milliseconds for one piece of a file: long, because many nodes may fetch from one peer, which limits its rate."""
PROVE_MS = 120_000
"""Milliseconds for a manifest: long, because the peer first reads all of the checkpoint."""
PART = "manifest.part"


class CheckpointCopy:
    """Copies one checkpoint into `folder`. Methods raise FetchError if the peer does not supply it, ValueError or
    KVError if its data is damaged, OSError if this node's disk fails."""

    def __init__(
        self,
        fs: FileSystem,
        count_rows: CountRows,
        folder: Path,
        group_id: int,
        client: Fetches,
        blocking: Blocking,
        progress: Callable[[int], object] = lambda size: None,
    ) -> None:
        """`progress` is called with the size of each piece that arrives, in bytes."""
        self._fs = fs
        self._count_rows = count_rows
        self._folder = folder
        self._group_id = group_id
        self._client = client
        self._blocking = blocking
        self._progress = progress

    async def manifest(self, peer: NodeId, name: str) -> CheckpointManifest:
        """Returns the manifest of the peer's checkpoint `name`. The peer checks every file against the manifest before
        it answers. Raises FetchError if it does not answer, ValueError if the manifest is damaged."""
        answer = await ask(self._client, peer, STATE, ["manifest", name], PROVE_MS)
        manifest = manifests.decode(answer.payload, self._group_id, Path(name))
        if manifest is None or manifest.name != name:
            raise ValueError(f"the manifest of {name} is damaged")
        for file in manifest.files:
            if "/" in file.name or file.name in ("", ".", "..", manifests.FILE, PART):
                raise ValueError(f"{name} names a file {file.name!r}")
        return manifest

    def bytes_there(self) -> int:
        """Returns the bytes that earlier attempts left, of any checkpoint. Raises OSError."""
        fs, folder = self._fs, self._folder
        names = fs.listdir(folder) if fs.exists(folder) else []
        return sum(_size(fs, folder / name) for name in names)

    def begun(self) -> CheckpointManifest | None:
        """Returns the manifest of the checkpoint that an earlier attempt began to copy; None if there is none. Raises
        OSError."""
        part = self._folder / PART
        if not self._fs.exists(part):
            return None
        return manifests.decode(read_file(self._fs, part), self._group_id, part)

    async def run(self, peer: NodeId, manifest: CheckpointManifest) -> None:
        """Copies the checkpoint. Returns when every file is here, synced and verified. Raises FetchError if the peer
        does not answer, ValueError if a file or the rows do not match the manifest, KVError, OSError."""
        await self._blocking(self._prepare, manifest._replace(peer=int(peer)))
        for file in manifest.files:
            await self._copy(peer, manifest.name, file)
        await self._blocking(self._finish, manifest)

    def _prepare(self, manifest: CheckpointManifest) -> None:
        """Removes files of another checkpoint, and records which one is being copied."""
        fs, folder = self._fs, self._folder
        told = manifests.encode(manifest, self._group_id)
        if fs.exists(folder):
            if fs.exists(folder / PART) and read_file(fs, folder / PART) == told:
                return
            fs.remove_tree(folder)
        fs.mkdir(folder)
        write_file(fs, folder / PART, told)

    async def _copy(self, peer: NodeId, name: str, file: CheckpointFile) -> None:
        target, at, crc = await self._blocking(self._resume, file)
        try:
            began = at
            at, crc = await self._receive(peer, name, file, target, at, crc)
            if (at, crc) != (file.size, file.crc32c) and began:
                await self._blocking(target.truncate, 0)
                at, crc = await self._receive(peer, name, file, target, 0, 0)
            if (at, crc) != (file.size, file.crc32c):
                await self._blocking(target.truncate, 0)
                raise ValueError(f"{name}/{file.name} does not have the size and CRC in the manifest")
            await self._blocking(self._sync, target)
        finally:
            target.close()

    def _sync(self, target: File) -> None:
        """Syncs a file, or removes it if the sync fails. After a failed sync its bytes can be read although they are
        not on the disk, and a later sync may not write them. The next attempt would take the file for complete."""
        try:
            target.fdatasync()
        except OSError:
            with suppress(OSError):
                self._fs.unlink(target.path)
            raise

    def _resume(self, file: CheckpointFile) -> tuple[File, int, int]:
        """Opens a file to append its missing bytes. Returns (open file, number of bytes that are there, their CRC)."""
        path = self._folder / file.name
        size, crc = file_crc(self._fs, path) if self._fs.exists(path) else (0, 0)
        target = self._fs.open(path, create=True)
        if size > file.size:
            target.truncate(0)
            size = crc = 0
        return target, size, crc

    async def _receive(
        self, peer: NodeId, name: str, file: CheckpointFile, target: File, at: int, crc: int
    ) -> tuple[int, int]:
        while at < file.size:
            part = await ask(self._client, peer, STATE, ["file", name, file.name, at, PIECE], TIMEOUT_MS)
            data = part.payload[: file.size - at]
            if not data:
                break
            await self._blocking(target.pwritev, [data], at)
            crc = crc32c(data, crc)
            at += len(data)
            self._progress(len(data))
        return at, crc

    def _finish(self, manifest: CheckpointManifest) -> None:
        fs, folder = self._fs, self._folder
        wanted = {file.name for file in manifest.files}
        for name in fs.listdir(folder):
            if name not in wanted:
                fs.unlink(folder / name)
        fs.fsync_dir(folder)
        check_rows(self._count_rows(folder), manifest)


def check_rows(counted: CountedRows, manifest: CheckpointManifest) -> None:
    """Raises ValueError unless the rows are those of the manifest."""
    if counted.mark != manifest.mark:
        raise ValueError(f"its rows end at entry {counted.mark.index}, its manifest at {manifest.mark.index}")
    wrong = [family for family, told in manifest.sums.items() if counted.sums.get(family) != told]
    if wrong:
        raise ValueError(f"its rows of {', '.join(wrong)} do not add up to its sums")


def _size(fs: FileSystem, path: Path) -> int:
    file = fs.open(path)
    size = file.size()
    file.close()
    return size
