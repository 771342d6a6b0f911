"""The Delta table of topics: its files, and the offsets up to which each queue is exported, are one commit of the Delta
log.

For each queue the Delta log holds a transaction (`txn` in Delta's protocol): its application names the topic and queue,
its version is the offset to read next. Four more say in which topic this offset counts: their versions are the topic's
id, the number of the Raft group, and the two halves of the cluster's uuid. A commit is made on the snapshot from which
the offsets were read. If another writer has moved one of these transactions since, the commit fails, and nothing of it
is visible.
"""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raftmq.tables.day_files import ERROR, DayFile
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.json_fields import JsonField, new_fields
from raftmq.tables.table_rows import DAY, NO_MORE, RESERVED, MoreColumns, table_schema
from raftmq_wire.topic_identity import Position, TopicIdentity

_FIELD = "raftmq.field"
"""The key, in the metadata of a column, of the name of the field of JSON bodies that it shows."""
_TOPICS = "raftmqTopics"
"""The key in `commitInfo` of the topics that the table has."""
_COMMITS_READ = 50
"""Commits among which the newest of ours is looked for: other programs may have made some."""
_IDENTITY = ("topic-id", "group", "cluster-high", "cluster-low")
"""The last parts of the applications that together say in which topic a queue's offset counts."""


class DeltaTarget:
    """A snapshot of a Delta table, which is read once and committed to once."""

    hidden = ""
    """The prefix of the names of files that tasks write. It is empty, because readers of a Delta table read its log,
    not its folder."""

    def __init__(self, folder: Path, columns: Sequence[str], more: MoreColumns = NO_MORE) -> None:
        """Opens the table, or creates it with these columns and `day`. Raises TableError if it has other columns."""
        from deltalake import DeltaTable

        self._folder = folder
        self._more = more
        fixed = table_schema(columns, more)
        if not DeltaTable.is_deltatable(str(folder)):
            _check_no_files(folder)
            _create(folder, fixed)
        self._table = DeltaTable(str(folder))
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

    def add_fields(self, fields: Sequence[JsonField]) -> None:
        """Adds columns, in a separate commit, and reads the table again. Raises deltalake's errors."""
        from deltalake import CommitProperties, Field

        new = [Field(each.column, each.kind, nullable=True, metadata={_FIELD: each.name}) for each in fields]
        properties = CommitProperties(topics_told(topics_in(self._table)))
        self._table.alter.add_columns(new, commit_properties=properties)

    def _given(self) -> None:
        """Makes sure that the fields that the user named have columns. Raises TableError if one has another kind."""
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
        """Returns the position to read next; None if the table has no rows of this queue. `met`, the topic that is
        there now, makes no difference: a table goes on in one topic."""
        return _reached(self._table, topic, queue_id)

    def commit(self, files: Sequence[DayFile], reached: Mapping[tuple[str, int], Position]) -> int:
        """Adds the files and records the positions `reached`; returns the table's version. Raises LostRace."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        topics = {*topics_in(self._table), *(topic for topic, _ in reached)}
        now_ms = int(time.time() * 1000)
        adds = [
            AddAction(file.path, file.bytes, {DAY: file.day}, now_ms, data_change=True, stats=_stats(file))
            for file in files
        ]
        transactions = []
        for (topic, queue_id), position in reached.items():
            application, before = _application(topic, queue_id), self.reached(topic, queue_id)
            transactions.append(Transaction(application, position.offset))
            now = position.counted_in
            if now is not None and (before is None or before.counted_in != now):
                parts = zip(_IDENTITY, _parts(now), strict=True)
                transactions += [Transaction(f"{application}/{name}", version) for name, version in parts]
        try:
            self._table.create_write_transaction(
                adds,
                mode="append",
                schema=self._table.schema(),
                partition_by=[DAY],
                commit_properties=CommitProperties(topics_told(topics), app_transactions=transactions),
            )
        except CommitFailedError as error:
            raise LostRace(str(error)) from error
        self._table.update_incremental()
        return self.version

    def discard(self, files: Sequence[DayFile]) -> None:
        """Removes the files of a failed commit, unless the table names them after all."""
        from deltalake import DeltaTable

        named = DeltaTable(str(self._folder)).file_uris()
        for file in files:
            if not any(uri.endswith(file.path.rpartition("/")[2]) for uri in named):
                (self._folder / file.path).unlink(missing_ok=True)


def topics_in(table: Any) -> list[str]:
    """Returns the topics of which the table has rows, in the order of their names: each commit of ours says it."""
    for count in (1, _COMMITS_READ):  # each is a file
        for commit in table.history(count):
            if told := commit.get(_TOPICS):
                return sorted(json.loads(told))
    return []


def topics_told(topics: Iterable[str]) -> dict[str, str]:
    """Returns what a commit says of the topics of the table."""
    return {_TOPICS: json.dumps(sorted(topics), ensure_ascii=False)}


def positions_in(table: Any, queues: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Position]:
    """Returns the position to read next of those of the queues that the Delta table has."""
    found = {queue: _reached(table, *queue) for queue in queues}
    return {queue: position for queue, position in found.items() if position is not None}


def _reached(table: Any, topic: str, queue_id: int) -> Position | None:
    application = _application(topic, queue_id)
    offset: int | None = table.transaction_version(application)
    if offset is None:
        return None
    parts = [table.transaction_version(f"{application}/{name}") for name in _IDENTITY]
    return Position(offset, None if None in parts else _identity(parts))


def _check_no_files(folder: Path) -> None:
    """Raises TableError if the folder has Parquet files, since a Delta export creates its table before any file."""
    if any(folder.glob(f"{DAY}=*/*.parquet")):
        raise TableError(
            f"{folder} has Parquet files and no Delta table",
            "a table made among them would not hold what they hold",
            "Take another folder, or --format parquet",
        )


def _create(folder: Path, schema: Any) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    folder.mkdir(parents=True, exist_ok=True)
    try:
        DeltaTable.create(str(folder), schema, mode="ignore", partition_by=[DAY])
    except DeltaError:
        if not DeltaTable.is_deltatable(str(folder)):  # else another export was faster
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
