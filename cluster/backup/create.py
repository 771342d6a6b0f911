"""Makes a backup from a node's files, in a process of its own (worker.py), while the node runs.

A backup ends at the cut: the applied index of the checkpoint. All entries up to the cut are committed and on the node's
disk, so their bytes never change again. Segment files can therefore be linked or copied while the node appends to the
last of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from cluster.backup import files, verify
from cluster.backup import manifest as manifests
from cluster.backup.files import checksum
from cluster.backup.manifest import LOG, MANIFEST, STATE, FileRecord, Manifest, SegmentRecord
from cluster.backup.segments import BackedUpSegment, parts_below, walk
from cluster.config.local_layout import node_object
from cluster.config.storage_sections import TierSection
from raftlog.errors import CorruptLogError, RaftLogError, out_of_space
from raftlog.frame import HEADER_SIZE, FrameHeader
from raftlog.storage.files import genesis as genesis_format
from raftlog.storage.files import identity as identities
from raftlog.storage.files import layout
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.identity import Identity
from raftlog.storage.log.genesis_copy import read_copy
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import EMPTY_TAIL, Entry, LogTail
from raftmq_wire.errors import ExitCode, LocalError
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.trim import load_mark

if TYPE_CHECKING:
    from statemachine.rows.kv import KV

SPARE_BYTES = 1 << 20
"""Bytes that a backup needs for its manifest and directories, in addition to the files."""
TABLE = ".sst"
"""Suffix of RocksDB's table files. They are not changed once they are complete, so they can be hard-linked."""


class BackupOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The node's request to the process that makes the backup."""

    data: str
    """Path of the node's data directory."""
    checkpoint: str
    """Path of a RocksDB checkpoint on the node's own disk. The node removes it after the worker has ended."""
    to: str
    made_ms: int
    cluster_name: str
    broker_name: str
    keep: int | None = None
    """Number of the cluster's backups that are kept in `to`, this one included; None keeps all."""
    copy_all: bool = False
    """True to hard-link no file of the node. Otherwise a bad block of the node's disk may damage the backup as well."""
    versions: dict[str, str] = {}
    store: TierSection | None = None
    """The settings for access to the store if `to` is a URL; None if it is a directory."""


class MadeBackup(msgspec.Struct, frozen=True, kw_only=True):
    """The result: a backup that was made, and read back without an error."""

    path: str
    manifest: Manifest
    removed: list[str]
    """Names of older backups that were removed because of `keep`."""


class _Source(NamedTuple):
    identity: Identity
    cut: LogTail
    genesis: Entry
    parts: list[BackedUpSegment]


def create(
    request: BackupOrder, on_stage: Callable[[str], None] = lambda stage: None, *, staging: Path | None = None
) -> MadeBackup:
    """Makes a backup in the directory `request.to`. Calls `on_stage` with the name of each stage. If it raises
    LocalError, it has removed the unfinished backup, or the error says what is left.

    `staging`: an existing folder on the node's own disk. If it is given, the backup is made there, and the caller
    brings it to `request.to`.
    """
    target = Path(request.to) if staging is None else staging
    source = _look_at(request)
    identity, cut = source.identity, source.cut
    if staging is None:
        _make_target(target, Path(request.data))
    name = files.name_of(request.made_ms, str(identity.cluster_uuid), identity.node_id, cut.index)
    if (target / name).exists():
        raise LocalError(
            f"{target / name} exists already", "one was made within the same second", "try again", ExitCode.REFUSED
        )
    partial = target / (name + files.PARTIAL)
    work = _BackupWork(request, source, partial, on_stage)
    try:
        files.remove_unfinished(target, str(identity.cluster_uuid), identity.node_id)
        manifest = work.run(name)
        partial.rename(target / name)
        files.sync_file(target)
    except OSError as error:
        left = files.remove_tree(partial)
        if _is_in(error.filename, Path(request.data)) and not _is_in(error.filename, target):
            raise _source_failed(error, request, left) from error
        if staging is not None:
            raise _staging_failed(error, request, staging, work.needed, left) from error
        raise files.target_error(error, target, work.needed, left) from error
    except (RaftLogError, EOFError) as error:
        raise _source_damaged(error, identity, files.remove_tree(partial)) from error
    except BaseException:
        files.remove_tree(partial)
        raise
    removed = [] if request.keep is None else _thin_out(target, identity, request.keep, name)
    return MadeBackup(path=str(target / name), manifest=manifest, removed=removed)


