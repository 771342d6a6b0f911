"""A Delta table that one process keeps up to date: it is the only one that adds to it, and it removes the leftovers of
a killed one.

Files have hidden names until the moment before their commit. What a killed process leaves under visible names is
removed when the next one begins: a lock in the folder, which ends with its process, makes it the only one. `raftmq
table run` and `raftmq spark table` keep tables in the same way, so each goes on where the other ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from raftmq.arrow.ranges import QueueRange
from raftmq.arrow.undecodable import RAW
from raftmq.client.sync_admin import Admin
from raftmq.tables.day_files import DayFile, sync_folder
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.json_fields import new_fields
from raftmq.tables.missing import Kept, Queue, check_continues, kept_of, reached_by
from raftmq.tables.table_rows import DAY, NO_MORE, RESERVED, MoreColumns, TableRows, Written
from raftmq_wire.errors import ExitCode
from raftmq_wire.topic_identity import Position

logger = logging.getLogger(__name__)

SHOWN = "run-"
"""The prefix of the names of files that a run has shown."""
HIDDEN = f"_{SHOWN}"
"""The prefix until then. Files of exports have neither."""
LOCK = "_raftmq.lock"
ROUND_MESSAGES = 200_000


class TableOptions(NamedTuple):
    """The options of a table. `columns` include those that every table needs (`raftmq.tables.needed`)."""

    columns: tuple[str, ...]
    accept_loss: bool = False
    on_undecodable: str = RAW
    round_messages: int = ROUND_MESSAGES
    more: MoreColumns = NO_MORE


class Round(NamedTuple):
    """The result of a round. `version` is the table's, None if nothing was committed; `left` are the messages that
    were there when the round began and are in no commit yet."""

    messages: int = 0
    files: int = 0
    bytes: int = 0
    version: int | None = None
    left: int = 0
    undecoded: int = 0
    reached: Mapping[Queue, Position] = {}


class KeptTable:
    """A table, for `with`. Its rounds are made in one thread at a time."""

    def __init__(self, folder: Path, options: TableOptions) -> None:
        self.folder = folder
        self.options = options
        self._lock = -1

    def __enter__(self) -> KeptTable:
        """Locks the table, makes it if it does not exist, and removes the leftovers of a killed process. Raises
        TableError and OSError."""
        self.open()
        self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise TableError(
                f"another run keeps the table {self.folder}",
                "a table has one run at a time: two would write each message's file twice, and one of them in vain",
                f"fuser {self.folder / LOCK}",
                ExitCode.REFUSED,
            ) from None
        self.remove_strays()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def open(self) -> DeltaTarget:
        """Returns the present table. Raises TableError if it has other columns."""
        return DeltaTarget(self.folder, self.options.columns, self.options.more)

    @property
    def rows(self) -> TableRows:
        """The rows of a table that has no fields of bodies yet; `read` are the columns that all of them are made of."""
        return TableRows(self.options.columns, self.options.more)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """A context in which files are written and committed. After an error no file is left that the table does not
        name; whether the commit happened, the table says."""
        try:
            yield
        except BaseException:
            self.remove_strays()
            raise

    def written(self, target: DeltaTarget, write: Callable[[TableRows], Written]) -> Written:
        """Calls `write`, which writes the files of a round under hidden names. Fields without a column get one, and
        then the files are written again: all files of a commit have the same columns. Raises LostRace, deltalake's
        errors, and those of `write`."""
        rows = self.rows._replace(fields=target.fields)
        done = write(rows)
        new = new_fields(done.met, target.fields, RESERVED)
        if not new:
            return done
        self.remove_strays()
        before = target.version
        target.add_fields(new)
        if target.version != before + 1:
            raise LostRace("another commit came between the plan and the new columns")
        logger.info("the table has new columns: %s", ", ".join(f"{field.column} {field.kind}" for field in new))
        return write(rows._replace(fields=target.fields))

    def add(
        self,
        target: DeltaTarget,
        written: Sequence[DayFile],
        ranges: Sequence[QueueRange],
        changed: Mapping[Queue, Position],
    ) -> Round:
        """Commits the files, which have hidden names and hold the ranges, and the positions `changed`. Raises LostRace
        if another writer was faster, TableError if the files do not hold the ranges, deltalake's errors and OSError."""
        files = self._shown(written)
        check_continues(files, ranges)
        reached = {**changed, **reached_by(ranges)}
        version = target.commit(files, reached)
        messages = sum(file.end - file.start for file in files)
        return Round(messages, len(files), sum(file.bytes for file in files), version, reached=reached)

    def _shown(self, files: Sequence[DayFile]) -> list[DayFile]:
        """Renames the files to their visible names."""
        found = []
        for file in files:
            within, name = file.path.split("/")
            shown = file._replace(path=f"{within}/{name.removeprefix('_')}")
            (self.folder / file.path).rename(self.folder / shown.path)
            found.append(shown)
        for within in {file.path.split("/")[0] for file in found}:
            sync_folder(self.folder / within)
        return found

    def remove_strays(self) -> None:
        """Removes files of runs that no version of the table names. Those that were merged away are named by older
        versions, whose readers need them until they are vacuumed. Raises OSError and deltalake's errors."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self.folder))
        merged = table.vacuum(0, dry_run=True, enforce_retention_duration=False)  # only lists them
        named = {path.rpartition("/")[2] for path in (*table.file_uris(), *merged)}
        for pattern in (f"{SHOWN}*.parquet", f"{HIDDEN}*"):
            for path in self.folder.glob(f"{DAY}=*/{pattern}"):
                if path.name not in named:
                    path.unlink(missing_ok=True)


def is_kept(folder: Path) -> bool:
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


def ends_of(admin: Admin, topics: Sequence[str]) -> dict[Queue, Kept]:
    """Returns what each queue of the topics keeps, as the leader reports it. Raises RaftMQError."""
    ends: dict[Queue, Kept] = {}
    for topic in topics:
        ends |= kept_of(topic, admin.describe_topic(topic))
    return ends
