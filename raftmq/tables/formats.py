"""Chooses the format of a table: Iceberg if a place in a catalog is given, else Delta. Only for Iceberg is pyiceberg
imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from raftmq.client.sync import Client
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.keepers import Keeper
from raftmq.tables.kept_table import KeptTable, TableOptions
from raftmq.tables.table_folder import TablePlace
from raftmq.tables.table_status import TableStatus, table_status
from raftmq.tables.upkeep import Upkeep, Upkept, compact, vacuum

if TYPE_CHECKING:
    from raftmq.tables.iceberg_table import IcebergTarget

    Kind = type[DeltaTarget] | type[IcebergTarget]


class Tending(Protocol):
    """Merges and deletes files of a table while a run adds to it; for `with`."""

    def __enter__(self) -> Tending: ...

    def __exit__(self, *_: object) -> None: ...

    def tend(self) -> Upkept:
        """Either does one step and returns its result, or begins a step in the background and returns the result of the
        previous one."""


def kept(
    where: TablePlace, options: TableOptions, kind: Kind | None = None, *, keeper: Keeper | None = None
) -> KeptTable:
    """Returns the table at `where`, to be kept up to date. `kind` and `keeper` replace the usual classes of the format
    and the place. Raises LocalError if there can be no Iceberg table at `where`."""
    if options.iceberg is None:
        assert kind is None or issubclass(kind, DeltaTarget)
        return KeptTable(where, options, kind or DeltaTarget, keeper=keeper)
    from raftmq.tables.iceberg_table import IcebergTarget
    from raftmq.tables.kept_iceberg import KeptIceberg

    assert kind is None or issubclass(kind, IcebergTarget)
    options.iceberg.check(where)
    return KeptIceberg(where, options, options.iceberg, kind or IcebergTarget, keeper=keeper)


def upkeep(where: TablePlace, place: IcebergPlace | None, every: int, keep_hours: int) -> Tending:
    """Returns the upkeep of the table during a run. `every`: the number of small files of one day from which on they
    are merged. `keep_hours`: the hours for which files stay that the newest version does not name."""
    if place is None:
        return Upkeep(where, every, keep_hours)
    from raftmq.tables.iceberg_upkeep import IcebergUpkeep

    return IcebergUpkeep(where, place, every, keep_hours)


def compacted(where: TablePlace, place: IcebergPlace | None, keep_hours: int) -> Upkept:
    """Merges the small files of each day, and deletes files that are not needed any more. Raises the errors of the
    libraries, LocalError and LostRace."""
    if place is None:
        return compact(where)._replace(deleted=vacuum(where, keep_hours).deleted)
    from raftmq.tables.iceberg_upkeep import compact_iceberg

    return compact_iceberg(where, place, keep_hours)


def status_of(mq: Client, where: TablePlace, place: IcebergPlace | None) -> TableStatus:
    """Compares the table with its topics. Raises TableError if there is no table that a run or an export made, and
    RaftMQErrors."""
    if place is None:
        return table_status(mq, where)
    from raftmq.tables.iceberg_status import iceberg_facts

    return table_status(mq, where, iceberg_facts(where, place))
