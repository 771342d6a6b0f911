"""The Iceberg table of topics. One commit adds files and records the position that each queue has reached.

The positions are a property of the table, and the commit that adds files sets it. A summary of a snapshot would not do:
snapshots of other programs (a compaction by Spark) lack it, and expire_snapshots removes the snapshots that have it.
All positions are in one property. If it is missing, the table is refused; if each queue had its own, a missing one
would make that queue begin again. A property does not go back with rollback_to_snapshot, though, which takes rows out
of the table. So the property names the snapshot that was committed with it, and the newest snapshot must be a
descendant of that one. Where expire_snapshots has removed the snapshots between, the last row of each queue must be
there instead.

A commit is made on the snapshot from which the positions were read: the catalog is asked to carry it out only if that
one is still the newest. Each commit makes a snapshot, even one that adds no file, so of two commits on one snapshot the
catalog takes one. pyiceberg's own commit is not used. If another writer was faster, it puts the files on top of what
that one wrote, and repeats the commit, which adds messages twice. It also deletes the manifests of a commit that the
catalog has refused, although the catalog may have carried out an earlier copy of the request.

If the answer to a commit is lost, the catalog may still carry the commit out later, until the newest snapshot is no
longer the one on which the commit was made. So the name of each file has the id of that snapshot, and the file is not
removed while that snapshot is the newest.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import And, EqualTo
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from raftmq.tables.day_files import DayFile
from raftmq.tables.errors import CatalogError, LostRace, TableError
from raftmq.tables.iceberg_catalog import asking, said
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.iceberg_types import KINDS, day_spec, iceberg_schema, is_by_day, same_type
from raftmq.tables.json_fields import JsonField, new_fields
from raftmq.tables.missing import Queue
from raftmq.tables.store_folder import StoreFolder
from raftmq.tables.table_folder import TablePlace, folder_at
from raftmq.tables.table_rows import DAY, NO_MORE, RESERVED, MoreColumns, TableRows, table_schema
from raftmq_wire.errors import ExitCode
from raftmq_wire.topic_identity import Position, TopicIdentity, parse_identity

logger = logging.getLogger(__name__)

POSITIONS = "raftmq.positions"
"""The property with the positions, as JSON: `Record`."""
_NONE_YET = "none"
"""The value of the property for a table to which no run has committed yet. Other programs may have committed to it."""
FIELDS = "raftmq.fields"
"""The property with the fields of JSON bodies: JSON of name -> column."""
OURS = "raftmq.commit"
"""The key that marks snapshots made by RaftMQ in their summaries."""
_AT = re.compile(r"^run-at(\d+)-")
"""The beginning of the names of files that a commit may name: it has the id of the snapshot on which the commit was
made."""
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}
"""Properties of a new table: they have old metadata files deleted, because there is a commit every few seconds."""


class Record(NamedTuple):
    """The content of the property POSITIONS: the positions, and the snapshot with which they were committed."""

    snapshot: int
    sequence: int
    queues: Mapping[Queue, Position]

    def __str__(self) -> str:
        """Returns the text of the property."""
        topics: dict[str, dict[str, list[Any]]] = {}
        for (topic, queue_id), (offset, identity) in sorted(self.queues.items()):
            topics.setdefault(topic, {})[str(queue_id)] = [offset, None if identity is None else str(identity)]
        return json.dumps({"snapshot": self.snapshot, "sequence": self.sequence, "queues": topics})


_NO_COMMIT = Record(0, 0, {})
"""The record of a table to which no run has committed."""


def parse_record(text: str) -> Record:
    """Parses the text of the property. Raises ValueError."""
    try:
        told = json.loads(text)
        queues = {
            (topic, int(queue_id)): Position(int(offset), None if identity is None else parse_identity(identity))
            for topic, found in told["queues"].items()
            for queue_id, (offset, identity) in found.items()
        }
        return Record(int(told["snapshot"]), int(told["sequence"]), queues)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{text[:100]} has another form: {said(error)}") from None


class IcebergTarget:
    """A snapshot of an Iceberg table, which is read once and committed to once."""

    def __init__(
        self,
        catalog: Catalog,
        place: IcebergPlace,
        where: TablePlace,
        columns: Sequence[str],
        more: MoreColumns = NO_MORE,
    ) -> None:
        """Opens the table, or creates it at `where`. Raises TableError if it has other columns, or if no run can
        continue it; raises CatalogError."""
        self._where = where
        self._identifier = place.identifier(where)
        self._more = more
        fixed = table_schema(columns, more)
        with asking(f"the catalog {catalog.name}"):
            self._table = load_or_create(catalog, self._identifier, where, fixed)
        self._record = checked(self._table, where)
        self._check_columns(fixed)
        self._given()

    @property
    def fields(self) -> tuple[JsonField, ...]:
        """The fields of JSON bodies that have a column."""
        kinds = {kind: name for name, kind in KINDS.items()}
        types = {column.name: column.field_type for column in self._table.schema().fields}
        told = json.loads(self._table.properties.get(FIELDS, "{}")) if self._more.json else {}
        return tuple(JsonField(name, column, kinds.get(types.get(column), "")) for name, column in told.items())

    @property
    def version(self) -> int:
        """The number of the newest snapshot, which each commit raises by one."""
        return int(self._table.metadata.last_sequence_number)

    @property
    def keeper(self) -> int | None:
        """None: a table does not record which run has committed last. The assertion in each commit takes its place."""
        return None

    def at_name(self, name: str) -> str:
        """Returns the beginning of the names of files for the next commit on this snapshot; see `at_name`."""
        return at_name(self._table, name)

    def shape(self, rows: TableRows) -> TableRows:
        """Returns `rows` completed for this table: with its fields and its schema, whose column ids the files must
        have."""
        return rows._replace(fields=self.fields, schema=schema_to_pyarrow(self._table.schema()))

    def reached(self, topic: str, queue_id: int, met: TopicIdentity | None = None) -> Position | None:
        """Returns the position to read next; None if the table has no rows of this queue. `met` is ignored, because the
        table has one position for each queue, whatever the topic."""
        return self._record.queues.get((topic, queue_id))

    def add_fields(self, fields: Sequence[JsonField]) -> None:
        """Adds columns, in a commit of its own. Raises LostRace, TableError and CatalogError."""
        self._commit([], {}, fields)

    def commit(self, files: Sequence[DayFile], reached: Mapping[Queue, Position]) -> int:
        """Adds the files, whose names begin as `at_name` says, and records the positions `reached`; returns the table's
        version. Raises LostRace, TableError, CatalogError and OSError."""
        self._commit([data_file(self._table, self._where, file.path, file.bytes) for file in files], reached)
        return self.version

    def _commit(
        self, files: Sequence[DataFile], reached: Mapping[Queue, Position], fields: Sequence[JsonField] = ()
    ) -> None:
        changes = OneCommit(self._table)
        if fields:
            with changes.update_schema() as schema:
                for field in fields:
                    schema.add_column(field.column, KINDS[field.kind])
            told = {each.name: each.column for each in (*self.fields, *fields)}
            changes.set_properties({FIELDS: json.dumps(told, ensure_ascii=False)})
        update = changes.update_snapshot(snapshot_properties={OURS: "rows" if files else "positions"})
        with update.merge_append() as append:
            for file in files:
                append.append_data_file(file)
        record = changes.record({**self._record.queues, **reached}, append.snapshot_id)
        self._table, self._record = changes.send(append.snapshot_id), record

    def _check_columns(self, fixed: Any) -> None:
        """Raises TableError if the table has other columns, a column of another type, or is not partitioned by day."""
        there = {column.name: column.field_type for column in self._table.schema().fields}
        wanted = {column.name: column.field_type for column in iceberg_schema(fixed).fields}
        fields = {field.column: field.kind for field in self.fields}
        if lost := [name for name in (*wanted, *fields) if name not in there]:
            more = [name for name in there if name not in wanted]
            raise self._other(f"it lacks {', '.join(lost)}" + (f", and has {', '.join(more)}" if more else ""))
        if more := [name for name in there if name not in wanted and name not in fields]:
            raise self._other(f"it also has {', '.join(more)}")
        for name, kind in wanted.items():
            if not same_type(there[name], kind):
                raise self._other(f"{name} is {there[name]}, not {kind}")
        if changed := [name for name, kind in fields.items() if not kind]:
            raise self._other(f"{changed[0]} is {there[changed[0]]}, not {', '.join(map(str, KINDS.values()))}")
        if not is_by_day(self._table.spec(), self._table.schema()):
            raise TableError(
                f"the table {self._identifier} is not partitioned by {DAY} alone",
                f"another program has changed it to {' '.join(str(self._table.spec()).split())}",
                "Take another folder and table, or change it back",
            )

    def _other(self, why: str) -> TableError:
        return TableError(
            f"the table {self._identifier} has other columns",
            why,
            "Take another folder and table, or the columns of this one",
        )

    def _given(self) -> None:
        """Adds a column for each field that the user named and that has none. Raises TableError if a field has a column
        of another kind."""
        known = {field.name: field for field in self.fields}
        for name, kind in self._more.given.items():
            if name in known and known[name].kind != kind:
                raise TableError(
                    f"the table {self._identifier} has the field {name} as {known[name].kind}, not as {kind}",
                    "a column keeps its type",
                    "Take another folder and table, or the kind that the table has",
                )
        if lacking := {name: {kind: 1} for name, kind in self._more.given.items() if name not in known}:
            try:
                self.add_fields(new_fields(lacking, self.fields, RESERVED))
            except LostRace as error:
                raise CatalogError(
                    f"{self._identifier} lacks columns, and another writer was faster", str(error), "Run it again"
                ) from error


class OneCommit(Transaction):  # type: ignore[misc]
    """One commit: changes that are sent to the catalog once, and that are valid only on the snapshot on which they were
    made."""

    def record(self, queues: Mapping[Queue, Position], snapshot_id: int) -> Record:
        """Adds the positions of the queues to the commit; `snapshot_id` is the snapshot that the commit makes. Returns
        the record."""
        made = Record(snapshot_id, self._table.metadata.last_sequence_number + 1, queues)
        self.set_properties({POSITIONS: str(made)})
        return made

    def expire(self, snapshot_ids: Sequence[int]) -> None:
        """Commits the removal of these snapshots from the table. Raises LostRace and CatalogError."""
        newest = AssertRefSnapshotId(snapshot_id=self._table.metadata.current_snapshot_id, ref=MAIN_BRANCH)
        self._apply((RemoveSnapshotsUpdate(snapshot_ids=[*snapshot_ids]),), (newest,))
        try:
            self._table._do_commit(self._updates, (*self._requirements, self._of_table()))
        except CommitFailedException as error:
            raise LostRace(said(error)) from error
        except Exception as error:
            raise _undecided(self._table, said(error)) from error

    def _of_table(self) -> AssertTableUUID:
        return AssertTableUUID(uuid=self._table.metadata.table_uuid)

    def send(self, snapshot_id: int) -> Table:
        """Sends the commit; returns the table after it. `snapshot_id`: the snapshot that the commit makes. If the
        catalog's answer leaves the outcome open, the table is read again and searched for it. Raises LostRace if
        another commit was faster, and CatalogError."""
        table, newest = self._table, self._table.metadata.current_snapshot_id
        try:
            table._do_commit(self._updates, (*self._requirements, self._of_table()))
            return table
        except Exception as error:  # noqa: BLE001 - whatever it is, the catalog may have carried it out
            why = error
        try:
            now = table.catalog.load_table(table.name())
        except Exception as error:  # noqa: BLE001 - see above
            raise _undecided(table, f"{said(why)}; {said(error)}") from why
        if now.metadata.table_uuid == table.metadata.table_uuid and now.metadata.snapshot_by_id(snapshot_id):
            logger.warning("the catalog carried out a commit, and its answer was %s", said(why))
            return now
        if isinstance(why, CommitFailedException) or now.metadata.current_snapshot_id != newest:
            raise LostRace(said(why)) from why
        raise _undecided(table, said(why)) from why


def _undecided(table: Table, why: str) -> CatalogError:
    return CatalogError(
        f"it is not known whether the catalog has changed {'.'.join(table.name())}",
        why,
        "Run it again: the table says it, and nothing is added twice",
        ExitCode.UNKNOWN,
        undecided=True,
    )


def load_or_create(catalog: Catalog, identifier: str, where: TablePlace, fixed: Any) -> Table:
    """Returns the table, which has the columns `fixed` if it was not there. Raises TableError if `where` has another
    kind of table, StoreFailed, and pyiceberg's errors."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        pass
    folder = folder_at(where)
    if folder.has_files("_delta_log", "") or folder.has_files(f"{DAY}="):
        raise TableError(
            f"{where} has files, and the catalog has no table {identifier}",
            "it is a Delta table, or one of another name or catalog",
            "Take another folder, or --format delta",
        )
    schema = iceberg_schema(fixed)
    catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
    try:
        return catalog.create_table(
            identifier,
            schema,
            location=location_of(where),
            partition_spec=day_spec(schema),
            properties={**_PROPERTIES, POSITIONS: _NONE_YET},
        )
    except TableAlreadyExistsError:  # another run has created the table
        return catalog.load_table(identifier)


