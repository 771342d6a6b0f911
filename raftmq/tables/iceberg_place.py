"""The place of an Iceberg table: the catalog in which it is registered, and its name there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from raftmq.tables.store_folder import StoreFolder
from raftmq.tables.table_folder import TablePlace
from raftmq_wire.errors import ExitCode, LocalError

CATALOG_FILE = "_catalog.db"
"""The file of the default catalog, in the folder of the table. The name begins with `_`, so that Spark's
remove_orphan_files leaves the file alone."""
_UNFIT = re.compile(r"\W")
ON_STORES = "s3://"
"""The beginning of the URLs at which an Iceberg table can be. pyiceberg reaches other stores with settings of their
own, which are not those of `raftmq.tables.store_folder`."""
NAMESPACE = "raftmq"
"""The namespace of a table for which no name was given."""


class IcebergPlace(NamedTuple):
    """A catalog and a table in it. `catalog` is the name of a catalog in pyiceberg's configuration; `properties` are
    properties of pyiceberg's catalogs. Without both, the catalog is an SQLite file in the table's folder, which must
    be on disk. `table` is NAMESPACE.NAME."""

    catalog: str | None = None
    properties: Mapping[str, str] = {}
    table: str | None = None

    @property
    def is_default(self) -> bool:
        """True if the catalog is the file in the table's folder."""
        return self.catalog is None and not self.properties

    def identifier(self, where: TablePlace) -> str:
        """Returns the name of the table: by default that of its folder, in NAMESPACE."""
        folder = str(where).rstrip("/").rpartition("/")[2]
        return self.table or f"{NAMESPACE}.{_UNFIT.sub('_', folder) or 'table'}"

    def check(self, where: TablePlace) -> None:
        """Raises LocalError if there can be no Iceberg table at `where` in this catalog."""
        if not isinstance(where, StoreFolder):
            return
        if not where.url.startswith(ON_STORES):
            raise LocalError(
                f"there can be no Iceberg table at {where}",
                "an Iceberg table is in a folder or at s3://; at gs:// and az:// only a Delta table can be",
                "the same command with another place, or without the options for Iceberg",
                ExitCode.USAGE,
            )
        if self.is_default:
            raise LocalError(
                f"the Iceberg table at {where} needs a catalog",
                "only a table in a folder has its catalog in a file of this folder",
                "--catalog lake, if ~/.pyiceberg.yaml has one of this name, or --catalog-property uri=http://catalog:8181",
                ExitCode.USAGE,
            )


def place_of(catalog: str | None, properties: tuple[str, ...], table: str | None) -> IcebergPlace:
    """Returns the place that a command's options name. Raises LocalError for a property without a value, and for the
    name of a table without a namespace."""
    given: dict[str, str] = {}
    for text in properties:
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise LocalError(
                f"--catalog-property {text} has no value",
                "a property of a catalog is a name, =, and a value",
                "Write the value after it, as pyiceberg's documentation has it",
                ExitCode.USAGE,
            )
        given[name] = value
    if table is not None and not all((*table.split("."), "." in table)):
        raise LocalError(
            f"--table {table} names no namespace",
            "a catalog has its tables in namespaces",
            f"--table {NAMESPACE}.{table.strip('.') or 'sales'}",
            ExitCode.USAGE,
        )
    return IcebergPlace(catalog, given, table)
