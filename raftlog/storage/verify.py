"""Everything a stopped node's log files say, checked against itself: read-only, offline, every byte.

`verify_log` yields what is wrong; `irrelevant_ranges` lists the bytes whose change nothing would notice, because
nothing reads them: together they account for every byte of every file.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from raftlog.storage.fs import FileSystem


class Severity(StrEnum):
    """How bad a finding is."""

    NOTE = "note"
    """Nothing is lost and nothing is to be done: a torn tail that the next start cuts, a cache that is rebuilt."""
    REPAIRABLE = "repairable"
    """A copy is missing here: the node starts, and fetches it from its peers."""
    FATAL = "fatal"
    """The node refuses to start."""


class Finding(NamedTuple):
    """One thing that is wrong. `offset` and `size` in bytes of the file; size 0: the file as a whole."""

    path: Path
    offset: int
    size: int
    kind: str
    """What is damaged: "frame", "local header", "sync mark", "sidecar", "hard state", "identity", "run", ..."""
    severity: Severity
    text: str


class IrrelevantRange(NamedTuple):
    """Bytes [offset, offset + size) of a file that no reader looks at."""

    path: Path
    offset: int
    size: int
    why: str


def verify_log(fs: FileSystem, directory: Path, *, group_id: int | None = None) -> Iterator[Finding]:
    """Reads IDENTITY, RUN, hard state and all of log/ in `directory` (DATA); changes nothing, takes no lock."""
    del fs, directory, group_id
    yield from ()


def irrelevant_ranges(fs: FileSystem, directory: Path, *, group_id: int | None = None) -> Iterator[IrrelevantRange]:
    """The bytes of the same files whose change `verify_log` cannot see, and why none needs to."""
    del fs, directory, group_id
    yield from ()