def location_of(where: TablePlace) -> str:
    """Returns the place as Iceberg writes it: a URL, or file:// and a plain path, without the escapes of a URI."""
    return where.url if isinstance(where, StoreFolder) else f"file://{where}"


def checked(table: Table, where: TablePlace) -> Record:
    """Returns the positions of the table. Raises TableError if the table is in another place, if it has no positions,
    or if the snapshot that was committed with them is not in its history."""
    name, newest = ".".join(table.name()), table.metadata.current_snapshot()
    if table.location().rstrip("/") != location_of(where):
        raise TableError(
            f"the table {name} is not in {where}",
            f"the catalog has it in {table.location()}",
            "Take that place, or another name with --table",
        )
    record = recorded(table)
    if record is not _NO_COMMIT and not _descends(table, record):
        raise TableError(
            f"the table {name} was set back, or replaced: rows are gone that it had",
            f"its newest snapshot {newest and newest.snapshot_id} was not made on {record.snapshot}, our last one",
            f"Set the snapshot {record.snapshot} again, or take another folder and table",
        )
    return record


def recorded(table: Table) -> Record:
    """Returns the positions in the table's property, without checking its history. Raises TableError if it has none."""
    text = table.properties.get(POSITIONS)
    if text == _NONE_YET:
        return _NO_COMMIT
    try:
        return parse_record(text or "")
    except ValueError as error:
        raise TableError(
            f"the table {'.'.join(table.name())} does not say which messages it has",
            f"its property {POSITIONS} is {'missing' if not text else f'damaged: {error}'}",
            "Was it made by another program? Take another folder and table",
        ) from None


