"""Discards a state whose rows are wrong: the next start must not trust a checkpoint of the same rows."""

from __future__ import annotations

from pathlib import Path

from cluster.state.aside import mark_suspect
from cluster.state.keeper import StateKeeper
from raftlog.storage import layout, trash
from raftlog.storage.fs import FileSystem
from raftlog.storage.trash import TrashReport


def give_up(fs: FileSystem, directory: Path, keeper: StateKeeper, why: str, sound_index: int, now_ms: int) -> list[str]:
    """Marks the state as suspect and sets aside every checkpoint newer than `sound_index`, the newest entry up to which
    other nodes had the same rows; none is made any more. Returns their names. Blocks; raises OSError, StorageError.

    What is left for the next start is a checkpoint of a peer, or an older one and the log. STATE_SUSPECT says up to
    which entry one may be believed: a crash may come before all newer ones are gone, or one may be in the making.
    """
    keeper.freeze()
    mark_suspect(fs, directory, why, now_ms, sound_index)
    moved = [name for name in keeper.checkpoints.names() if int(name.partition("-")[0]) > sound_index]
    for name in moved:
        trash.set_aside(fs, keeper.checkpoints.path / name, directory / layout.TRASH, TrashReport(why, now_ms))
    return moved
