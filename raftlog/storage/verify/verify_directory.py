"""Checks the files of a stopped node's log for consistency: read-only, offline, every byte.

`verify_log` yields the problems. `irrelevant_ranges` lists the bytes whose change it cannot detect, because nothing
reads them: together they account for every byte of every file. The verdicts are those of a start (recovery_table.py),
except for payloads below the active segment, which a start leaves to later reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raftlog.errors import CorruptLogError, IdentityError
from raftlog.storage.files import identity as identities
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, read_file
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, group_in_header
from raftlog.storage.verify import verify_files, verify_segments
from raftlog.storage.verify.findings import Finding, IrrelevantRange, Severity

__all__ = ["Finding", "IrrelevantRange", "Severity", "irrelevant_ranges", "verify_log"]


def verify_log(fs: FileSystem, directory: Path, *, group_id: int | None = None) -> Iterator[Finding]:
    """Checks IDENTITY, GENESIS, hard state, RUN, VOTE_WITHHELD, INSTALL and all of log/ in `directory` (DATA), and
    yields the findings.

    Changes nothing and takes no lock: in a running node it may report the node's own writes. `group_id`: by default
    what IDENTITY says, else the first local header that can be read. Raises OSError if the disk cannot be read at all.
    """
    group = group_id if group_id is not None else group_of(fs, directory)
    if group is None:
        text = "neither IDENTITY nor any local header names the group of this log"
        yield Finding(directory, 0, 0, "directory", Severity.FATAL, text)
        return
    yield from verify_files.check_identity(fs, directory)
    yield from verify_files.check_run(fs, directory, group)
    yield from verify_files.check_withheld(fs, directory, group)
    yield from verify_files.check_install(fs, directory, group)
    yield from verify_segments.check_log(fs, directory, group)


def irrelevant_ranges(fs: FileSystem, directory: Path, *, group_id: int | None = None) -> Iterator[IrrelevantRange]:
    """Yields the bytes of intact files that no reader looks at."""
    group = group_id if group_id is not None else group_of(fs, directory)
    yield from verify_files.irrelevant(fs, directory)
    if group is not None:
        yield from verify_segments.irrelevant(fs, directory, group)


def group_of(fs: FileSystem, directory: Path) -> int | None:
    """Returns the Raft group of the directory, as far as any file tells; None if none does."""
    path = directory / layout.IDENTITY
    if fs.exists(path):
        try:
            return identities.decode(read_file(fs, path), path).group_id
        except (IdentityError, CorruptLogError):
            pass
    log = directory / layout.LOG
    for base in layout.segment_bases(fs.listdir(log) if fs.exists(log) else []):
        group = group_in_header(fs.open(log / layout.segment_name(base)).pread(LOCAL_HEADER_SIZE, 0))
        if group is not None:
            return group
    return None