def _descends(table: Table, record: Record) -> bool:
    """Returns True if the newest snapshot is the one of the record, or descends from it. If the snapshots in between
    have expired, returns True if the last row of each queue is there."""
    last = None
    for last in ancestors_of(table.metadata.current_snapshot(), table.metadata):
        if record.snapshot in (last.snapshot_id, last.parent_snapshot_id):
            return True
    if last is None or (last.sequence_number or 0) <= record.sequence:
        return False
    return all(_has(table, topic, queue_id, position) for (topic, queue_id), position in record.queues.items())


def _has(table: Table, topic: str, queue_id: int, position: Position) -> bool:
    """Returns True if the table has the row just before the position, or if there is none before it."""
    if not position.offset:
        return True
    row = And(EqualTo("topic", topic), EqualTo("queue_id", queue_id), EqualTo("queue_offset", position.offset - 1))
    with asking(f"the catalog {table.catalog.name}"):
        return bool(table.scan(row, selected_fields=("queue_offset",), limit=1).to_arrow().num_rows)


def data_file(table: Table, where: TablePlace, path: str, size: int) -> DataFile:
    """Returns the DataFile entry for a file of `size` bytes: its day, its rows, and the statistics with which readers
    skip it. `path` is relative to the table's place. Raises OSError."""
    location, schema = f"{location_of(where)}/{path}", table.schema()
    with table.io.new_input(location).open() as stored:
        metadata = pq.read_metadata(stored)
    found = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=compute_statistics_plan(schema, table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=found.partition(table.spec(), schema),
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        equality_ids=None,
        key_metadata=None,
        **found.to_serialized_dict(),
    )


