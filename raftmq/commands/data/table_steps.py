"""Parts shared by the commands that keep a table up to date: `raftmq table run` and `raftmq spark table`."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from raftmq.commands.name_completion import with_near_miss
from raftmq.commands.shared_options import counted, plain, show
from raftmq.commands.stop import Stop
from raftmq.commands.value_types import DurationType, NameType
from raftmq.local_path import LocalPath, param_name
from raftmq.tables.store_folder import StoreFailed, is_url, store_folder
from raftmq_wire.errors import LocalError

if TYPE_CHECKING:
    from raftmq.client.sync import Client
    from raftmq.tables.formats import Tending
    from raftmq.tables.iceberg_place import IcebergPlace
    from raftmq.tables.kept_table import Round, TableOptions
    from raftmq.tables.table_folder import TablePlace
    from raftmq.tables.upkeep import Upkept

_TICK_S = 0.2
"""Interval in seconds at which a command looks for a signal between two rounds."""
SAMPLED = "json"
"""The value of --schema with which every field becomes a column when it is first met."""


_FOLDER = LocalPath(file_okay=False, path_type=Path)


class TableType(click.ParamType[Any]):
    """The place of a table: a folder of this machine, or the URL of a prefix of a bucket."""

    name = "table"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns a Path or a StoreFolder. Raises LocalError for another URL, and BadParameter as click does."""
        if isinstance(value, str) and is_url(value):
            return store_folder(value, param_name(param))
        return _FOLDER.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the folders that begin with `incomplete`."""
        return _FOLDER.shell_complete(ctx, param, incomplete)


TABLE = TableType()
_OPTIONS = (
    click.argument("topics", nargs=-1, required=True, type=NameType("topic")),
    click.option(
        "--to",
        metavar="DIR|URL",
        required=True,
        type=TABLE,
        help="Where the table is, which is made if needed: a folder, or s3://bucket/prefix, gs://…, az://….",
    ),
    click.option(
        "--every", type=DurationType(), default="5s", show_default=True, help="The interval between two commits."
    ),
    click.option("--once", is_flag=True, help="Stop when the table has what was there when the command began."),
    click.option("--columns", metavar="NAMES", help="Columns, separated by commas (default: all but index and term)."),
    click.option(
        "--schema",
        metavar="json|FILE",
        help="Columns of the fields of JSON bodies, of all that come, or of those that a file names with their types.",
    ),
    click.option("--kafka-columns", is_flag=True, help="Add the columns of Kafka's source: key, value, partition, ..."),
    click.option(
        "--group",
        type=NameType("group"),
        metavar="NAME",
        help="Commit the table's offsets for this consumer group: the cluster then shows, measures and finds its lag.",
    ),
    click.option("--accept-loss", is_flag=True, help="Go on although messages are gone that the table lacks."),
    click.option(
        "--on-undecodable",
        type=click.Choice(["raw", "fail"]),
        default="raw",
        show_default=True,
        help="A body that cannot be decompressed: write it as stored, or stop and name the message.",
    ),
    click.option(
        "--compact-at",
        type=click.IntRange(2),
        default=32,
        show_default=True,
        metavar="N",
        help="Merge the small files of a day when it has this many.",
    ),
    click.option(
        "--keep",
        type=DurationType(),
        default="7d",
        show_default=True,
        help="How long files stay that the newest version does not name; readers of older ones need them.",
    ),
)


class Wanted(NamedTuple):
    """The arguments and options of a command that keeps a table. Times are in seconds."""

    topics: tuple[str, ...]
    to: TablePlace
    every: float
    once: bool
    columns: str | None
    schema: str | None
    kafka_columns: bool
    group: str | None
    accept_loss: bool
    on_undecodable: str
    compact_at: int
    keep: float

    def options(self, command: str) -> TableOptions:
        """Returns the choices for the table. Raises LocalError, whose advice begins with `command`."""
        from raftmq.tables.json_fields import read_schema
        from raftmq.tables.kept_table import TableOptions
        from raftmq.tables.needed import table_columns
        from raftmq.tables.table_rows import MoreColumns

        schema = self.schema
        given = {} if schema is None or schema == SAMPLED else read_schema(Path(schema))
        more = MoreColumns(self.kafka_columns, schema is not None, given, grows=schema == SAMPLED)
        return TableOptions(table_columns(self.columns, command), self.accept_loss, self.on_undecodable, more=more)

    def check_topics(self, mq: Client) -> None:
        """Raises RaftMQError for a topic that does not exist; the error suggests the existing topic with the most
        similar name."""
        for topic in self.topics:
            with with_near_miss(topic, mq.admin.topics):
                mq.admin.describe_topic(topic)

    def upkeep(self, place: IcebergPlace | None = None) -> Tending:
        """Returns the upkeep, which merges and deletes files in addition to the rounds."""
        from raftmq.tables.formats import upkeep

        return upkeep(self.to, place, self.compact_at, int(self.keep / 3600))

    def committed(self, mq: Client, done: Round, *, as_json: bool) -> None:
        """Prints what a round has committed, and commits its offsets for the consumer group that is named."""
        from raftmq.tables.group_offsets import commit_offsets

        tell_round(self.to, done, as_json=as_json)
        if self.group is not None:
            commit_offsets(mq.admin, self.group, done.reached)


def table_options(command: Callable[..., Any]) -> Any:
    """Adds the arguments and options of a command that keeps a table, which gets them as one Wanted."""

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        wanted = Wanted(**{name: given.pop(name) for name in Wanted._fields})
        return command(wanted, **given)

    added: Any = called
    for option in reversed(_OPTIONS):
        added = option(added)
    return added


@contextlib.contextmanager
def passing(to: TablePlace, *, again: bool, more: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """A context for errors that may pass. With `again`, it only reports them on stderr, because the command tries
    again; without `again`, it raises them. `more`: further classes of such errors. Other errors are always raised, for
    example that a body cannot be decompressed."""
    from raftmq.arrow.undecodable import Undecoded
    from raftmq.client.errors import RaftMQError
    from raftmq.tables.errors import CatalogError, LostRace

    passes: tuple[type[Exception], ...] = (RaftMQError, OSError, StoreFailed, LostRace, *delta_errors(), *more)
    try:
        yield
    except Undecoded as error:
        raise LocalError(error.what, error.why, "the same command with --on-undecodable raw") from None
    except CatalogError as error:
        if not again:
            raise
        kept = "" if error.undecided else f"{to} stays as it is: "
        click.echo(plain(f"{kept}{error.what}: {error.why}; trying again"), err=True)
    except passes as error:
        if not again:
            raise
        told = f"{error.what}: {error.why}" if isinstance(error, LocalError) else getattr(error, "strerror", None)
        told = told or str(error)
        click.echo(f"{to} stays as it is: {plain(told)}; trying again", err=True)


def delta_errors() -> tuple[type[Exception], ...]:
    """Returns the kinds of errors of the library that makes Delta tables: none if it is not installed."""
    if importlib.util.find_spec("deltalake") is None:
        return ()
    from deltalake.exceptions import DeltaError

    return (DeltaError,)


def tend(upkeep: Tending, to: TablePlace, *, as_json: bool) -> None:
    """Begins a step of the upkeep unless one is running, and prints what the last one did."""
    with passing(to, again=True):
        done = upkeep.tend()
        if any(done):
            tell_upkept(done, as_json=as_json)


def tell_upkept(done: Upkept, *, as_json: bool) -> None:
    """Prints what a step of upkeep did."""
    merged = f"{counted(done.merged, 'small file')} became {done.made}"
    show(as_json, done._asdict(), f"{merged}; deleted: {counted(done.deleted, 'file')}")


def tell_round(to: TablePlace, done: Round, *, as_json: bool) -> None:
    """Prints what a round has committed."""
    answer = {key: value for key, value in done._asdict().items() if key != "reached"}
    size = f"{counted(done.files, 'file')}, {done.bytes / 1e6:.1f} MB"
    left = f"; {counted(done.left)} left" if done.left else ""
    show(as_json, {"table": str(to), **answer}, f"version {done.version}: {counted(done.messages)} in {size}{left}")


def wait(stop: Stop, until: float, ended: Callable[[], bool] = lambda: False) -> None:
    """Returns at the time `until` (monotonic clock), or earlier if a signal has arrived or `ended` returns True."""
    while not stop.asked and not ended() and (left := until - time.monotonic()) > 0:
        time.sleep(min(_TICK_S, left))


def require_tables() -> None:
    """Raises LocalError, which says what to install, if a package that makes Delta tables is missing."""
    missing = [name for name in ("deltalake", "pyarrow", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise LocalError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            "Delta tables are made by the extra table",
            "pip install 'raftmq[table]'",
        )