def _look_at(request: BackupOrder) -> _Source:
    """Returns the node's identity, the cut, the first entry and the segment files of the backup to be made. Changes
    nothing. Raises LocalError if the node cannot be backed up."""
    data = Path(request.data)
    try:
        identity = identities.decode((data / layout.IDENTITY).read_bytes(), data / layout.IDENTITY)
        with CheckpointReader(Path(request.checkpoint)) as reader:
            mark, begin = reader.mark, load_mark(cast("KV", reader)).position  # `load_mark` only calls `get`
        cut = LogTail(mark.term, mark.index, mark.end_position, mark.header_crc, 0, mark.timestamp_ms)
        if mark.index < 0:
            raise LocalError(
                "there is nothing to back up yet",
                "the node has applied nothing",
                "wait until a leader is elected: raftmq status",
                ExitCode.REFUSED,
            )
        parts = parts_below(data / layout.LOG, cut.end_position, cut.header_crc, identity.group_id)
        if parts[0].header.base_position > begin:
            raise _incomplete(identity, parts[0].header.base_position, begin)
        return _Source(identity, cut, _genesis(data, parts[0], identity.group_id), parts)
    except RaftLogError as error:
        raise _source_damaged(error, None, "") from error
    except OSError as error:
        raise _source_failed(error, request, "") from error


def _genesis(data: Path, first: BackedUpSegment, group_id: int) -> Entry:
    """Returns the entry at index 0. If the log was trimmed and does not have it any more, it is read from the node's
    copy."""
    if first.header.base_position > 0:
        return read_copy(OsFileSystem(), data, group_id)
    with first.path.open("rb") as file:
        file.seek(LOCAL_HEADER_SIZE)
        header = FrameHeader(file.read(HEADER_SIZE))
        return header.entry(file.read(header.frame_length - HEADER_SIZE))


def check_place(target: Path, data: Path) -> None:
    """Raises LocalError if the directory `target` lies in the directory of a node: in `data`, this node's own, or in
    another node's."""
    if data.resolve() in (target.resolve(), *target.resolve().parents):
        raise LocalError(
            f"{target} cannot be a backup target",
            f"it lies in the node's own directory {data}: what destroys that would destroy the backup too",
            f"raftmq backup create --to {data.parent / 'backups'}    (better: a directory on another disk)",
            ExitCode.REFUSED,
        )
    if (other := _other_node(target, data)) is not None:
        raise LocalError(
            f"{target} cannot be a backup target",
            f"it lies in the directory {other} of another node",
            f"raftmq backup create --to {data.parent / 'backups'}    (better: a directory on another disk)",
            ExitCode.REFUSED,
        )


def _make_target(target: Path, data: Path) -> None:
    """Makes the directory `target`, or checks the one that exists. It must not lie in `data`."""
    check_place(target, data)
    try:
        target.mkdir(exist_ok=True)  # parents are not made: a missing one may be an unmounted disk
        files.sync_file(target)
    except OSError as error:
        raise LocalError(
            f"{target} cannot be a backup target",
            str(error),
            f"mkdir -p {target.parent}    (and check that the disk is mounted)",
            ExitCode.REFUSED,
        ) from error


MADE_BY_UP = ("raftmq.toml", f"data/{layout.IDENTITY}")
"""Files that a folder has in which `raftmq up` keeps a node."""


