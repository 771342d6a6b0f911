"""The file that says that the state must be replaced, and setting files aside: nothing is deleted on the way up."""

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
"""DATA/STATE_SUSPECT: the state is damaged. The next start replaces it. JSON of a Suspicion."""


class Suspicion(NamedTuple):
    """Why the state is not to be used, and what may replace it."""

    why: str
    when_ms: int = 0
    sound_index: int | None = None
    """None: bytes are damaged, any checkpoint whose bytes are sound will do. Else its rows are wrong, and so may be
    those of checkpoints: others are known to have had the same rows up to this entry, -1 if up to none."""
    peer_checkpoint: str | None = None
    """The name of the checkpoint that a peer gave since, "" if nobody gave one; None: nobody was asked yet."""
    said: str = ""
    """The peers' answers to that."""


def set_aside(fs: FileSystem, directory: Path, path: Path, why: str, now_ms: int, index: int) -> Path:
    """Moves a file or directory below DATA to DATA/trash/NNNNNN-name with its report; returns where it is now.

    Raises StorageError.
    """
    try:
        return trash.set_aside(fs, path, directory / layout.TRASH, TrashReport(why, now_ms, index=index))
    except OSError as error:
        raise storage_error(fs, "setting aside", path, error) from error


def mark_suspect(fs: FileSystem, directory: Path, why: str, when_ms: int, sound_index: int | None = None) -> None:
    """Makes the next start replace the state; see Suspicion. The first reason stays, unless rows are found to be wrong
    where only bytes were. Raises OSError.
    """
    known = suspicion_of(fs, directory)
    if known is None or (known.sound_index is None and sound_index is not None):
        _write(fs, directory, Suspicion(why, when_ms, sound_index))


def peers_were_asked(fs: FileSystem, directory: Path, checkpoint: str, said: str) -> None:
    """A suspect state may now be replaced by this checkpoint of a peer; if it is "", by an own one that others agreed
    with. Raises OSError.
    """
    known = suspicion_of(fs, directory)
    if known is not None:
        _write(fs, directory, known._replace(peer_checkpoint=checkpoint, said=said))


def _write(fs: FileSystem, directory: Path, suspicion: Suspicion) -> None:
    write_file(fs, directory / SUSPECT, json.dumps(suspicion._asdict()).encode() + b"\n")


def suspicion_of(fs: FileSystem, directory: Path) -> Suspicion | None:
    """Returns the content of STATE_SUSPECT, None if it is not there. One that cannot be read is taken for the worse."""
    path = directory / SUSPECT
    if not fs.exists(path):
        return None
    try:
        told = json.loads(read_file(fs, path))
        return Suspicion(**{name: told[name] for name in Suspicion._fields if name in told})
    except (ValueError, KeyError, TypeError):
        return Suspicion(f"{SUSPECT} is there, but cannot be read", sound_index=-1)


def why_suspect(fs: FileSystem, directory: Path) -> str | None:
    """Why the state is not to be used; None if there is no reason."""
    known = suspicion_of(fs, directory)
    return None if known is None else known.why


def clear_suspicion(fs: FileSystem, directory: Path) -> None:
    """The state was replaced. Raises OSError."""
    if fs.exists(directory / SUSPECT):
        fs.unlink(directory / SUSPECT)
        fs.fsync_dir(directory)


def give_up(
    fs: FileSystem, directory: Path, checkpointer: Checkpointer, why: str, sound_index: int, now_ms: int
) -> list[str]:
    """Marks the state as suspect and sets aside every checkpoint newer than `sound_index`, the newest entry up to which
    other nodes had the same rows; none is made any more. Returns their names. Blocks; raises OSError, StorageError.

    What is left for the next start is a checkpoint of a peer, or an older one and the log. STATE_SUSPECT says up to
    which entry one may be believed: a crash may come before all newer ones are gone, or one may be in the making.
    """
    checkpointer.freeze()
    mark_suspect(fs, directory, why, now_ms, sound_index)
    moved = [name for name in checkpointer.checkpoints.names() if int(name.partition("-")[0]) > sound_index]
    for name in moved:
        trash.set_aside(fs, checkpointer.checkpoints.path / name, directory / layout.TRASH, TrashReport(why, now_ms))
    return moved
