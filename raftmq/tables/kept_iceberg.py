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
from raftmq.tables.iceberg_table import IcebergTarget, data_files, strays
from raftmq.tables.keepers import Keeper
from raftmq.tables.kept_table import KeptTable, KeptTarget, TableOptions
from raftmq.tables.local_keeper import HIDDEN, SHOWN
from raftmq.tables.missing import Queue
from raftmq.tables.table_folder import TablePlace, folder_at
from raftmq_wire.topic_identity import Position

logger = logging.getLogger(__name__)


class KeptIceberg(KeptTable):
    """The same as KeptTable for an Iceberg table, with its folder, or its prefix on a store, as the location of the
    table. The place's keeper makes sure that there is only one run, and makes its files visible. The catalog decides
    which files belong to the table."""

    def __init__(
        self,
        folder: TablePlace,
        options: TableOptions,
        place: IcebergPlace,
        kind: type[IcebergTarget] = IcebergTarget,
        *,
        keeper: Keeper | None = None,
    ) -> None:
        """`keeper`: used instead of the usual keeper of the place."""
        super().__init__(folder, options, keeper=keeper)
        self._place = place
        self._target = kind
        self._opened: IcebergTarget | None = None

    def __exit__(self, *given: object) -> None:
        super().__exit__(*given)
        self._catalog.close()

    @cached_property
    def _catalog(self) -> Catalog:
        if isinstance(self.folder, Path):
            self.folder.mkdir(parents=True, exist_ok=True)
        return load(self._place, self.folder)

    @property
    def hidden(self) -> str:
        """The prefix of the names under which files of a round are written: it says on which snapshot the round is
        made."""
        prefix = super().hidden
        return prefix if self._opened is None else self._opened.at_name(prefix)

    def open(self) -> IcebergTarget:
        """Returns the table as it is now. Raises TableError if it has other columns, or another run has taken it over;
        raises CatalogError."""
        target = self._target(self._catalog, self._place, self.folder, self.options.columns, self.options.more)
        self._keeper.check(target)
        self._opened = target
        return target

    def commit(self, target: KeptTarget, files: Sequence[DayFile], reached: Mapping[Queue, Position]) -> int:
        """Commits to the snapshot that `open` has returned; returns the table's version. Raises LostRace, TableError,
        CatalogError and OSError."""
        return target.commit(files, reached)

    def remove_strays(self) -> None:
        """Removes files of runs that the table does not name and never will. If the catalog cannot be asked which files
        the table names, all stay. Raises OSError and StoreFailed."""
        folder = folder_at(self.folder)
        if isinstance(self.folder, Path):
            for page in folder.files(HIDDEN):
                folder.remove(page)
        there = data_files(self.folder, SHOWN)
        try:
            table = existing(self._catalog, self._place, self.folder)
            with asking(f"the catalog {self._catalog.name}"):
                found = strays(table, self.folder, there)
        except CatalogError as error:
            logger.warning("files that were not committed stay until the next run: %s", error.why)
            return
        folder.remove(found)