def at_name(table: Table, name: str) -> str:
    """Returns a file's name, or its beginning, with the mark of files that only a commit on the newest snapshot may
    name: `run-` becomes `run-at`, the id of that snapshot, and `-`."""
    return name.replace("run-", f"run-at{table.metadata.current_snapshot_id or 0}-", 1)


def data_files(where: TablePlace, prefix: str) -> list[str]:
    """Returns the paths, relative to the table's place, of the Parquet files of days whose names begin with `prefix`.
    Raises StoreFailed."""
    found = (path for page in folder_at(where).files(prefix) for path in page)
    return [path for path in found if path.startswith(f"{DAY}=") and path.endswith(".parquet")]


def strays(table: Table, where: TablePlace, there: Sequence[str]) -> list[str]:
    """Returns those of the files `there` that no snapshot names, and that no commit can name any more. Raises
    pyiceberg's errors.

    The files must have been listed before the table was read. Then a commit that may still name one of them was made on
    a snapshot that is at most as new as the newest one of `table`; if it is an older one, the catalog refuses it. A
    file that was written after the table was read may be for a commit on a newer snapshot.
    """
    newest, place = table.metadata.current_snapshot_id or 0, location_of(where)
    decided = [path for path in there if (at := _AT.match(path.partition("/")[2])) is None or int(at[1]) != newest]
    named = named_files(table, {f"{place}/{path}" for path in decided})
    return [path for path in decided if f"{place}/{path}" not in named]


def named_files(table: Table, wanted: set[str]) -> set[str]:
    """Returns those locations in `wanted` that a snapshot of the table names."""
    left, seen = set(wanted), set()
    newest = table.metadata.current_snapshot()
    others = [each for each in table.metadata.snapshots if newest is None or each != newest]
    for snapshot in ([newest] if newest is not None else []) + others:
        for manifest in snapshot.manifests(table.io):
            if not left:
                return wanted
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                left -= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return wanted - left
