"""The options of commands for Iceberg tables: which catalog has the table, and the table's name there."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.commands.data.table_steps import require_tables
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.tables.iceberg_place import IcebergPlace
    from raftmq.tables.table_folder import TablePlace

DELTA, ICEBERG = "delta", "iceberg"
_FORMAT = click.option(
    "--format",
    "table_format",
    type=click.Choice([DELTA, ICEBERG]),
    default=DELTA,
    show_default=True,
    help="The format of the table. An Iceberg table on an object store needs --catalog.",
)
_CATALOG = (
    click.option(
        "--catalog",
        metavar="NAME",
        help="The catalog of an Iceberg table, as ~/.pyiceberg.yaml names it (default: a file in the folder).",
    ),
    click.option(
        "--catalog-property",
        "properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="A property of the catalog, as pyiceberg names it: uri, warehouse, ... May be repeated.",
    ),
    click.option(
        "--table",
        "named",
        metavar="NAMESPACE.NAME",
        help="The name of an Iceberg table in its catalog (default: raftmq and the name of DIR).",
    ),
)


def iceberg_options(*, choose: bool) -> Callable[[Callable[..., Any]], Any]:
    """Adds the options to a command, which gets them as `place`: None for a Delta table. With `choose` there is an
    option for the format. Otherwise the table is an Iceberg table if the folder has one, or if a catalog is named."""

    def added_to(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def called(*first: Any, **given: Any) -> Any:
            from raftmq.tables.iceberg_place import place_of

            catalog, properties, named = given.pop("catalog"), given.pop("properties"), given.pop("named")
            place: IcebergPlace | None = place_of(catalog, properties, named)
            if choose:
                if given.pop("table_format") == DELTA:
                    _refuse_catalog(place)
                    place = None
            elif place == place_of(None, (), None) and not _has_catalog(given["folder"]):
                place = None
            if place is not None:
                place.check(first[0].to if choose else given["folder"])
            (require_tables if place is None else require_iceberg)()
            return command(*first, place=place, **given)

        result: Any = called
        for option in reversed((_FORMAT, *_CATALOG) if choose else _CATALOG):
            result = option(result)
        return result

    return added_to


def _has_catalog(where: TablePlace) -> bool:
    from raftmq.tables.iceberg_place import CATALOG_FILE

    return isinstance(where, Path) and (where / CATALOG_FILE).exists()


def _refuse_catalog(place: IcebergPlace | None) -> None:
    from raftmq.tables.iceberg_place import IcebergPlace

    if place != IcebergPlace():
        raise LocalError(
            "a Delta table has no catalog",
            "--catalog, --catalog-property and --table are for Iceberg tables",
            "the same command with --format iceberg",
            ExitCode.USAGE,
        )


def require_iceberg() -> None:
    """Raises LocalError, which says what to install, if a package that makes Iceberg tables is missing."""
    needed = ("pyiceberg", "sqlalchemy", "pyarrow", "numpy")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise LocalError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            "Iceberg tables are made by the extra iceberg",
            "pip install 'raftmq[iceberg]'",
        )
