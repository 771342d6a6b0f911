"""`raftmq export`: writes a topic to a Parquet file, in one process and without Java."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.runtime.host.private_files import as_the_user_has_it
from raftmq.commands.messages.start_positions import from_option
from raftmq.commands.shared_options import connect, console, counted, json_option, servers_option, show
from raftmq.commands.value_types import NameType
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.arrow.tables import Selection
    from raftmq.arrow.undecodable import Undecodable
    from raftmq.client import Client
    from raftmq.client.consuming.offsets import Start

_ROW_GROUP_ROWS = 1 << 17
_ROW_GROUP_BYTES = 64 << 20


@click.command()
@click.argument("topic", type=NameType("topic"))
@click.option("--to", metavar="FILE", required=True, type=LocalPath(path_type=Path), help="The Parquet file to write.")
@from_option("Where to begin in each queue.")
@click.option(
    "--columns", metavar="NAMES", help="Columns to write, separated by commas (default: all but index and term)."
)
@click.option(
    "--on-undecodable",
    type=click.Choice(["raw", "skip", "fail"]),
    default="raw",
    show_default=True,
    help="A body that cannot be decompressed: write it as stored, leave the row out, or fail.",
)
@click.option("--leader", is_flag=True, help="Read from the leader; without it followers are read.")
@servers_option
@json_option
def export(
    topic: str,
    to: Path,
    start: Start,
    columns: str | None,
    on_undecodable: str,
    leader: bool,
    servers: str | None,
    as_json: bool,
) -> None:
    """Write the messages of TOPIC to a Parquet file, up to where the topic ends when the command begins.

    A body that cannot be decompressed is written as stored, unless --on-undecodable says otherwise, and counted.

    Needs the extra arrow: pip install 'raftmq[arrow]'. The file appears when it is complete.
    """
    from raftmq.arrow.columns import require_arrow
    from raftmq.arrow.ranges import Unreadable
    from raftmq.arrow.tables import FOLLOWER, LEADER, select
    from raftmq.arrow.undecodable import SKIP, Undecodable

    require_arrow()
    undecodable = Undecodable(on_undecodable)
    names = [name.strip() for name in columns.split(",")] if columns else None
    with connect(servers) as mq:
        try:
            selection = select(mq, topic, start, columns=names, read_from=LEADER if leader else FOLLOWER)
        except ValueError as error:
            what = str(error)
            raise LocalError(
                what, "--columns takes names of columns", f"raftmq export {topic} --to {to}", ExitCode.USAGE
            ) from None
        try:
            count = _write(mq, selection, undecodable, to, quiet=as_json)
        except Unreadable as error:
            raise LocalError(error.what, error.why, error.hint) from None
    bad = undecodable.count
    answer = {"file": str(to), "topic": topic, "messages": count, "queues": len(selection.ranges), "undecoded": bad}
    show(as_json, answer, f"{to}: {counted(count)} of {topic}")
    if bad:
        done = "left out" if on_undecodable == SKIP else "written with the body as stored"
        click.echo(f"{counted(bad)} could not be decoded: {done}", err=True)


def _write(mq: Client, selection: Selection, undecodable: Undecodable, to: Path, *, quiet: bool) -> int:
    """Writes a temporary file next to `to` and renames it, so that an interrupted command leaves no file under that
    name; returns the number of rows."""
    import pyarrow.parquet as pq

    from raftmq.arrow.columns import arrow_schema
    from raftmq.arrow.tables import read_batches

    fresh = to.with_name(to.name + ".tmp")
    written = 0
    try:
        with (
            as_the_user_has_it(),
            contextlib.closing(pq.ParquetWriter(fresh, arrow_schema(selection.columns), compression="zstd")) as writer,
            _progress(selection.messages, quiet=quiet) as advance,
        ):
            group: list[Any] = []
            for batch in read_batches(mq, selection, undecodable):
                group.append(batch)
                written += batch.num_rows
                advance(batch.num_rows)
                if _is_full(group):
                    _flush(writer, group)
            _flush(writer, group)
        fresh.replace(to)
        return written
    except OSError as error:
        raise LocalError(
            f"{to} cannot be written", error.strerror or str(error), f"ls -ld {to.parent}    (or another --to FILE)"
        ) from None
    finally:
        fresh.unlink(missing_ok=True)


def _is_full(group: list[Any]) -> bool:
    rows, size = sum(batch.num_rows for batch in group), sum(batch.nbytes for batch in group)
    return bool(rows >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES)


def _flush(writer: Any, group: list[Any]) -> None:
    """Writes all buffered batches as one row group; does nothing if there are none."""
    import pyarrow as pa

    if group:
        table = pa.Table.from_batches(group)
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        group.clear()


@contextlib.contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Any]:
    """Shows a progress bar on stderr, if that is a terminal and not `quiet`. Yields a function that advances the bar by
    a number of messages; `total` is the number of all."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    out = console(stderr=True)
    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=out, transient=True)
    bar.disable = quiet or not out.is_terminal
    with bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
