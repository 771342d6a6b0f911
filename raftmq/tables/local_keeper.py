"""Makes a run the keeper of a table on disk, and removes the files that killed and failed rounds leave.

A lock in the folder ends with its process, so the holder is the only run. Files of runs that no version names belong to
no other run, and are removed at once. Files have hidden names until just before the commit.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from raftmq.tables.day_files import DayFile
from raftmq.tables.delta_table import DeltaTarget, known_names
from raftmq.tables.errors import TableError
from raftmq.tables.local_folder import sync_folder
from raftmq.tables.table_rows import DAY
from raftmq_wire.errors import ExitCode
from raftmq_wire.topic_identity import Position

SHOWN = "run-"
"""The prefix of the names of files of runs that the table may name. Files of exports have another prefix."""
HIDDEN = f"_{SHOWN}"
"""The prefix of files of runs on disk until just before the commit."""
LOCK = "_raftmq.lock"


class LocalKeeper:
    """Keeps a table in a folder."""

    hidden = HIDDEN

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = -1

    def take(self) -> None:
        self._lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise TableError(
                f"another run keeps the table {self._folder}",
                "a table has one run at a time: two would write each message's file twice, and one of them in vain",
                f"fuser {self._folder / LOCK}",
                ExitCode.REFUSED,
            ) from None

    def give_back(self) -> None:
        os.close(self._lock)

    def check(self, target: object) -> None:
        """Does nothing: the lock ends with its process."""

    def commit(self, target: DeltaTarget, files: Sequence[DayFile], reached: Mapping[tuple[str, int], Position]) -> int:
        return target.commit(files, reached)

    def shown(self, files: Sequence[DayFile]) -> list[DayFile]:
        found = []
        for file in files:
            within, name = file.path.split("/")
            shown = file._replace(path=f"{within}/{name.removeprefix('_')}")
            (self._folder / file.path).rename(self._folder / shown.path)
            found.append(shown)
        for within in {file.path.split("/")[0] for file in found}:
            sync_folder(self._folder / within)
        return found

    def remove_strays(self) -> None:
        """Removes the strays now, except for files that older versions of the table name."""
        from deltalake import DeltaTable

        named = known_names(DeltaTable(str(self._folder)))
        for pattern in (f"{SHOWN}*.parquet", f"{HIDDEN}*"):
            for path in self._folder.glob(f"{DAY}=*/{pattern}"):
                if path.name not in named:
                    path.unlink(missing_ok=True)


def has_lock(folder: Path) -> bool:
    """Returns True if a run keeps the table in this folder now. Raises OSError."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
