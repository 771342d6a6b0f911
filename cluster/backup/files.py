"""Writes the files of a backup, and finds the backups in a folder.

A file is hard-linked where possible, and copied otherwise. It is synced, and read back from the disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.backup import manifest as manifests
from cluster.backup.manifest import MANIFEST, Manifest
from raftlog.errors import out_of_space
from raftmq_wire.checksums import crc32c
from raftmq_wire.errors import ExitCode, LocalError

CHUNK = 1 << 20


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Provides a context in which an OSError without a file name, as reads and writes raise it, gets the name
    `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def link(source: Path, target: Path) -> bool:
    """Hard-links `source` as `target`; returns False if that cannot be done (another file system, too many links, or
    one of the two is gone). The caller then copies the file. The error of a failed copy says which of the two files
    failed; the error of a failed link does not."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def copy(source: Path, target: Path, size: int | None = None) -> int:
    """Copies the first `size` bytes (None: all), synced; returns their crc32c. Raises OSError, which names the file
    that failed, and EOFError if the file is shorter."""
    return copy_behind(b"", source, target, size)


def copy_behind(page: bytes, source: Path, target: Path, size: int | None) -> int:
    """Writes `page`, then the `size` bytes (None: all) that lie behind an equally long page in `source`, synced;
    returns the crc32c of these bytes. Raises OSError, which names the file that failed, and EOFError if `source` is
    shorter."""
    total, crc = 0, 0
    with source.open("rb") as reader, target.open("xb", buffering=0) as writer:
        with naming(target):
            write_all(writer.fileno(), page)
        reader.seek(len(page))
        while size is None or total < size:
            with naming(source):
                data = reader.read(CHUNK if size is None else min(CHUNK, size - total))
            if not data:
                break
            with naming(target):
                write_all(writer.fileno(), data)
            crc = crc32c(data, crc)
            total += len(data)
        with naming(target):
            os.fsync(writer.fileno())
    if size is not None and total < size:
        behind = " behind its first page" if page else ""
        raise EOFError(f"{source} has {total} bytes{behind}, {size} were expected")
    return crc


def write_all(fd: int, data: bytes) -> None:
    """Writes all of `data` to a file descriptor. One call of the system may write only a part, as on a nearly full
    disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def checksum(path: Path, start: int = 0, stop: int | None = None) -> tuple[int, int]:
    """Returns (bytes, crc32c) of path[start:stop], read from the disk rather than from memory as far as the system
    allows. Raises OSError, which names the file."""
    crc, total = 0, 0
    with naming(path), path.open("rb") as file:
        drop_cache(file.fileno())
        file.seek(start)
        while stop is None or start + total < stop:
            data = file.read(CHUNK if stop is None else min(CHUNK, stop - start - total))
            if not data:
                break
            crc = crc32c(data, crc)
            total += len(data)
    return total, crc


def drop_cache(fd: int) -> None:
    """Drops the file from the page cache, so that the next read comes from the disk. A read from memory would not prove
    that the disk has the bytes."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def sync_file(path: Path) -> None:
    """Syncs a file or a directory to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(root: Path) -> None:
    """Syncs `root`, all directories below it, and its parent, so that all file names are on the disk. Raises
    OSError."""
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir()), root.parent):
        sync_file(folder)


def remove_tree(path: Path) -> str:
    """Removes a folder that RaftMQ made. Returns "" if it is gone, else a text about what is left, for the end of an
    error message."""
    shutil.rmtree(path, ignore_errors=True)
    return f"; {path} could not be removed: rm -r {path}" if os.path.lexists(path) else ""


def target_error(error: OSError, target: Path, needed: int, left: str = "") -> LocalError:
    """Returns the LocalError for an error while a backup was written to `target`. `needed` is the number of bytes that
    the backup needs, `left` the text of `remove_tree`."""
    if out_of_space(error):
        return LocalError(
            f"the backup target {target} is full",
            f"{free_text(target)}, this backup needs about {needed}{left}",
            f"df -h {target}    (free space there; or the same command with a smaller --keep, or another --to)",
            ExitCode.FAILED,
        )
    if not target.is_dir() or error.errno in (errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.ENODEV):
        return LocalError(
            f"the backup target {target} vanished while it was written to",
            f"{error.strerror or error}{left}; the node itself is not affected",
            f"check the mount, then: raftmq backup create --to {target}",
            ExitCode.FAILED,
        )
    return LocalError(
        f"the backup to {target} failed",
        f"{error}{left}; the node itself is not affected",
        f"ls -ld {target}    (owner, space, read-only?)",
        ExitCode.FAILED,
    )


def free_bytes(path: Path) -> int:
    """Returns the number of bytes that are available on the file system of `path`."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def need(path: Path, size: int) -> None:
    """Raises OSError if fewer than `size` bytes are available on the file system of `path`."""
    if free_bytes(path) < size:
        raise OSError(errno.ENOSPC, f"about {size} bytes are needed", str(path))


