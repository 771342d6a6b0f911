"""The Delta table of topics: its files, and the offsets up to which each queue is exported, are one commit of the Delta
log.

For each queue the Delta log holds a transaction (`txn` in Delta's protocol): its application id names the topic and
queue, and its version is the offset to read next. Four further transactions hold the identity of the topic in which the
offset counts: their versions are the topic's id, the number of the Raft group, and the two halves of the cluster's
uuid. A commit is made on the snapshot from which the offsets were read. If another writer has moved one of these
transactions since, the commit fails, and nothing of it is visible.
"""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raftmq.tables.day_files import ERROR, DayFile
from raftmq.tables.delta_log import DeltaLog, topics_told
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.json_fields import JsonField, new_fields
from raftmq.tables.store_folder import StoreFailed
from raftmq.tables.table_folder import TablePlace, delta_table, delta_told, folder_at
from raftmq.tables.table_rows import DAY, NO_MORE, RESERVED, MoreColumns, TableRows, table_schema
from raftmq_wire.topic_identity import Position, TopicIdentity

_ICEBERG = "metadata"
"""The folder of an Iceberg table's metadata, among its files."""
_FIELD = "raftmq.field"
"""The key in a column's metadata with the name of the JSON field that the column shows."""
_KEEPER = "raftmq/keeper"
"""The application id of the transaction whose version is the random number of the run that made the last commit. Only
runs on an object store write it."""
_IDENTITY = ("topic-id", "group", "cluster-high", "cluster-low")
"""The last parts of the four application ids whose transactions hold the identity of a queue's topic."""


