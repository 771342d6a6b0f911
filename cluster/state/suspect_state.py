"""Reads and writes the file STATE_SUSPECT, which makes the next start replace the state. Also moves files to trash/,
because a start deletes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raftlog.storage.files import layout, trash
from raftlog.storage.files.fs import FileSystem, read_file, storage_error, write_file
from raftlog.storage.files.trash import TrashReport

if TYPE_CHECKING:
    from cluster.state.checkpointer import Checkpointer

SUSPECT = "STATE_SUSPECT"
"""Name of the file DATA/STATE_SUSPECT: the state must not be used, and the next start replaces it. It contains a
Suspicion as JSON."""


class Suspicion(NamedTuple):
    """The reason why the state must not be used, and what may replace it."""

    why: str
    when_ms: int = 0
    sound_index: int | None = None
    """None if only bytes are damaged: any checkpoint whose bytes are sound may replace the state. Otherwise the rows
    are wrong, and those of checkpoints may be wrong too. This is then the index of the last entry up to which other
    nodes are known to have had the same rows; -1 if there is none."""
    peer_checkpoint: str | None = None
    """The name of the checkpoint that a peer supplied since, "" if no peer supplied one; None if the peers have not
    been asked yet."""
    said: str = ""
    """A text for people with the peers' answers to the request for a checkpoint; "" if they were not asked."""


def set_aside(fs: FileSystem, directory: Path, path: Path, why: str, now_ms: int, index: int) -> Path:
    """Moves a file or directory below DATA to DATA/trash/NNNNNN-name, with a report that says why and at which applied
    `index`. Returns the new path. Raises StorageError."""
    try:
        return trash.set_aside(fs, path, directory / layout.TRASH, TrashReport(why, now_ms, index=index))
    except OSError as error:
        raise storage_error(fs, "setting aside", path, error) from error


def mark_suspect(fs: FileSystem, directory: Path, why: str, when_ms: int, sound_index: int | None = None) -> None:
    """Makes the next start replace the state (the arguments are explained at `Suspicion`). The first reason stays,
    unless wrong rows are found where only damaged bytes were known. Raises OSError."""
    known = suspicion_of(fs, directory)
    if known is None or (known.sound_index is None and sound_index is not None):
        _write(fs, directory, Suspicion(why, when_ms, sound_index))


def peers_were_asked(fs: FileSystem, directory: Path, checkpoint: str, said: str) -> None:
    """Records the peers' answers: the suspect state may be replaced by `checkpoint`, which a peer supplied. If it is
    "", the state may be replaced by an own checkpoint up to which other nodes agreed. Does nothing if the state is not
    suspect. Raises OSError."""
    known = suspicion_of(fs, directory)
    if known is not None:
        _write(fs, directory, known._replace(peer_checkpoint=checkpoint, said=said))


def _write(fs: FileSystem, directory: Path, suspicion: Suspicion) -> None:
    write_file(fs, directory / SUSPECT, json.dumps(suspicion._asdict()).encode() + b"\n")


def suspicion_of(fs: FileSystem, directory: Path) -> Suspicion | None:
    """Returns the content of STATE_SUSPECT; None if there is no such file. A file with malformed content counts as the
    worse case, wrong rows. Raises OSError."""
    path = directory / SUSPECT
    if not fs.exists(path):
        return None
    try:
        told = json.loads(read_file(fs, path))
        return Suspicion(**{name: told[name] for name in Suspicion._fields if name in told})
    except (ValueError, KeyError, TypeError):
        return Suspicion(f"{SUSPECT} is there, but cannot be read", sound_index=-1)


def why_suspect(fs: FileSystem, directory: Path) -> str | None:
    """Returns the reason why the state must not be used; None if there is none."""
    known = suspicion_of(fs, directory)
    return None if known is None else known.why


def clear_suspicion(fs: FileSystem, directory: Path) -> None:
    """Removes STATE_SUSPECT after the state was replaced. Raises OSError."""
    if fs.exists(directory / SUSPECT):
        fs.unlink(directory / SUSPECT)
        fs.fsync_dir(directory)


def give_up(
    fs: FileSystem, directory: Path, checkpointer: Checkpointer, why: str, sound_index: int, now_ms: int
) -> list[str]:
    """Marks the state as suspect and sets aside every checkpoint newer than `sound_index`, the newest entry up to which
    other nodes had the same rows. No checkpoint is made any more. Returns the names of the checkpoints set
    aside. Blocks; raises OSError, StorageError.

    The next start then uses a checkpoint of a peer, or an older one and the log. STATE_SUSPECT records up to which
    entry a checkpoint may be trusted, because a crash may come before all newer ones are set aside, or one may be in
    the making.
    """
    checkpointer.freeze()
    mark_suspect(fs, directory, why, now_ms, sound_index)
    moved = [name for name in checkpointer.checkpoints.names() if int(name.partition("-")[0]) > sound_index]
    for name in moved:
        trash.set_aside(fs, checkpointer.checkpoints.path / name, directory / layout.TRASH, TrashReport(why, now_ms))
    return moved
