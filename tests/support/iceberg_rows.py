"""Looks at Iceberg tables of topics through pyiceberg, as their readers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.table import Table

import raftmq
from raftmq.arrow.columns import DEFAULT_COLUMNS
from raftmq.tables.iceberg_catalog import load
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.iceberg_table import IcebergTarget
from raftmq.tables.kept_table import TableOptions
from raftmq.tables.table_folder import TablePlace
from raftmq.tables.table_run import TableRun

FILE = IcebergPlace()
"""The catalog in the folder of a table."""
OPTIONS = TableOptions(DEFAULT_COLUMNS, iceberg=FILE)


def run_of(
    mq: raftmq.Client,
    topic: str,
    folder: TablePlace,
    place: IcebergPlace = FILE,
    kind: type[IcebergTarget] = IcebergTarget,
    **more: Any,
) -> TableRun:
    """A run that keeps the table in the folder."""
    return TableRun(mq, [topic], folder, OPTIONS._replace(iceberg=place, **more), kind)


def opened(folder: TablePlace, place: IcebergPlace = FILE) -> Table:
    """The table as it is now."""
    with load(place, folder) as catalog:
        return catalog.load_table(place.identifier(folder))


def rows_in(folder: TablePlace, place: IcebergPlace = FILE) -> list[tuple[int, int]]:
    """The messages of the table."""
    table = opened(folder, place).scan(selected_fields=("queue_id", "queue_offset")).to_arrow()
    return sorted(zip(*(table[name].to_pylist() for name in ("queue_id", "queue_offset")), strict=True))


def visible(folder: Path) -> set[str]:
    """Names of files with rows."""
    return {path.name for path in folder.glob("day=*/[!_]*.parquet")}


def named(folder: TablePlace, place: IcebergPlace = FILE) -> set[str]:
    """Names of the files of the newest snapshot."""
    return {task.file.file_path.rpartition("/")[2] for task in opened(folder, place).scan().plan_files()}
