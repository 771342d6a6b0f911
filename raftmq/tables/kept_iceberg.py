"""An Iceberg table that one process keeps up to date."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path

from pyiceberg.catalog import Catalog

from raftmq.tables.errors import CatalogError
from raftmq.tables.iceberg_catalog import asking, existing, load
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.iceberg_table import IcebergTarget, strays
from raftmq.tables.kept_table import HIDDEN, SHOWN, KeptTable, TableOptions
from raftmq.tables.table_rows import DAY

logger = logging.getLogger(__name__)


class KeptIceberg(KeptTable):
    """The same as KeptTable for an Iceberg table, with its folder as the location of the table."""

    def __init__(self, folder: Path, options: TableOptions, place: IcebergPlace) -> None:
        super().__init__(folder, options)
        self._place = place

    def __exit__(self, *given: object) -> None:
        super().__exit__(*given)
        self._catalog.close()

    @cached_property
    def _catalog(self) -> Catalog:
        self.folder.mkdir(parents=True, exist_ok=True)
        return load(self._place, self.folder)

    def open(self) -> IcebergTarget:
        """Returns the table as it is now. Raises TableError if it has other columns, and CatalogError."""
        return IcebergTarget(self._catalog, self._place, self.folder, self.options.columns, self.options.more)

    def remove_strays(self) -> None:
        """Removes files of runs that the table does not name and never will. While the catalog does not say what the
        table names, they stay. Raises OSError."""
        for path in self.folder.glob(f"{DAY}=*/{HIDDEN}*"):
            path.unlink(missing_ok=True)
        try:
            table = existing(self._catalog, self._place, self.folder)
            with asking(f"the catalog {self._catalog.name}"):
                found = [*strays(table, self.folder, f"{SHOWN}*.parquet")]
        except CatalogError as error:
            logger.warning("files that were not committed stay until the next run: %s", error.why)
            return
        for path in found:
            path.unlink(missing_ok=True)
