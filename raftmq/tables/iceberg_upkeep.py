"""Keeps an Iceberg table small between the rounds that add to it: small files are merged, unneeded snapshots are
expired, and files that no snapshot names any more are removed.

Each step is a commit on the newest snapshot, as a round is. If both were made at the same time, the catalog would
refuse one, so a run does the steps between its rounds. A merge is a `replace` in Iceberg's terms, so a reader that
follows the table's snapshots sees no new rows.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles

from raftmq.tables.day_files import ROW_GROUP_ROWS
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.iceberg_catalog import asking, existing, load
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.iceberg_table import (
    OURS,
    OneCommit,
    at_name,
    checked,
    data_file,
    data_files,
    location_of,
    recorded,
    strays,
)
from raftmq.tables.local_folder import sync_folder
from raftmq.tables.table_folder import TablePlace, absolute, folder_at
from raftmq.tables.table_rows import DAY
from raftmq.tables.upkeep import SMALL_BYTES, TARGET_BYTES, Upkept

_HOUR_MS = 3_600_000
_MERGING = "_merging-"
"""The prefix of the names of files that a merge writes. A starting run, which removes the files of a killed one, leaves
these alone."""
_METADATA_HOURS = 24
"""Hours for which a file of metadata stays at least: a commit in progress names its metadata file only at its end."""
_EXPIRE_AT = 100
"""The fewest snapshots that a run expires in one commit, because each such commit writes a metadata file itself."""
_SWEEP_S = 3600
"""Seconds between two searches of a run for files that no snapshot names."""


class IcebergUpkeep:
    """The upkeep of a table between the rounds of a run, as a context."""

    def __init__(self, where: TablePlace, place: IcebergPlace, every: int, keep_hours: int) -> None:
        """`every`: the number of small files of a day from which on they are merged. `keep_hours`: as for `expire` and
        `sweep`."""
        self._where = absolute(where)
        self._place = place
        self._every = every
        self._keep_hours = keep_hours
        self._swept = time.monotonic()

    def __enter__(self) -> IcebergUpkeep:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tend(self) -> Upkept:
        """Merges the small files of a day if there are enough, and expires snapshots; every _SWEEP_S seconds, also
        removes files that no snapshot names. Raises TableError, CatalogError, StoreFailed and OSError."""
        with load(self._place, self._where) as catalog:
            table = existing(catalog, self._place, self._where)
            done, table = _merged(table, self._where, self._every)
            expire(table, self._keep_hours, _EXPIRE_AT)
            if time.monotonic() < self._swept + _SWEEP_S:
                return done
            self._swept = time.monotonic()
            return done._replace(deleted=sweep(table, self._where, self._keep_hours))


def compact_iceberg(where: TablePlace, place: IcebergPlace, keep_hours: int) -> Upkept:
    """Merges the small files of each day, a day in each commit, expires snapshots and removes files. Raises LostRace if
    another writer is faster, TableError, CatalogError, StoreFailed and OSError."""
    where = absolute(where)
    with load(place, where) as catalog:
        done, table = _merged(existing(catalog, place, where), where, 2)
        expire(table, keep_hours, 1)
        return done._replace(deleted=sweep(table, where, keep_hours))


def _merged(table: Table, where: TablePlace, at_least: int) -> tuple[Upkept, Table]:
    done = Upkept()
    for day, tasks in sorted(small_tasks(table).items()):
        if len(tasks) >= max(2, at_least):
            made, table = _merge(table, where, day, tasks)
            done = Upkept(done.merged + len(tasks), done.made + made)
    return done, table


def small_tasks(table: Table) -> dict[Any, list[FileScanTask]]:
    """Returns day -> its small files in the newest snapshot. Files of which another program has deleted rows stay as
    they are."""
    found: dict[Any, list[FileScanTask]] = {}
    with asking(f"the catalog {table.catalog.name}"):
        for task in table.scan().plan_files():
            small = task.file.file_size_in_bytes < SMALL_BYTES and task.file.spec_id == table.spec().spec_id
            if small and not task.delete_files:
                found.setdefault(task.file.partition[0], []).append(task)
    return found


def _merge(table: Table, where: TablePlace, day: Any, tasks: Sequence[FileScanTask]) -> tuple[int, Table]:
    """Writes the rows of the files into larger ones, and commits these in their place. Returns (the number of new
    files, the table after the commit)."""
    record = checked(table, where)
    made: list[tuple[str, int]] = []
    groups = [*_groups(table, tasks)]
    try:
        made += [_rewritten(table, where, part) for part in groups]
        changes = OneCommit(table)
        replace = _Replace(
            operation=Operation.OVERWRITE, transaction=changes, io=table.io, snapshot_properties={OURS: "merge"}
        )
        with replace:
            for path, size in made:
                replace.append_data_file(data_file(table, where, path, size))
            for task in tasks:
                replace.delete_data_file(task.file)
        changes.record(record.queues, replace.snapshot_id)
        return len(made), changes.send(replace.snapshot_id)
    except LostRace:
        folder_at(where).remove([path for path, _ in made])
        raise


def _groups(table: Table, tasks: Sequence[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """Yields groups of files, each of which becomes one file. The files are in the order in which their first messages
    arrived, so that the statistics of the new files, and of parts of them, let a reader skip most."""
    arrival = table.schema().find_field("store_ms")

    def first(task: FileScanTask) -> tuple[int, str]:
        least = (task.file.lower_bounds or {}).get(arrival.field_id)  # files of other programs may lack it
        return 0 if least is None else from_bytes(arrival.field_type, least), task.file.file_path

    part: list[FileScanTask] = []
    for task in sorted(tasks, key=first):
        part.append(task)
        if sum(each.file.file_size_in_bytes for each in part) >= TARGET_BYTES:
            yield part
            part = []
    if part:
        yield part


def _rewritten(table: Table, where: TablePlace, tasks: Sequence[FileScanTask]) -> tuple[str, int]:
    """Writes the rows of the files in `tasks` into one new file, which is durable when this returns. Returns its path,
    relative to the table's place, and its size; the name is one that the next commit may add to the table."""
    schema = schema_to_pyarrow(table.schema())
    day = datetime.date(1970, 1, 1) + datetime.timedelta(days=tasks[0].file.partition[0])
    within, prefix = f"{DAY}={day.isoformat()}", at_name(table, "run-merged-")
    fresh = folder_at(where).new_file(within, _MERGING if isinstance(where, Path) else prefix, "")
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows = 0
    try:
        with pq.ParquetWriter(fresh.sink, schema, compression="zstd") as writer:
            for batch in scan.to_record_batches(tasks):
                writer.write_batch(batch.cast(schema), row_group_size=ROW_GROUP_ROWS)
                rows += batch.num_rows
        if rows != sum(task.file.record_count for task in tasks):
            raise TableError(
                f"the files of {day} have {rows} rows, and the table says another number",
                "they stay as they are",
                "Run it again; report this defect",
            )
    except BaseException:
        fresh.give_up()
        raise
    name, size = fresh.finish(rows)
    if isinstance(where, Path):
        shown = f"{prefix}{name.removeprefix(_MERGING)}"
        (where / within / name).rename(where / within / shown)
        sync_folder(where / within)
        name = shown
    return f"{within}/{name}", size


