"""An Iceberg table that one process keeps up to date."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pyiceberg.catalog import Catalog

from raftmq.tables.day_files import DayFile
from raftmq.tables.errors import CatalogError
from raftmq.tables.iceberg_catalog import asking, existing, load
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.iceberg_table import IcebergTarget, strays
from raftmq.tables.keepers import Keeper
from raftmq.tables.kept_table import KeptTable, KeptTarget, TableOptions
from raftmq.tables.local_keeper import HIDDEN, SHOWN
from raftmq.tables.missing import Queue
from raftmq.tables.table_rows import DAY
from raftmq_wire.topic_identity import Position

logger = logging.getLogger(__name__)


class KeptIceberg(KeptTable):
    """The same as KeptTable for an Iceberg table, with its folder as the location of the table. The folder's keeper
    makes sure that there is only one run, and makes its files visible. The catalog decides which files belong to the
    table."""

    folder: Path

    def __init__(
        self,
        folder: Path,
        options: TableOptions,
        place: IcebergPlace,
        kind: type[IcebergTarget] = IcebergTarget,
        *,
        keeper: Keeper | None = None,
    ) -> None:
        """`keeper`: used instead of the usual keeper of the folder."""
        super().__init__(folder, options, keeper=keeper)
        self._place = place
        self._target = kind

    def __exit__(self, *given: object) -> None:
        super().__exit__(*given)
        self._catalog.close()

    @cached_property
    def _catalog(self) -> Catalog:
        self.folder.mkdir(parents=True, exist_ok=True)
        return load(self._place, self.folder)

    def open(self) -> IcebergTarget:
        """Returns the table as it is now. Raises TableError if it has other columns, and CatalogError."""
        return self._target(self._catalog, self._place, self.folder, self.options.columns, self.options.more)

    def commit(self, target: KeptTarget, files: Sequence[DayFile], reached: Mapping[Queue, Position]) -> int:
        """Commits to the snapshot that `open` has returned; returns the table's version. Raises LostRace, TableError,
        CatalogError and OSError."""
        return target.commit(files, reached)

    def remove_strays(self) -> None:
        """Removes files of runs that the table does not name and never will. If the catalog cannot be asked which files
        the table names, all stay. Raises OSError."""
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