def free_text(path: Path) -> str:
    """Returns a text about the free space for error messages, also if the file system does not answer."""
    try:
        return f"{free_bytes(path)} bytes are free"
    except OSError:
        return "free space unknown"


PARTIAL = ".partial"


def name_of(made_ms: int, cluster_uuid: str, node: int, index: int) -> str:
    """Returns the name of a backup. It has the time, the beginning of the cluster's uuid, the node and the index, and
    sorts by time."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(made_ms / 1000))
    return f"{when}-{cluster_uuid[:8]}-n{node}-i{index}"


def backups_in(target: Path) -> tuple[list[Manifest], list[str]]:
    """Returns (manifests of readable backups, oldest first; one sentence for each unreadable or unfinished backup).
    Raises LocalError if there is no such directory."""
    if not target.is_dir():
        raise LocalError(
            f"there is no directory {target}",
            "backups lie in the directory that backup create was told with --to",
            f"raftmq backup create --to {target}",
            ExitCode.REFUSED,
        )
    found, problems = _read_all(target)
    return [each for _, each in found], problems


def _read_all(target: Path) -> tuple[list[tuple[Path, Manifest]], list[str]]:
    """Returns the same as `backups_in`, but each manifest together with the folder in which it is."""
    found, problems = [], []
    for path in sorted(target.iterdir()):
        if path.name.endswith(PARTIAL):
            problems.append(f"{path} was not finished; unless one is being made right now: rm -r {path}")
        elif (path / MANIFEST).exists():
            try:
                found.append((path, manifests.load(path)))
            except LocalError as error:
                problems.append(f"{error.what}: {error.why}")
    return sorted(found, key=lambda each: (each[1].made_ms, each[1].name)), problems


def _made_here(target: Path, cluster_uuid: str) -> list[Manifest]:
    """Returns the cluster's backups whose folders still have the names that nodes gave them, oldest first. A folder
    with another name was copied or renamed by a person, and must be neither removed nor linked to."""
    return [each for path, each in _read_all(target)[0] if (each.cluster_uuid, each.name) == (cluster_uuid, path.name)]


def newest(target: Path, cluster_uuid: str, node: int | None = None) -> Manifest | None:
    """Returns the newest backup of the cluster in `target`, of the node `node` if it is given. Returns None if there is
    none, or no such directory."""
    if not target.is_dir():
        return None
    found = [each for each in _made_here(target, cluster_uuid) if node is None or each.node == node]
    return found[-1] if found else None


def superfluous(target: Path, cluster_uuid: str, keep: int, made: str = "") -> list[str]:
    """Returns the names of the cluster's backups, made by any node, that are not among the `keep` newest. `made` is
    neither counted nor returned. A copy that a person made under another name is not counted either."""
    mine = _made_here(target, cluster_uuid) if target.is_dir() else []
    others = [each.name for each in mine if each.name != made]
    return others[: max(0, len(others) - keep)]


def thin_out(target: Path, cluster_uuid: str, keep: int, made: str) -> list[str]:
    """Removes the cluster's backups, made by any node, that are not among the `keep` newest; returns their names.
    `made`, the backup that was just made, counts as the newest even if its node's clock is slow. Raises OSError."""
    removed = superfluous(target, cluster_uuid, keep - 1, made)
    for name in removed:
        (target / name / MANIFEST).unlink()  # it goes first: a half-removed folder must not count as a backup
        remove_tree(target / name)
    return removed


def remove_unfinished(target: Path, cluster_uuid: str, node: int) -> list[str]:
    """Removes unfinished backups of this node from earlier attempts; returns their names. None of them can be in
    progress, because a node makes one backup at a time."""
    mark = f"-{cluster_uuid[:8]}-n{node}-i"
    left = [path for path in target.iterdir() if path.name.endswith(PARTIAL) and mark in path.name]
    for path in left:
        remove_tree(path)
    return [path.name for path in left]
