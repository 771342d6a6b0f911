"""The place of a table: a folder on disk, or on an object store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.tables.local_folder import LocalFolder
from raftmq.tables.store_folder import StoreFolder, told

if TYPE_CHECKING:
    from deltalake import DeltaTable

TableFolder = LocalFolder | StoreFolder
TablePlace = Path | StoreFolder
"""The place of a table: a path of this machine, or a prefix of a bucket."""

_REQUEST = "Error performing"
"""The text that deltalake's errors contain if a request to the store failed."""


def folder_at(where: TablePlace) -> TableFolder:
    """Returns the TableFolder for a place."""
    return where if isinstance(where, StoreFolder) else LocalFolder(where)


def absolute(where: TablePlace) -> TablePlace:
    """Returns the place with an absolute path, so that it is valid in any working directory."""
    return where if isinstance(where, StoreFolder) else where.absolute()


def delta_table(where: TablePlace) -> DeltaTable | None:
    """Returns the newest version of the Delta table; None if there is none. Raises deltalake's errors, OSError, and
    StoreFailed."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    uri, options = folder_at(where).delta
    if isinstance(where, Path) and not (where.exists() and DeltaTable.is_deltatable(uri)):
        return None
    with delta_told(where):
        try:
            return DeltaTable(uri, storage_options=options)
        except TableNotFoundError:  # not `is_deltatable`, which blocks all other threads while a store does not answer
            return None


@contextlib.contextmanager
def delta_told(where: TablePlace) -> Iterator[None]:
    """A context in which deltalake's errors about requests to the store become StoreFailed. Texts of deltalake are not
    shown unchanged, because they may contain headers of requests."""
    from deltalake.exceptions import DeltaError

    if not isinstance(where, StoreFolder):
        yield
        return
    try:
        with told(where.url, "the Delta log"):
            yield
    except DeltaError as error:
        if _REQUEST not in str(error):
            raise
        with told(where.url, "the Delta log"):
            raise OSError(str(error)) from None