class DeltaTarget:
    """A snapshot of a Delta table, which is read once and committed to once."""

    hidden = ""
    """The prefix of the names of files that tasks write. It is empty, because readers of a Delta table read its log,
    not its folder."""

    def __init__(
        self, folder: TablePlace, columns: Sequence[str], more: MoreColumns = NO_MORE, log: DeltaLog | None = None
    ) -> None:
        """Opens the table, or creates it with these columns and `day`. `log`: the DeltaLog that reads the table;
        nothing else may use it until the commit. Raises TableError if it has other columns, deltalake's errors, OSError
        and StoreFailed."""
        self._folder = folder
        self._more = more
        self._log = log or DeltaLog(folder)
        fixed = table_schema(columns, more)
        if self._log.read() is None:
            _create(folder, fixed)
        self._table: Any = self._log.opened()
        self._snapshot: int = self._table.version()
        there = [field.name for field in self._table.schema().fields]
        grown = there[len(fixed.names) :] if more.json else []
        if there != [*fixed.names, *grown]:
            raise TableError(
                f"the table {folder} has other columns",
                f"it has {', '.join(there)}; here are {', '.join(fixed.names)}",
                "Take another folder, or the columns of this table",
            )
        self._given()

    @property
    def fields(self) -> tuple[JsonField, ...]:
        """The fields of JSON bodies that have a column."""
        found = self._table.schema().fields if self._more.json else []
        return tuple(
            JsonField(field.metadata[_FIELD], field.name, field.type.type)
            for field in found
            if _FIELD in field.metadata
        )

    @property
    def version(self) -> int:
        """The version of the table."""
        found: int = self._table.version()
        return found

    def shape(self, rows: TableRows) -> TableRows:
        """Returns `rows` completed for this table: with its fields, and without `day`, which is in the names of folders
        and not in the files."""
        return rows._replace(fields=self.fields)

    def add_fields(self, fields: Sequence[JsonField]) -> None:
        """Adds columns, in a separate commit, and reads the table again. Raises deltalake's errors."""
        from deltalake import CommitProperties, Field

        new = [Field(each.column, each.kind, nullable=True, metadata={_FIELD: each.name}) for each in fields]
        properties = CommitProperties(topics_told(self._log.topics()))
        with delta_told(self._folder):
            self._table.alter.add_columns(new, commit_properties=properties)
        self._snapshot = self.version

    def _given(self) -> None:
        """Adds a column for each field that the user named and that has none. Raises TableError if a field has a column
        of another kind."""
        known = {field.name: field for field in self.fields}
        for name, kind in self._more.given.items():
            if name in known and known[name].kind != kind:
                raise TableError(
                    f"the table {self._folder} has the field {name} as {known[name].kind}, not as {kind}",
                    "a column keeps its type",
                    "Take another folder, or the kind that the table has",
                )
        if lacking := {name: {kind: 1} for name, kind in self._more.given.items() if name not in known}:
            self.add_fields(new_fields(lacking, self.fields, RESERVED))

    def reached(self, topic: str, queue_id: int, met: TopicIdentity | None = None) -> Position | None:
        """Returns the position to read next; None if the table has no rows of this queue. `met` is ignored, because a
        Delta table has one position for each queue, whatever the topic."""
        return _reached(self._log.transaction, topic, queue_id)

    @property
    def keeper(self) -> int | None:
        """The number of the run that made the last commit of a run; None if no run on an object store made one."""
        return self._log.transaction(_KEEPER)

    def commit(
        self, files: Sequence[DayFile], reached: Mapping[tuple[str, int], Position], keeper: int | None = None
    ) -> int:
        """Adds the files and records the positions `reached`; returns the table's version. `keeper`: the random number
        of a run. With it, any other commit fails afterwards that carries such a number and was made on a snapshot from
        before this commit. Raises LostRace if another writer was faster, deltalake's errors, OSError and StoreFailed.

        A store may carry out a commit although its answer is lost. deltalake then either repeats the commit, finds the
        version taken and reports a conflict, or reports the error. So after an error the table is read again, to see
        whether it has the files.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError

        if self.version != self._snapshot:
            raise LostRace("the table was read again since the plan was made")
        try:
            with delta_told(self._folder):
                self._write(files, reached, keeper)
                self._table.update_incremental()
        except CommitFailedError as error:
            if not self._names(files):
                raise LostRace(str(error)) from error
        except (DeltaError, OSError, StoreFailed):
            if not self._names(files):
                raise
        return self.version

    def _write(self, files: Sequence[DayFile], reached: Mapping[tuple[str, int], Position], keeper: int | None) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        topics = {*self._log.topics(), *(topic for topic, _ in reached)}
        now_ms = int(time.time() * 1000)
        adds = [
            AddAction(file.path, file.bytes, {DAY: file.day}, now_ms, data_change=True, stats=_stats(file))
            for file in files
        ]
        transactions = [] if keeper is None else [Transaction(_KEEPER, keeper)]
        for (topic, queue_id), position in reached.items():
            application, before = _application(topic, queue_id), self.reached(topic, queue_id)
            transactions.append(Transaction(application, position.offset))
            now = position.counted_in
            if now is not None and (before is None or before.counted_in != now):
                parts = zip(_IDENTITY, _parts(now), strict=True)
                transactions += [Transaction(f"{application}/{name}", version) for name, version in parts]
        self._table.create_write_transaction(
            adds,
            mode="append",
            schema=self._table.schema(),
            partition_by=[DAY],
            commit_properties=CommitProperties(topics_told(topics), app_transactions=transactions),
        )

    def _names(self, files: Sequence[DayFile]) -> bool:
        """Reads the table again; returns True if it has the first of the files, which all belong to one commit; False
        if `files` is empty. Raises deltalake's errors, OSError and StoreFailed."""
        with delta_told(self._folder):
            self._table.update_incremental()
        return bool(files) and files[0].path.rpartition("/")[2] in self.file_names()

    def file_names(self) -> set[str]:
        """Returns the names of the files of the table as it was last read."""
        return file_names(self._table)

    def known_names(self) -> set[str]:
        """Returns the names of the files of the table as it was last read, and of those that were merged away."""
        return known_names(self._table)

    def discard(self, files: Sequence[DayFile]) -> None:
        """Removes the files of a failed commit, unless the table names them after all. The commit cannot happen any
        more: its version is taken."""
        with delta_told(self._folder):
            self._table.update_incremental()
        named = self.known_names()
        folder_at(self._folder).remove([each.path for each in files if each.path.rpartition("/")[2] not in named])