class _Replace(_OverwriteFiles):  # type: ignore[misc]
    """A commit that replaces files by others with the same rows. It makes the snapshot's summary itself, because
    pyiceberg cannot make that of a `replace`."""

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        found = super()._summary(snapshot_properties or {})
        return Summary(Operation.REPLACE, **found.additional_properties)


def expire(table: Table, keep_hours: int, at_least: int) -> int:
    """Expires RaftMQ's own snapshots if at least `at_least` of them may go: those older than `keep_hours`, and, after
    an hour, those whose files are all in the next one, too. RaftMQ's newest snapshot stays, because the recorded
    positions name it. Returns the number of expired snapshots. Raises TableError if the table has no positions,
    LostRace and CatalogError."""
    now_ms = int(time.time() * 1000)
    kept = {ref.snapshot_id for ref in table.refs().values()} | {recorded(table).snapshot}
    loses = {each.parent_snapshot_id for each in table.snapshots() if _operation(each) is not Operation.APPEND}
    ids = []
    for each in table.snapshots():
        of_ours = each.summary is not None and OURS in each.summary.additional_properties
        age_hours = (now_ms - each.timestamp_ms) / _HOUR_MS
        old = age_hours >= keep_hours or (age_hours >= 1 and each.snapshot_id not in loses)
        if of_ours and old and each.snapshot_id not in kept:
            ids.append(each.snapshot_id)
    if len(ids) < at_least:
        return 0
    OneCommit(table).expire(ids)
    return len(ids)


def _operation(snapshot: Snapshot) -> Operation | None:
    return None if snapshot.summary is None else snapshot.summary.operation


def sweep(table: Table, where: TablePlace, keep_hours: int) -> int:
    """Removes files that no snapshot names and no commit can name any more: data files, and, once they are old,
    metadata files and files of a killed merge. Returns the number of removed data files. Raises CatalogError,
    StoreFailed and OSError."""
    old_s = time.time() - max(keep_hours, _METADATA_HOURS) * 3600
    folder, place = folder_at(where), location_of(where)
    there = data_files(where, "run-at")
    with asking(f"the catalog {table.catalog.name}"):
        table = table.catalog.load_table(table.name())
        found = strays(table, where, there)
        known = _metadata_of(table)
    folder.remove(found)
    old = [path for path in folder.older("metadata", "", old_s) if path.endswith((".avro", ".metadata.json"))]
    folder.remove([path for path in old if f"{place}/{path}" not in known])
    if isinstance(where, Path):  # on a store an upload shows no file before it is complete
        folder.remove(folder.older(DAY, _MERGING, old_s))
    return len(found)


def _metadata_of(table: Table) -> set[str]:
    """Returns the locations of the metadata files that the table still needs."""
    known = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        known |= {snapshot.manifest_list, *(manifest.manifest_path for manifest in snapshot.manifests(table.io))}
    return known
