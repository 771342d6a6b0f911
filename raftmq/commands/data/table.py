"""`raftmq table`: Delta and Iceberg tables that follow topics, in one process and without Java."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.data.iceberg_options import iceberg_options
from raftmq.commands.data.table_steps import (
    TABLE,
    Wanted,
    delta_errors,
    passing,
    table_options,
    tell_upkept,
    tend,
    wait,
)
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import (
    connect,
    counted,
    json_option,
    print_table,
    servers_option,
    show,
)
from raftmq.commands.stop import Stop
from raftmq.commands.value_types import DurationType
from raftmq_wire.errors import LocalError
from raftmq_wire.queue_numbers import queue_text

if TYPE_CHECKING:
    from raftmq.tables.iceberg_place import IcebergPlace
    from raftmq.tables.table_folder import TablePlace


@command_group()
def table() -> None:
    """Keep Delta and Iceberg tables up to date with topics, and show how far they are."""


@table.command()
@table_options
@iceberg_options(choose=True)
@servers_option
@json_option
def run(wanted: Wanted, place: IcebergPlace | None, servers: str | None, as_json: bool) -> None:
    """Add what is new in TOPICS to a table, by day, each message exactly once, until Ctrl-C.

    The table knows how far each queue is: a run that was killed goes on where the last commit ended. One run keeps a
    table at a time. Small files are merged meanwhile. While the cluster does not answer, or the disk is full, the run
    says so and tries again.

    Needs the extra table: pip install 'raftmq[table]'; for Iceberg, raftmq[iceberg].
    """
    from raftmq.tables.table_folder import absolute
    from raftmq.tables.table_run import TableRun

    options, to = wanted.options("raftmq table run …")._replace(iceberg=place), wanted.to
    total = bad = 0
    with Stop() as stop, connect(servers) as mq:
        wanted.check_topics(mq)
        with TableRun(mq, wanted.topics, absolute(to), options) as running, wanted.upkeep(place) as upkeep:
            while not stop.asked:
                began = time.monotonic()
                with passing(to, again=not wanted.once):
                    done = running.round()
                    if done.version is not None:
                        total, bad = total + done.messages, bad + done.undecoded
                        wanted.committed(mq, done, as_json=as_json)
                    if wanted.once and not done.left:
                        break
                    if done.left:
                        continue
                tend(upkeep, to, as_json=as_json)
                wait(stop, began + wanted.every)
    if not as_json:
        click.echo(f"stopped after {counted(total)}", err=True)
    if bad:
        click.echo(f"{counted(bad)} could not be decoded: written with the body as stored", err=True)


@table.command("status")
@click.argument("folder", metavar="DIR|URL", type=TABLE)
@iceberg_options(choose=False)
@servers_option
@json_option
def status_command(folder: TablePlace, place: IcebergPlace | None, servers: str | None, as_json: bool) -> int:
    """Show how far the table is: messages it lacks by queue, their age, its files, errors.

    Exits with 1 if the table cannot go on in a queue.
    """
    from raftmq.tables.formats import status_of

    with connect(servers) as mq:
        found = status_of(mq, folder, place)
    stuck = bool(found.gone) or any(queue.problem for queue in found.queues)
    if as_json:
        show(True, {**found._asdict(), "queues": [queue._asdict() for queue in found.queues]})
    else:
        run = "a run keeps it" if found.kept else "no run keeps it"
        click.echo(f"version    {found.version}, committed at {time_text(found.committed_ms)}; {run}")
        size = f"{found.bytes / 1e6:.1f} MB"
        files = f"{counted(found.files, 'file')}, {found.small} of them small"
        click.echo(f"files      {files}; {counted(found.rows, 'row')}, {size}")
        if found.unfit:
            click.echo(f"errors     {counted(found.unfit, 'row')} in which the body does not fit: see _error and _raw")
        for topic in found.gone:
            click.echo(f"problem    the topic {topic} is gone")
        click.echo(f"behind     {counted(found.behind)}, the oldest {found.behind_s:.1f} s old")
        rows = [
            (each.topic, queue_text(each.queue_id), each.offset, each.behind, f"{each.behind_s:.1f} s", each.problem)
            for each in found.queues
        ]
        print_table(["topic", "queue", "offset", "behind", "oldest", "problem"], rows, left={"topic", "problem"})
    return 1 if stuck else 0


@table.command("compact")
@click.argument("folder", metavar="DIR|URL", type=TABLE)
@iceberg_options(choose=False)
@click.option("--keep", type=DurationType(), default="7d", show_default=True, help="As for raftmq table run.")
@json_option
def compact_command(folder: TablePlace, place: IcebergPlace | None, keep: float, as_json: bool) -> None:
    """Merge the small files of each day of a table, and delete files that no version names.

    `raftmq table run` does it by itself. Readers and a run may be at work meanwhile.
    """
    from raftmq.tables.errors import LostRace
    from raftmq.tables.formats import compacted

    failed: tuple[type[Exception], ...] = (OSError, LostRace, *delta_errors())
    try:
        done = compacted(folder, place, int(keep / 3600))
    except failed as error:
        raise LocalError(f"{folder} cannot be compacted", str(error), f"raftmq table status {folder}") from None
    tell_upkept(done, as_json=as_json)