def file_names(table: Any) -> set[str]:
    """Returns the names of the files of a Delta table."""
    return {uri.rpartition("/")[2] for uri in table.file_uris()}


def known_names(table: Any) -> set[str]:
    """Returns the names of the files of a Delta table, and of those that were merged away: readers of older versions
    need these until they are vacuumed. Raises deltalake's errors."""
    merged = table.vacuum(0, dry_run=True, enforce_retention_duration=False)  # a dry run: only lists the files
    return file_names(table) | {path.rpartition("/")[2] for path in merged}


def positions_in(table: Any, queues: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Position]:
    """Returns the position to read next of those of the queues that the Delta table has."""
    found = {queue: _reached(table.transaction_version, *queue) for queue in queues}
    return {queue: position for queue, position in found.items() if position is not None}


def _reached(transaction: Callable[[str], int | None], topic: str, queue_id: int) -> Position | None:
    application = _application(topic, queue_id)
    offset = transaction(application)
    if offset is None:
        return None
    parts = [part for name in _IDENTITY if (part := transaction(f"{application}/{name}")) is not None]
    return Position(offset, _identity(parts) if len(parts) == len(_IDENTITY) else None)


def _create(where: TablePlace, schema: Any) -> None:
    """Creates the table. Raises TableError if the folder has an Iceberg table, or Parquet files of another kind of
    export: a Delta export creates its table before any file."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    folder = folder_at(where)
    if isinstance(where, Path) and (where / _ICEBERG).is_dir():
        raise TableError(
            f"{folder} has an Iceberg table",
            "a Delta table made among its files would hold what they hold once more",
            f"raftmq table run … --format iceberg --to {folder}    (or take another folder)",
        )
    if folder.has_files(f"{DAY}="):
        raise TableError(
            f"{folder} has Parquet files and no Delta table",
            "a table made among them would not hold what they hold",
            "Take another folder, or --format parquet",
        )
    uri, options = folder.delta
    if isinstance(where, Path):
        where.mkdir(parents=True, exist_ok=True)  # raises an error that says what is wrong with the folder
    try:
        with delta_told(where):
            DeltaTable.create(
                uri, schema, mode="ignore", partition_by=[DAY], configuration=folder.settings, storage_options=options
            )
    except (DeltaError, StoreFailed):
        if delta_table(where) is None:  # if it exists, another export was faster, or the answer was lost
            raise


def _parts(identity: TopicIdentity) -> tuple[int, ...]:
    """Returns the identity as versions of transactions, which are signed and have 64 bits."""
    high, low = struct.unpack(">qq", uuid.UUID(identity.cluster).bytes)
    return identity.topic_id, identity.group, high, low


def _identity(parts: Sequence[int]) -> TopicIdentity:
    topic_id, group, high, low = parts
    return TopicIdentity(str(uuid.UUID(bytes=struct.pack(">qq", high, low))), group, topic_id)


def _application(topic: str, queue_id: int) -> str:
    return f"raftmq/{topic}/{queue_id}"


def _stats(file: DayFile) -> str:
    """Returns the statistics with which readers decide to skip the file."""
    low = {"topic": file.topic, "queue_id": file.queue_id, "queue_offset": file.start}
    high = {**low, "queue_offset": file.end - 1}
    nulls = dict.fromkeys(low, 0)
    if file.errors is not None:
        nulls[ERROR] = file.end - file.start - file.errors
    return json.dumps({"numRecords": file.end - file.start, "minValues": low, "maxValues": high, "nullCount": nulls})
