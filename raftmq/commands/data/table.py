"""`raftmq table`: Delta tables that follow topics, in one process and without Java."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.name_completion import with_near_miss
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import (
    connect,
    counted,
    json_option,
    plain,
    print_table,
    servers_option,
    show,
)
from raftmq.commands.stop import Stop
from raftmq.commands.value_types import DurationType, NameType
from raftmq.local_path import LocalPath
from raftmq_wire.errors import LocalError
from raftmq_wire.queue_numbers import queue_text

if TYPE_CHECKING:
    from raftmq.tables.table_run import Round
    from raftmq.tables.upkeep import Upkept

_TICK_S = 0.2
"""Interval in seconds at which the command looks for a signal between two rounds."""
_FOLDER = LocalPath(file_okay=False, path_type=Path)


@command_group()
def table() -> None:
    """Keep Delta tables up to date with topics, and show how far they are."""


@table.command()
@click.argument("topics", nargs=-1, required=True, type=NameType("topic"))
@click.option("--to", metavar="DIR", required=True, type=_FOLDER, help="The folder of the table; it is made if needed.")
@click.option("--every", type=DurationType(), default="5s", show_default=True, help="The interval between two commits.")
@click.option("--once", is_flag=True, help="Stop when the table has what was there when the command began.")
@click.option("--columns", metavar="NAMES", help="Columns, separated by commas (default: all but index and term).")
@click.option(
    "--group",
    type=NameType("group"),
    metavar="NAME",
    help="Commit the table's offsets for this consumer group: the cluster then shows, measures and finds its lag.",
)
@click.option("--accept-loss", is_flag=True, help="Go on although messages are gone that the table lacks.")
@click.option(
    "--on-undecodable",
    type=click.Choice(["raw", "fail"]),
    default="raw",
    show_default=True,
    help="A body that cannot be decompressed: write it as stored, or stop and name the message.",
)
@click.option(
    "--compact-at",
    type=click.IntRange(2),
    default=32,
    show_default=True,
    metavar="N",
    help="Merge the small files of a day when it has this many.",
)
@click.option(
    "--keep",
    type=DurationType(),
    default="7d",
    show_default=True,
    help="How long files stay that the newest version does not name; readers of older ones need them.",
)
@servers_option
@json_option
def run(
    topics: tuple[str, ...],
    to: Path,
    every: float,
    once: bool,
    columns: str | None,
    group: str | None,
    accept_loss: bool,
    on_undecodable: str,
    compact_at: int,
    keep: float,
    servers: str | None,
    as_json: bool,
) -> None:
    """Add what is new in TOPICS to a Delta table, by day, each message exactly once, until Ctrl-C.

    The table knows how far each queue is: a run that was killed goes on where the last commit ended. One run keeps a
    table at a time. Small files are merged meanwhile. While the cluster does not answer, or the disk is full, the run
    says so and tries again.

    Needs the extra table: pip install 'raftmq[table]'.
    """
    require_tables()
    from raftmq.tables.group_offsets import commit_offsets
    from raftmq.tables.needed import table_columns
    from raftmq.tables.table_run import TableOptions, TableRun
    from raftmq.tables.upkeep import Upkeep

    options = TableOptions(table_columns(columns, "raftmq table run …"), accept_loss, on_undecodable)
    total = bad = 0
    with Stop() as stop, connect(servers) as mq:
        for topic in topics:
            with with_near_miss(topic, mq.admin.topics):
                mq.admin.describe_topic(topic)
        with (
            TableRun(mq, topics, to.absolute(), options) as running,
            Upkeep(to, compact_at, int(keep / 3600)) as upkeep,
        ):
            while not stop.asked:
                began = time.monotonic()
                with _passing(to, again=not once):
                    done = running.round()
                    if done.version is not None:
                        total, bad = total + done.messages, bad + done.undecoded
                        _tell(to, done, as_json)
                        if group is not None:
                            commit_offsets(mq.admin, group, done.reached)
                    if once and not done.left:
                        break
                    if done.left:
                        continue
                with _passing(to, again=True):
                    _tell_upkeep(upkeep.tend(), as_json)
                _wait(stop, began + every)
    if not as_json:
        click.echo(f"stopped after {counted(total)}", err=True)
    if bad:
        click.echo(f"{counted(bad)} could not be decoded: written with the body as stored", err=True)


@contextlib.contextmanager
def _passing(to: Path, *, again: bool) -> Iterator[None]:
    """A context in which an error that may pass is told and nothing more, with `again`. Others are raised: the topic is
    another one, or a body cannot be decompressed."""
    from deltalake.exceptions import DeltaError

    from raftmq.arrow.undecodable import Undecoded
    from raftmq.client.errors import RaftMQError

    try:
        yield
    except Undecoded as error:
        raise LocalError(error.what, error.why, "raftmq table run … --on-undecodable raw") from None
    except (RaftMQError, OSError, DeltaError) as error:
        if not again:
            raise
        told = getattr(error, "strerror", None) or str(error)
        click.echo(f"{to} stays as it is: {plain(told)}; trying again", err=True)


def _tell_upkeep(done: Upkept, as_json: bool) -> None:
    if any(done):
        show(as_json, done._asdict(), _told(done))


def _told(done: Upkept) -> str:
    return f"{counted(done.merged, 'small file')} became {done.made}; deleted: {counted(done.deleted, 'file')}"


def _tell(to: Path, done: Round, as_json: bool) -> None:
    answer = {key: value for key, value in done._asdict().items() if key != "reached"}
    size = f"{counted(done.files, 'file')}, {done.bytes / 1e6:.1f} MB"
    left = f"; {counted(done.left)} left" if done.left else ""
    show(as_json, {"table": str(to), **answer}, f"version {done.version}: {counted(done.messages)} in {size}{left}")


def _wait(stop: Stop, until: float) -> None:
    while not stop.asked and (left := until - time.monotonic()) > 0:
        time.sleep(min(_TICK_S, left))


@table.command("status")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@servers_option
@json_option
def status_command(folder: Path, servers: str | None, as_json: bool) -> int:
    """Show how far the table in DIR is: messages it lacks by queue, their age, its files.

    Exits with 1 if the table cannot go on in a queue.
    """
    require_tables()
    from raftmq.tables.table_status import table_status

    with connect(servers) as mq:
        found = table_status(mq, folder)
    stuck = any(queue.problem for queue in found.queues)
    if as_json:
        show(True, {**found._asdict(), "queues": [queue._asdict() for queue in found.queues]})
    else:
        click.echo(f"version    {found.version}, committed at {time_text(found.committed_ms)}")
        size = f"{found.bytes / 1e6:.1f} MB"
        files = f"{counted(found.files, 'file')}, {found.small} of them small"
        click.echo(f"files      {files}; {counted(found.rows, 'row')}, {size}")
        rows = [
            (each.topic, queue_text(each.queue_id), each.offset, each.behind, f"{each.behind_s:.1f} s", each.problem)
            for each in found.queues
        ]
        print_table(["topic", "queue", "offset", "behind", "oldest", "problem"], rows, left={"topic", "problem"})
    return 1 if stuck else 0


@table.command("compact")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--keep", type=DurationType(), default="7d", show_default=True, help="As for raftmq table run.")
@json_option
def compact_command(folder: Path, keep: float, as_json: bool) -> None:
    """Merge the small files of each day of the table in DIR, and delete files that no version names.

    `raftmq table run` does it by itself. Readers and a run may be at work meanwhile.
    """
    require_tables()
    from deltalake.exceptions import DeltaError

    from raftmq.tables.upkeep import compact, vacuum

    try:
        merged = compact(folder)
        done = merged._replace(deleted=vacuum(folder, int(keep / 3600)).deleted)
    except (DeltaError, OSError) as error:
        raise LocalError(f"{folder} cannot be compacted", str(error), f"raftmq table status {folder}") from None
    show(as_json, done._asdict(), _told(done))


def require_tables() -> None:
    """Raises LocalError, which says what to install, if a package that makes Delta tables is missing."""
    missing = [name for name in ("deltalake", "pyarrow", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise LocalError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            "Delta tables are made by the extra table",
            "pip install 'raftmq[table]'",
        )
