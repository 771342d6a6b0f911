"""The catalog of an Iceberg table, through pyiceberg. Requests have a time limit, and files are synced to disk before
the catalog names them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, infer_catalog_type, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.utils.config import Config, merge_config
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy import URL

from raftmq.tables.errors import CatalogError, LostRace, TableError
from raftmq.tables.iceberg_place import CATALOG_FILE, IcebergPlace
from raftmq.tables.local_folder import sync_folder
from raftmq.tables.store_folder import StoreFolder
from raftmq.tables.table_folder import TablePlace
from raftmq_wire.errors import ExitCode, LocalError

TIMEOUT = "raftmq.timeout-s"
"""The name of the property with the seconds within which a REST catalog must answer."""
_TIMEOUT_S = 60.0
_IO = "py-io-impl"


def load(place: IcebergPlace, where: TablePlace) -> Catalog:
    """Returns the catalog. Raises LocalError if pyiceberg has no such catalog configured, or if a table at `where`
    needs another one; raises CatalogError if the catalog does not answer."""
    place.check(where)
    if isinstance(where, Path) and place.is_default:
        uri = URL.create("sqlite", database=str(where / CATALOG_FILE)).render_as_string()
        given: dict[str, Any] = {"type": "sql", "uri": uri}
        name, configured = "raftmq", None
    else:
        given, name = dict(place.properties), place.catalog or "raftmq"
        configured = None if place.catalog is None else Config().get_catalog_config(name)
        if configured is None and not given:
            raise LocalError(
                f"there is no catalog {name}",
                "neither ~/.pyiceberg.yaml nor the environment has one of this name",
                "Name it there, or give its properties with --catalog-property",
                ExitCode.USAGE,
            )
    own: dict[str, Any] = {_IO: f"{__name__}.{SyncedFileIO.__name__}"}
    if isinstance(where, StoreFolder):
        own |= where.iceberg
    settings = {**own, **merge_config(configured or {}, given)}
    with asking(f"the catalog {name}"):
        if (settings.get("type") or infer_catalog_type(name, settings).value) == "rest":
            return TimedRestCatalog(name, **settings)
        return load_catalog(name, **settings)


def existing(catalog: Catalog, place: IcebergPlace, where: TablePlace) -> Table:
    """Returns the table. Raises TableError if the catalog does not have it, and CatalogError."""
    name = place.identifier(where)
    with asking(f"the catalog {catalog.name}"):
        try:
            return catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            raise TableError(
                f"the catalog {catalog.name} has no table {name}",
                "no run has made it, or it has another name",
                "raftmq table run TOPIC --to DIR --format iceberg",
            ) from None


@contextmanager
def asking(whom: str) -> Iterator[None]:
    """A context for requests to a catalog that change nothing. `whom` names the catalog in errors. Every error becomes
    a CatalogError, because the errors of pyiceberg, requests and SQLAlchemy have no common base class."""
    try:
        yield
    except (LocalError, LostRace):
        raise
    except Exception as error:
        raise CatalogError(
            f"{whom} does not answer as it should",
            said(error),
            "Is it there? See --catalog, --catalog-property and ~/.pyiceberg.yaml",
            ExitCode.UNREACHABLE,
        ) from error


def said(error: BaseException) -> str:
    """Returns the text of a library's error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class TimedRestCatalog(RestCatalog):  # type: ignore[misc]
    """A REST catalog with a time limit for each answer. pyiceberg's own waits without limit."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme in ("https://", "http://"):
            session.mount(scheme, _Timed(float(self.properties.get(TIMEOUT, _TIMEOUT_S))))
        return session


class _Timed(HTTPAdapter):  # type: ignore[misc]
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def send(self, request: PreparedRequest, *given: Any, **options: Any) -> Response:
        return super().send(request, *given, **{**options, "timeout": options.get("timeout") or self._seconds})


class SyncedFileIO(PyArrowFileIO):  # type: ignore[misc]
    """Reads and writes as pyiceberg does, and syncs local files when they are closed, so that a catalog never names a
    file that a power loss removes."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, _, path = self.parse_location(location)
        if scheme != "file":
            return super().new_output(location)
        return _SyncedFile(location, path, self.fs_by_scheme(scheme, None))


class _SyncedFile(PyArrowFile):  # type: ignore[misc]
    def create(self, overwrite: bool = False) -> _SyncedStream:
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _SyncedStream(path, "wb" if overwrite else "xb")


class _SyncedStream:
    def __init__(self, path: Path, mode: str) -> None:
        self._path = path
        self._file = path.open(mode)

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync_folder(self._path.parent)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def __enter__(self) -> _SyncedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
