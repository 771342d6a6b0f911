"""A table that one process at a time keeps up to date.

A lock in the table's folder, or a lease on its store, makes sure of this. A new run removes the files that a killed one
has left (`keepers.py`). `raftmq table run` and `raftmq spark table` keep tables in the same way, so each goes on where
the other ended.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from raftmq.arrow.ranges import QueueRange
from raftmq.arrow.undecodable import RAW
from raftmq.client.sync_admin import Admin
from raftmq.tables.day_files import DayFile
from raftmq.tables.delta_log import DeltaLog
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import LostRace
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.json_fields import JsonField, new_fields
from raftmq.tables.keepers import Keeper, keeper_of
from raftmq.tables.missing import Kept, Queue, TableSnapshot, check_continues, kept_of, reached_by
from raftmq.tables.table_folder import TablePlace
from raftmq.tables.table_rows import NO_MORE, RESERVED, MoreColumns, TableRows, Written
from raftmq_wire.topic_identity import Position

logger = logging.getLogger(__name__)

ROUND_MESSAGES = 200_000


class TableOptions(NamedTuple):
    """The options of a table. `columns` include those that every table needs (`raftmq.tables.needed`)."""

    columns: tuple[str, ...]
    accept_loss: bool = False
    on_undecodable: str = RAW
    round_messages: int = ROUND_MESSAGES
    more: MoreColumns = NO_MORE
    iceberg: IcebergPlace | None = None
    """The table's place in a catalog if it is an Iceberg table; None for a Delta table."""


class Round(NamedTuple):
    """The result of a round. `version` is the table's, None if nothing was committed; `left`: the number of messages
    that were stored when the round began and are not in the table yet."""

    messages: int = 0
    files: int = 0
    bytes: int = 0
    version: int | None = None
    left: int = 0
    undecoded: int = 0
    reached: Mapping[Queue, Position] = {}


class KeptTarget(TableSnapshot, Protocol):
    """A snapshot of a table of some format, which is read once and committed to once."""

    @property
    def fields(self) -> tuple[JsonField, ...]:
        """The fields of JSON bodies that have a column."""

    @property
    def version(self) -> int:
        """The version of the table, which each commit raises by one."""

    def shape(self, rows: TableRows) -> TableRows:
        """Returns `rows`, made for a table without fields, completed with this table's fields and schema."""

    def add_fields(self, fields: Sequence[JsonField]) -> None:
        """Adds columns, in a commit of its own, and reads the table again."""

    def commit(self, files: Sequence[DayFile], reached: Mapping[Queue, Position]) -> int:
        """Adds the files and records the positions `reached`; returns the table's version. Raises LostRace."""


class KeptTable:
    """A table, for `with`. Its rounds are made in one thread at a time."""

    def __init__(
        self,
        folder: TablePlace,
        options: TableOptions,
        kind: type[DeltaTarget] = DeltaTarget,
        *,
        keeper: Keeper | None = None,
    ) -> None:
        """`keeper`: used instead of the usual keeper of the place."""
        self.folder = folder
        self.options = options
        self._kind = kind
        self._keeper = keeper or keeper_of(folder)
        self._log = DeltaLog(folder)

    def __enter__(self) -> KeptTable:
        """Takes the table, creates it if it does not exist, and removes the files that a killed process has left.
        Raises TableError, OSError and StoreFailed."""
        if isinstance(self.folder, Path):
            self.open()  # makes the folder in which the lock is
        self._keeper.take()
        try:
            self.open()
            self.remove_strays()
        except BaseException:
            self._keeper.give_back()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.give_back()

    @property
    def hidden(self) -> str:
        """The prefix of the names under which files of a round are written."""
        return self._keeper.hidden

    def open(self) -> KeptTarget:
        """Returns the table as it is now. Raises TableError if it has other columns, or another run has taken it
        over."""
        target = self._kind(self.folder, self.options.columns, self.options.more, self._log)
        self._keeper.check(target)
        return target

    def commit(self, target: KeptTarget, files: Sequence[DayFile], reached: Mapping[Queue, Position]) -> int:
        """Commits to the snapshot that `open` has returned; returns the table's version. Raises LostRace, deltalake's
        errors and OSError."""
        assert isinstance(target, DeltaTarget)
        return self._keeper.commit(target, files, reached)

    @property
    def rows(self) -> TableRows:
        """The rows of a table that has no fields of bodies yet; its `read` names the columns that a read must bring."""
        return TableRows(self.options.columns, self.options.more)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """A context in which files are written and committed. After an error, files that the table does not name are
        removed. Whether the commit happened is seen by reading the table."""
        try:
            yield
        except BaseException:
            self.remove_strays()
            raise

    def written(self, target: KeptTarget, write: Callable[[TableRows], Written]) -> Written:
        """Calls `write`, which writes the files of a round under hidden names. If the bodies have new fields, adds
        columns for them and has the files written again, because all files of a commit have the same columns. Raises
        LostRace, deltalake's errors, and those of `write`."""
        done = write(target.shape(self.rows))
        new = new_fields(done.met, target.fields, RESERVED)
        if not new:
            return done
        self.remove_strays()
        before = target.version
        target.add_fields(new)
        if target.version != before + 1:
            raise LostRace("another commit came between the plan and the new columns")
        logger.info("the table has new columns: %s", ", ".join(f"{field.column} {field.kind}" for field in new))
        return write(target.shape(self.rows))

    def add(
        self,
        target: KeptTarget,
        written: Sequence[DayFile],
        ranges: Sequence[QueueRange],
        changed: Mapping[Queue, Position],
    ) -> Round:
        """Commits the files, which have hidden names and hold the ranges, and the positions `changed`. Raises LostRace
        if another writer was faster, TableError if the files do not hold the ranges, deltalake's errors and OSError."""
        files = self._keeper.shown(written)
        check_continues(files, ranges)
        reached = {**changed, **reached_by(ranges)}
        version = self.commit(target, files, reached)
        messages = sum(file.end - file.start for file in files)
        return Round(messages, len(files), sum(file.bytes for file in files), version, reached=reached)

    def remove_strays(self) -> None:
        """Removes the files of runs that no version of the table names (`keepers.py`). Raises OSError and deltalake's
        errors."""
        self._keeper.remove_strays()


def ends_of(admin: Admin, topics: Sequence[str]) -> dict[Queue, Kept]:
    """Returns queue -> the range of offsets that it keeps, for all queues of the topics, as the leader reports it.
    Raises RaftMQError."""
    ends: dict[Queue, Kept] = {}
    for topic in topics:
        ends |= kept_of(topic, admin.describe_topic(topic))
    return ends
