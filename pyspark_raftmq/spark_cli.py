"""`raftmq spark`: jobs over topics. Each job is also a function of `pyspark_raftmq.jobs`, for sessions of the user's
own."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyspark_raftmq.copy_commands import audit_command, rebuild_command
from pyspark_raftmq.job_running import explained, job_session, progress, session_options
from pyspark_raftmq.source_login import source_options
from pyspark_raftmq.table_command import table_command
from raftmq.arrow.columns import DEFAULT_COLUMNS
from raftmq.commands.command_group import command_group
from raftmq.commands.data.table_steps import TABLE
from raftmq.commands.shared_options import (
    json_option,
    print_table,
    servers_option,
    show,
)
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

_DAY_MS = 86_400_000

if TYPE_CHECKING:
    from pyspark_raftmq.jobs.report import LogReport
    from pyspark_raftmq.jobs.traffic import TrafficReport
    from raftmq.tables.table_folder import TablePlace


@command_group()
def spark() -> None:
    """Run jobs over topics with Spark: export, table, report, traffic; and over copies of the log: rebuild, audit."""


spark.add_command(rebuild_command)
spark.add_command(audit_command)
spark.add_command(table_command)


@spark.command("export")
@click.argument("topics", nargs=-1, required=True)
@click.option(
    "--to",
    metavar="DIR|URL",
    required=True,
    type=TABLE,
    help="The folder, or for a Delta table s3://bucket/prefix, gs://…, az://….",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["delta", "parquet"]),
    default="delta",
    show_default=True,
    help="A Delta table, or Parquet files only.",
)
@click.option(
    "--columns",
    metavar="NAMES",
    help="Columns, separated by commas (default: those that the target has; of a new one all but index and term).",
)
@click.option(
    "--accept-loss", is_flag=True, help="Go on although retention removed messages before they were exported."
)
@click.option(
    "--on-undecodable",
    type=click.Choice(["fail", "raw"]),
    default="fail",
    show_default=True,
    help="A body that cannot be decompressed: fail and name the message, or write the body as stored.",
)
@session_options
@servers_option
@json_option
def export_command(
    topics: tuple[str, ...],
    to: TablePlace,
    form: str,
    columns: str | None,
    accept_loss: bool,
    on_undecodable: str,
    master: str | None,
    memory: str,
    servers: str | None,
    as_json: bool,
) -> None:
    """Write TOPICS by day into a Delta table or a folder of Parquet files.

    Everything that is stored when the command begins is there exactly once. The target knows how far each queue is: run
    the command again to add what is new, also after it was killed.
    """
    from pyspark_raftmq.jobs.export import TARGETS, check_place, export
    from raftmq.tables.needed import check_needed
    from raftmq.tables.table_folder import absolute

    check_place(to, TARGETS[form])
    with explained():
        given = {"topic": ",".join(topics), "columns": _columns(topics, to, form, columns)}
        more = {"failOnDataLoss": str(not accept_loss).lower(), "onUndecodable": on_undecodable}
        options = source_options(given, servers, **more)
        check_needed(options.columns, "raftmq spark export …")
        with job_session(master, memory, quiet=True) as running, progress(quiet=as_json) as on_commit:
            done = export(running, options, absolute(to), kind=TARGETS[form], on_commit=on_commit)
    answer = {"table": str(to), **done._asdict()}
    if not done.messages:
        show(as_json, answer, f"{to}: nothing new")
        return
    size = f"{done.files} files, {done.bytes / 1e6:.1f} MB"
    version = "" if done.version is None else f"; version {done.version}"
    show(as_json, answer, f"{to}: {done.messages} messages of {done.queues} queues in {size}{version}")


@spark.command("report")
@click.argument("topics", nargs=-1)
@click.option(
    "--plot", "to", metavar="FILE", type=LocalPath(dir_okay=False, path_type=Path), help="An SVG or PNG file."
)
@session_options
@servers_option
@json_option
def report_command(
    topics: tuple[str, ...], to: Path | None, master: str | None, memory: str, servers: str | None, as_json: bool
) -> None:
    """Show what is in the log: messages and bytes by topic and hour, sizes, keys, lag of groups.

    Without TOPICS, all but those that the system makes for itself.
    """
    from pyspark_raftmq.jobs.report import plot, report

    given = {"topic": ",".join(topics)} if topics else {"subscribePattern": ".*"}
    with explained():
        options = source_options(given, servers)
        with job_session(master, memory, quiet=as_json) as running:
            found = report(running, options, given)
        if to is not None:
            plot(found.hours, to)
    if as_json:
        show(True, {name: [line._asdict() for line in lines] for name, lines in found._asdict().items()})
    else:
        _print_report(found)


@spark.command("traffic")
@click.argument("topics", nargs=-1)
@click.option(
    "--limits",
    "to",
    metavar="FILE",
    type=LocalPath(dir_okay=False, path_type=Path),
    help="Write the limits for raftmq quota import.",
)
@click.option(
    "--valid-days", default=14, show_default=True, type=click.IntRange(min=1), metavar="N", help="When they expire."
)
@session_options
@servers_option
@json_option
def traffic_command(
    topics: tuple[str, ...],
    to: Path | None,
    valid_days: int,
    master: str | None,
    memory: str,
    servers: str | None,
    as_json: bool,
) -> None:
    """Show hot queues and keys, and rates that the traffic so far stays below, by topic in its busiest hour.

    The file has the rates of all hours, for `raftmq quota import`. Without TOPICS, all but those that the system makes
    for itself.
    """
    from pyspark_raftmq.jobs.traffic import limits_file, traffic, write_limits

    given = {"topic": ",".join(topics)} if topics else {"subscribePattern": ".*"}
    with explained():
        options = source_options(given, servers)
        with job_session(master, memory, quiet=as_json) as running:
            found = traffic(running, options, given)
        if to is not None:
            write_limits(limits_file(found, int(time.time() * 1000), valid_days * _DAY_MS), to)
    if as_json:
        told = {
            "queues": [line._asdict() for line in found.queues],
            "keys": [line._asdict() for line in found.keys],
            "limits": [line._asdict() for line in found.limits],
        }
        show(True, {**told, "first_ms": found.first_ms, "last_ms": found.last_ms})
    else:
        _print_traffic(found)


def _columns(topics: tuple[str, ...], to: TablePlace, form: str, named: str | None) -> str:
    """Returns the columns of an export: those named on the command line, else those of the existing target, else the
    default. Raises LocalError if the target has others than those named."""
    from pyspark_raftmq.jobs.export import columns_there

    there = columns_there(to, form)
    if named is None or there is None or [name.strip() for name in named.split(",")] == [*there]:
        return named or ",".join(there or DEFAULT_COLUMNS)
    command = f"raftmq spark export {' '.join(topics)} --to"
    raise LocalError(
        f"{to} has other columns than --columns names",
        f"it has {', '.join(there)}, and goes on with these if --columns is left out",
        f"{command} {to} --format {form}    (with other columns: {command} {to}-2 --columns {named})",
        ExitCode.USAGE,
    )


def _print_traffic(found: TrafficReport) -> None:
    print_table(["topic", "queue", "messages", "of mean"], found.queues, none="no messages", left={"topic"})
    if found.keys:
        click.echo()
        print_table(["topic", "keys", "messages", "share"], found.keys)
    if found.limits:
        click.echo()
        print_table(["topic", "hour", "messages/s", "bytes/s", "learnt from spans"], found.limits)


def _print_report(found: LogReport) -> None:
    titles = ["topic", "messages", "bytes", "p50 bytes", "p99 bytes", "max bytes", "keys"]
    print_table(titles, found.topics, none="no messages")
    if found.hours:
        click.echo()
        hours = [(line.topic, _hour(line.hour_ms), line.messages, line.bytes) for line in found.hours]
        print_table(["topic", "hour (UTC)", "messages", "bytes"], hours)
    if found.groups:
        click.echo()
        print_table(["group", "topic", "lag"], found.groups)


def _hour(hour_ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(hour_ms / 1000, datetime.UTC):%Y-%m-%d %H}"
