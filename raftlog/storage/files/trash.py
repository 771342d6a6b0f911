"""Sets files aside: moves them to DATA/trash, with a report beside each, instead of deleting them.

`trash/NNNNNN-name` is the file, the directory, or the bytes that were cut; `trash/NNNNNN-name.json` says why. The
report is written first, so that every item has one; a report without its item is a move that a crash interrupted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from raftlog.storage.files.fs import ZERO_CHUNK, File, FileSystem, write_file

REPORT_SUFFIX = ".json"


class TrashReport(NamedTuple):
    """The report on something that was set aside: why, and where in the log it was. Positions and indexes are None
    where they do not apply."""

    why: str
    now_ms: int = 0
    """The wall clock in milliseconds, given by the caller; 0 if unknown."""
    position: int | None = None
    index: int | None = None  # type: ignore[assignment]
    length: int | None = None
    """The number of bytes of the log that were set aside."""


def set_aside(fs: FileSystem, path: Path, trash: Path, report: TrashReport) -> Path:
    """Moves a file or directory durably to trash/ under a new name `<n>-<name>`; returns its path there."""
    target = _next_name(fs, trash, path.name)
    _write_report(fs, target, report)
    fs.rename(path, target)
    fs.fsync_dir(trash)
    fs.fsync_dir(path.parent)
    return target


def set_aside_bytes(
    fs: FileSystem, file: File, offset: int, size: int, trash: Path, report: TrashReport, name: str = ""
) -> Path:
    """Copies `size` bytes of a file durably to trash/ as `<n>-<name>`, by default `<file>.from-<offset>`; returns the
    path of the copy."""
    target = _next_name(fs, trash, name or f"{file.path.name}.from-{offset}")
    _write_report(fs, target, report)
    copy = fs.open(target, create=True)
    for at in range(0, size, len(ZERO_CHUNK)):
        copy.pwritev([file.pread(min(len(ZERO_CHUNK), size - at), offset + at)], at)
    copy.fdatasync()
    copy.close()
    fs.fsync_dir(trash)
    return target


def _next_name(fs: FileSystem, trash: Path, name: str) -> Path:
    fs.mkdir(trash)
    numbers = [int(known.partition("-")[0]) for known in fs.listdir(trash) if known.partition("-")[0].isdigit()]
    return trash / f"{max(numbers, default=0) + 1:06d}-{name}"


def _write_report(fs: FileSystem, target: Path, report: TrashReport) -> None:
    known = {key: value for key, value in report._asdict().items() if value is not None}
    fields = {"name": target.name, "time_ms": known.pop("now_ms"), **known}
    write_file(fs, target.with_name(target.name + REPORT_SUFFIX), json.dumps(fields, indent=1).encode() + b"\n")