def _other_node(path: Path, data: Path) -> Path | None:
    """Returns the folder of another node in which `path` lies: its data directory, or the folder that `raftmq up` made
    for it. Returns None if `path` lies in no other node's folder."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        if os.path.lexists(folder / layout.IDENTITY):
            return folder
        if folder != data.resolve().parent and all(os.path.lexists(folder / name) for name in MADE_BY_UP):
            return folder
    return None


class _BackupWork:
    """Makes one backup: writes the files, reads them back, and writes the manifest."""

    def __init__(self, request: BackupOrder, source: _Source, partial: Path, on_stage: Callable[[str], None]) -> None:
        self._request = request
        self._source = source
        self._partial = partial
        self._on_stage = on_stage
        self._earlier: Manifest | None = None
        self._copied: dict[Path, int] = {}
        """File in the backup -> CRC-32C of the bytes that were written. Only for files that were copied, or compared
        with an earlier backup's."""
        self._reused: dict[Path, tuple[Path, int]] = {}
        """File in the backup that is linked to an earlier backup's file -> (the node's own file, the number of its
        bytes in the backup)."""
        self._bytes_new = 0
        self.needed = 0

    def run(self, name: str) -> Manifest:
        """Writes the files and the manifest of the backup `name`. Raises OSError, RaftLogError, EOFError."""
        self._earlier = files.newest(self._partial.parent, str(self._source.identity.cluster_uuid))
        (self._partial / LOG).mkdir(parents=True)
        (self._partial / STATE).mkdir()
        self._check_space()
        self._on_stage("state")
        state = sorted(path for path in Path(self._request.checkpoint).iterdir() if path.is_file())
        for path in state:
            self._put_state(path)
        self._on_stage("log")
        for part in self._source.parts:
            self._put_segment(part)
        files.sync_tree(self._partial)
        self._on_stage("reading back")
        manifest = self._read_back(name, [path.name for path in state])
        with (self._partial / MANIFEST).open("xb") as file:
            file.write(manifests.encode(manifest))
        files.sync_file(self._partial / MANIFEST)
        files.sync_file(self._partial)
        return manifest

    def _check_space(self) -> None:
        """Raises OSError if the files will not fit into the target. Files that can be linked need no space."""
        linked = self._can_link()
        self.needed = SPARE_BYTES
        for part in self._source.parts:
            if not (part.whole and (linked or self._earlier_segment(part))):
                self.needed += part.size
        if not linked:
            self.needed += sum(path.stat().st_size for path in Path(self._request.checkpoint).iterdir())
        if files.free_bytes(self._partial) < self.needed:
            raise OSError(errno.ENOSPC, "there is not enough room", str(self._partial))

    def _can_link(self) -> bool:
        if self._request.copy_all:
            return False
        probe = self._partial / "probe"
        if not files.link(Path(self._request.data) / layout.IDENTITY, probe):
            return False
        probe.unlink()
        return True

    def _put_state(self, path: Path) -> None:
        target = self._partial / STATE / path.name
        if path.name.endswith(TABLE):
            if not self._request.copy_all and files.link(path, target):
                return
            earlier = self._earlier_state(path)
            if earlier is not None and files.link(self._partial.parent / earlier.path, target):
                self._reused[target] = path, earlier.size
                self._copied[target] = earlier.crc32c
                return
        self._copy(path, path.stat().st_size, target)

    def _put_segment(self, part: BackedUpSegment) -> None:
        target = self._partial / LOG / part.path.name
        if part.whole:
            earlier = self._earlier_segment(part)
            if earlier is not None and files.link(earlier, target):
                self._reused[target] = part.path, part.size
                return
            if not self._request.copy_all and files.link(part.path, target):
                return
        self._copy(part.path, part.size, target)

    def _copy(self, source: Path, size: int, target: Path) -> None:
        self._copied[target] = files.copy(source, target, size)
        self._bytes_new += size

    def _copy_after_all(self, target: Path) -> bool:
        """Replaces a file that is linked to a damaged file of an earlier backup with a copy of the node's own file.
        Returns False if `target` is not linked to an earlier backup."""
        if target not in self._reused:
            return False
        target.unlink()
        self._copy(*self._reused.pop(target), target=target)
        return True

    def _earlier_segment(self, part: BackedUpSegment) -> Path | None:
        """Returns the segment file of an earlier backup with the same frames. Returns None if there is none, or if it
        is linked to the node's own file although `copy_all` is set. Two logs with an equal header_crc at the same end
        are equal up to there."""
        if self._earlier is None:
            return None
        for record in self._earlier.segments:
            same = (record.base_position, record.end_position, record.last_header_crc)
            if same == (part.header.base_position, part.end_position, part.last_header_crc):
                path = self._partial.parent / self._earlier.name / LOG / part.path.name
                return None if self._request.copy_all and path.samefile(part.path) else path
        return None

    def _earlier_state(self, path: Path) -> FileRecord | None:
        """Returns the state file of an earlier backup with the same bytes; None if there is none. The bytes are
        compared, because a rebuilt state uses the same file names again."""
        if self._earlier is None:
            return None
        relative = f"{STATE}/{path.name}"
        record = next((each for each in self._earlier.state if each.path == relative), None)
        if record is None or checksum(path) != (record.size, record.crc32c):
            return None
        return FileRecord(f"{self._earlier.name}/{relative}", record.size, record.crc32c)

    def _read_back(self, name: str, state: list[str]) -> Manifest:
        request, identity, cut = self._request, self._source.identity, self._source.cut
        tail, segments = self._read_log_back()
        records = [self._read_state_back(self._partial / STATE / each) for each in state]
        mark, sums, level = verify.read_state(self._partial)
        if not verify.same_place(mark, tail) or not verify.same_place(mark, cut):
            raise EOFError(f"the log ends at index {tail.index}, the state at {mark.index}, the cut was {cut.index}")
        logged = sum(part.size for part in self._source.parts)
        return Manifest(
            name=name,
            made_ms=request.made_ms,
            node=identity.node_id,
            cluster_uuid=str(identity.cluster_uuid),
            cluster_name=request.cluster_name,
            broker_name=request.broker_name,
            group_id=identity.group_id,
            index=cut.index,
            term=cut.term,
            position=cut.end_position,
            header_crc=cut.header_crc,
            timestamp_ms=cut.timestamp_ms,
            segment_size=genesis_format.decode(self._source.genesis).segment_size,
            origin=[(str(each.cluster_uuid), each.last_index) for each in identity.origin],
            digest=sums,
            segments=segments,
            state=records,
            bytes_total=logged + sum(record.size for record in records),
            bytes_new=self._bytes_new,
            versions=request.versions,
            level=level,
            genesis=(self._source.genesis.header + self._source.genesis.payload).hex(),
        )

    def _read_log_back(self) -> tuple[LogTail, list[SegmentRecord]]:
        tail = EMPTY_TAIL if self._source.parts[0].header.base_position == 0 else None
        records = []
        for part in self._source.parts:
            path = self._partial / LOG / part.path.name
            try:
                after, record = self._walk(path, tail, part)
            except CorruptLogError:
                if not self._copy_after_all(path):
                    raise
                after, record = self._walk(path, tail, part)
            tail = after
            records.append(record)
        assert tail is not None
        return tail, records

    def _walk(self, path: Path, tail: LogTail | None, part: BackedUpSegment) -> tuple[LogTail, SegmentRecord]:
        after, record = walk(path, tail, part.end_position, self._source.identity.group_id)
        if record.last_header_crc != part.last_header_crc:
            raise CorruptLogError(f"{path} holds another log than {part.path}")
        return after, record

    def _read_state_back(self, path: Path) -> FileRecord:
        size, crc = checksum(path)
        if self._copied.get(path, crc) != crc and self._copy_after_all(path):
            size, crc = checksum(path)
        if self._copied.get(path, crc) != crc:
            raise OSError(errno.EIO, "what was read back differs from what was written", str(path))
        return FileRecord(f"{STATE}/{path.name}", size, crc)


