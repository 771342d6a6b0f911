"""Keeps a Delta table up to date with topics, in one process and without Java: `raftmq table run`.

A round reads what the table lacks, at most `round_messages`, writes files by day, and commits them together with the
offsets that they reach. The table alone says where the next round goes on, so nothing is there twice and nothing is
left out, wherever a run is killed and whoever else writes to the table.

Files have hidden names until the moment before their commit. What a killed run leaves under visible names is removed
when the next one begins: a lock in the folder, which ends with its process, makes it the only one.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from raftmq.arrow.ranges import QueueRange
from raftmq.arrow.tables import BATCH_ROWS, READERS, QueueReads
from raftmq.arrow.undecodable import RAW, Undecodable
from raftmq.client.sync import Client
from raftmq.tables.day_files import DayFile, sync_folder, write_day_files
from raftmq.tables.delta_table import DAY, DeltaTarget
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.missing import Kept, Queue, check_continues, first_of, kept_of, missing, moved, reached_by
from raftmq_wire.errors import ExitCode
from raftmq_wire.topic_identity import Position

logger = logging.getLogger(__name__)

SHOWN = "run-"
"""The prefix of the names of files that a run has shown."""
HIDDEN = f"_{SHOWN}"
"""The prefix until then. Files of exports have neither."""
ROUND_MESSAGES = 200_000
LOCK = "_raftmq.lock"


class TableOptions(NamedTuple):
    """The choices of a run. `columns` include those that every table needs (`raftmq.tables.needed`)."""

    columns: tuple[str, ...]
    accept_loss: bool = False
    on_undecodable: str = RAW
    round_messages: int = ROUND_MESSAGES


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


class TableRun:
    """The rounds of one run, for `with`. Blocking; one thread."""

    def __init__(self, mq: Client, topics: Sequence[str], folder: Path, options: TableOptions) -> None:
        self._mq = mq
        self._topics = topics
        self._folder = folder
        self._options = options
        self._lock = -1

    def __enter__(self) -> TableRun:
        """Takes the table, makes it if it is not there, and removes what a killed run has left. Raises TableError and
        OSError."""
        DeltaTarget(self._folder, self._options.columns)
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
        self._remove_strays()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def round(self) -> Round:
        """Adds what the table lacks, in one commit. Raises TableError if it cannot go on where it ends, Unreadable and
        other RaftMQErrors for what cannot be read now, and OSError. After an error nothing visible is left, and the
        next round finds out whether the commit happened."""
        options = self._options
        ends: dict[Queue, Kept] = {}
        for topic in self._topics:
            ends |= kept_of(topic, self._mq.admin.describe_topic(topic))
        target = DeltaTarget(self._folder, options.columns)
        wanted = missing(target, ends, accept_loss=options.accept_loss)
        changed = moved(target, ends, accept_loss=options.accept_loss)
        chosen = first_of(wanted, options.round_messages) if wanted else []
        left = sum(each.end - each.start for each in wanted)
        if not chosen and not changed:
            return Round()
        try:
            written, undecoded = self._written(chosen)
            files = self._shown(written)
            check_continues(files, chosen)
            reached = changed | reached_by(chosen)
            version = target.commit(files, reached)
        except LostRace as error:
            logger.warning("another writer was faster, and the round begins again: %s", error)
            self._remove_strays()
            return Round(left=left)
        except BaseException:
            self._remove_strays()
            raise
        messages = sum(file.end - file.start for file in files)
        size = sum(file.bytes for file in files)
        return Round(messages, len(files), size, version, left - messages, undecoded, reached)

    def _written(self, chosen: Sequence[QueueRange]) -> tuple[list[DayFile], int]:
        """Writes the files under hidden names; returns them, and the number of bodies that could not be decoded."""
        reads, undecodable = QueueReads(self._mq), Undecodable(self._options.on_undecodable)

        def write(planned: QueueRange) -> list[DayFile]:
            batches = reads.batches(planned, self._options.columns, BATCH_ROWS, undecodable)
            return [*write_day_files(self._folder, planned.topic, planned.queue_id, batches, HIDDEN)]

        with ThreadPoolExecutor(READERS) as pool:
            files = [file for files in pool.map(write, chosen) for file in files]
        undecodable.tell(", ".join(self._topics))
        return files, undecodable.count

    def _shown(self, files: Sequence[DayFile]) -> list[DayFile]:
        """Gives the files the names under which the table has them."""
        found = []
        for file in files:
            within, name = file.path.split("/")
            shown = file._replace(path=f"{within}/{name.removeprefix('_')}")
            (self._folder / file.path).rename(self._folder / shown.path)
            found.append(shown)
        for within in {file.path.split("/")[0] for file in found}:
            sync_folder(self._folder / within)
        return found

    def _remove_strays(self) -> None:
        """Removes files of runs that no version of the table names. Those that were merged away are named by older
        versions, whose readers need them until they are vacuumed. Raises OSError and deltalake's errors."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self._folder))
        merged = table.vacuum(0, dry_run=True, enforce_retention_duration=False)  # only lists them
        named = {path.rpartition("/")[2] for path in (*table.file_uris(), *merged)}
        for pattern in (f"{SHOWN}*.parquet", f"{HIDDEN}*"):
            for path in self._folder.glob(f"{DAY}=*/{pattern}"):
                if path.name not in named:
                    path.unlink(missing_ok=True)
