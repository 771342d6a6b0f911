"""Reads the state of an Iceberg table, for `raftmq table status`."""

from __future__ import annotations

from collections.abc import Iterable

from raftmq.tables.day_files import ERROR
from raftmq.tables.iceberg_catalog import asking, existing, load
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.iceberg_table import checked
from raftmq.tables.missing import Queue
from raftmq.tables.table_folder import TablePlace, absolute
from raftmq.tables.table_status import TableFacts
from raftmq_wire.topic_identity import Position


def iceberg_facts(where: TablePlace, place: IcebergPlace) -> TableFacts:
    """Reads the newest snapshot. Raises TableError if there is no such table, or if no run can continue it; raises
    CatalogError."""
    where = absolute(where)
    with load(place, where) as catalog:
        table = existing(catalog, place, where)
        record = checked(table, where)
        with asking(f"the catalog {catalog.name}"):
            files = [task.file for task in table.scan().plan_files()]
    newest = table.metadata.current_snapshot()
    errors = next((column.field_id for column in table.schema().fields if column.name == ERROR), -1)
    fit = [(file.record_count, (file.null_value_counts or {}).get(errors)) for file in files]

    def positions(queues: Iterable[Queue]) -> dict[Queue, Position]:
        return {queue: record.queues[queue] for queue in queues if queue in record.queues}

    return TableFacts(
        version=table.metadata.last_sequence_number,
        committed_ms=table.metadata.last_updated_ms if newest is None else newest.timestamp_ms,
        sizes=[file.file_size_in_bytes for file in files],
        rows=sum(file.record_count for file in files),
        unfit=sum(rows - nulls for rows, nulls in fit if nulls is not None),
        topics=sorted({topic for topic, _ in record.queues}),
        positions=positions,
    )
