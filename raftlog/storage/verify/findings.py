"""The findings of an offline check of the log."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Severity(StrEnum):
    """The severity of a finding."""

    NOTE = "note"
    """Nothing is lost and nothing has to be done: a torn tail that the next start cuts, a cache that is rebuilt."""
    REPAIRABLE = "repairable"
    """Data is missing on this node: it starts, and fetches the data from its peers."""
    FATAL = "fatal"
    """The node refuses to start."""


class Finding(NamedTuple):
    """One problem that the check found. `offset` and `size` are in bytes of the file; size 0: the file as a whole."""

    path: Path
    offset: int
    size: int
    kind: str
    """The damaged part: directory, identity, genesis copy, hard state, run, vote withheld, clean marker, segment file,
    local header, sync mark, frame, tail, sidecar, kept index, first, install."""
    severity: Severity
    text: str


class IrrelevantRange(NamedTuple):
    """The bytes [offset, offset + size) of a file, which no reader looks at."""

    path: Path
    offset: int
    size: int
    why: str
