"""The formats of tables: a Delta table, or, where a place in a catalog is given, an Iceberg table. Only for the latter
pyiceberg is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from raftmq.client.sync import Client
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.kept_table import KeptTable, TableOptions
from raftmq.tables.table_status import TableStatus, table_status
from raftmq.tables.upkeep import Upkeep, Upkept, compact, vacuum


class Tending(Protocol):
    """The upkeep of a table, for `with`."""

    def __enter__(self) -> Tending: ...

    def __exit__(self, *_: object) -> None: ...

    def tend(self) -> Upkept:
        """Does a step, or begins it and returns what the last one did."""


def kept(folder: Path, options: TableOptions) -> KeptTable:
    """Returns the table in the folder."""
    if options.iceberg is None:
        return KeptTable(folder, options)
    from raftmq.tables.kept_iceberg import KeptIceberg

    return KeptIceberg(folder, options, options.iceberg)


def upkeep(folder: Path, place: IcebergPlace | None, every: int, keep_hours: int) -> Tending:
    """Returns what merges and deletes files while a run goes on. `every`: the small files of a day at which they are
    merged."""
    if place is None:
        return Upkeep(folder, every, keep_hours)
    from raftmq.tables.iceberg_upkeep import IcebergUpkeep

    return IcebergUpkeep(folder, place, every, keep_hours)


def compacted(folder: Path, place: IcebergPlace | None, keep_hours: int) -> Upkept:
    """Merges the small files of each day, and deletes files that are not needed any more. Raises the errors of the
    libraries, LocalError and LostRace."""
    if place is None:
        return compact(folder)._replace(deleted=vacuum(folder, keep_hours).deleted)
    from raftmq.tables.iceberg_upkeep import compact_iceberg

    return compact_iceberg(folder, place, keep_hours)


def status_of(mq: Client, folder: Path, place: IcebergPlace | None) -> TableStatus:
    """Compares the table with its topics. Raises TableError if there is no table that a run or an export made, and
    RaftMQErrors."""
    if place is None:
        return table_status(mq, folder)
    from raftmq.tables.iceberg_status import iceberg_facts

    return table_status(mq, folder, lambda where: iceberg_facts(where, place))