def _thin_out(target: Path, identity: Identity, keep: int, made: str) -> list[str]:
    """Removes the oldest backups of the cluster until `keep` are left, `made` among them. Returns the names of the
    removed ones. Errors are ignored: an old backup that stays does not make the new one worse."""
    try:
        return files.thin_out(target, str(identity.cluster_uuid), keep, made)
    except (OSError, LocalError):
        return []


def _is_in(name: object, folder: Path) -> bool:
    return isinstance(name, str | Path) and folder in (Path(name), *Path(name).parents)


def _incomplete(identity: Identity, first: int, begin: int) -> LocalError:
    return LocalError(
        f"the backup was not made: {node_object(identity.group_id, identity.node_id)} does not have all of the log",
        f"its files begin at position {first}, the messages that are kept at {begin}; it fetches the rest from the "
        "other nodes",
        "the same command with another --node    (or wait until it has them: raftmq status)",
        ExitCode.REFUSED,
    )


def _source_damaged(error: Exception, identity: Identity | None, left: str) -> LocalError:
    who = node_object(identity.group_id, identity.node_id) if identity else "the node"
    return LocalError(
        f"the backup was not made: what {who} holds is damaged, or what was written was not read back",
        f"{error}{left}",
        "the same command with another --node    (and raftmq logs, for what is wrong with this one)",
        ExitCode.FAILED,
    )


def _source_failed(error: OSError, request: BackupOrder, left: str) -> LocalError:
    if not isinstance(error, FileNotFoundError):
        return LocalError(
            f"the backup was not made: {error.filename or request.data} cannot be read",
            f"{error.strerror or error}{left}",
            "the same command with another --node    (and raftmq logs, for what is wrong with this one)",
            ExitCode.FAILED,
        )
    return LocalError(
        f"the backup was not made: {error.filename} went away meanwhile",
        f"{error.strerror or error}{left}; the log may have been trimmed while it was copied",
        f"raftmq backup create --to {request.to}    (once more)",
        ExitCode.FAILED,
    )


def _staging_failed(error: OSError, request: BackupOrder, staging: Path, needed: int, left: str) -> LocalError:
    if out_of_space(error):
        return LocalError(
            "the backup was not made: the node's own disk, on which it is made before it is uploaded, is full",
            f"{files.free_text(staging.parent)}, this backup needs about {needed}{left}",
            f"df -h {staging.parent}    (free space there; or the same command with another --node)",
            ExitCode.FAILED,
        )
    return LocalError(
        f"the backup was not made: {staging}, in which it is made before it is uploaded, failed",
        f"{error}{left}; the node itself is not affected",
        f"raftmq backup create --to {request.to}    (once more)",
        ExitCode.FAILED,
    )
