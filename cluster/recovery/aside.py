"""Setting the state aside, and the file that says that it must be: nothing is deleted on the way up."""

from __future__ import annotations

import json
from pathlib import Path

from raftlog.storage import layout, trash
from raftlog.storage.fs import FileSystem, read_file, storage_error, write_file
from raftlog.storage.trash import Aside

SUSPECT = "STATE_SUSPECT"
"""DATA/STATE_SUSPECT: the state is damaged. The next start replaces it. JSON: {why, when_ms}."""


def set_aside(fs: FileSystem, directory: Path, path: Path, why: str, now_ms: int, index: int) -> Path:
    """Moves a file or directory below DATA to DATA/trash/NNNNNN-name with its report; returns where it is now.

    Raises StorageError.
    """
    try:
        return trash.set_aside(fs, path, directory / layout.TRASH, Aside(why, now_ms, index=index))
    except OSError as error:
        raise storage_error(fs, "setting aside", path, error) from error


def mark_suspect(fs: FileSystem, directory: Path, why: str, when_ms: int) -> None:
    """Makes the next start replace the state. Raises OSError."""
    path = directory / SUSPECT
    if not fs.exists(path):
        write_file(fs, path, json.dumps({"why": why, "when_ms": when_ms}).encode() + b"\n")


def suspicion(fs: FileSystem, directory: Path) -> str | None:
    """Why the state is not to be used; None if there is no reason."""
    path = directory / SUSPECT
    if not fs.exists(path):
        return None
    try:
        return str(json.loads(read_file(fs, path))["why"])
    except (ValueError, KeyError, TypeError):
        return f"{SUSPECT} is there, but cannot be read"


def clear_suspicion(fs: FileSystem, directory: Path) -> None:
    """The state was replaced. Raises OSError."""
    if fs.exists(directory / SUSPECT):
        fs.unlink(directory / SUSPECT)
        fs.fsync_dir(directory)
