"""`raftmq spark rebuild` and `audit`: jobs over copies of the log, which need no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyspark_raftmq.job_running import explained, job_session, session_options
from raftmq.commands.shared_options import json_option, print_table, show
from raftmq.commands.value_types import StoreType
from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from pyspark_raftmq.jobs.audit import AuditReport
    from pyspark_raftmq.jobs.rebuild import RebuildReport
    from raftmq.arrow.log_copy import CopySource

_SHOWN = 100
_COPY = StoreType(paths=True)
_CLUSTER = click.option("--cluster", metavar="UUID", help="Which cluster's tier, if several use the store.")
DIFFERENT = 1
"""Exit code of a job that ended and found differences."""


def source_of(where: str, cluster: str | None) -> CopySource:
    """Returns the copy at `where`: a URL names a tier, anything else a folder."""
    from raftmq.arrow.log_copy import FILES, TIER, CopySource  # loads a client; --help needs none

    if "://" in where:
        return CopySource(TIER, where, cluster)
    return CopySource(FILES, str(Path(where).absolute()))


@click.command("rebuild")
@click.option(
    "--log", "log", required=True, metavar="COPY", type=_COPY, help="Where segments are read: a backup, DATA or a URL."
)
@click.option(
    "--verify",
    "rows",
    required=True,
    metavar="COPY",
    type=_COPY,
    help="Whose checkpoint is compared: a backup or DATA.",
)
@click.option(
    "--to", metavar="DIR", type=LocalPath(file_okay=False, path_type=Path), help="Write the rows as Parquet files."
)
@_CLUSTER
@session_options
@json_option
def rebuild_command(
    log: str, rows: str, to: Path | None, cluster: str | None, master: str | None, memory: str, as_json: bool
) -> int:
    """Derive consume queues and message index from the log alone, and compare them with a checkpoint.

    Each difference is named by queue, offset and position. Of a trimmed log, what the checkpoint has of earlier
    messages is taken as it is, and listed. Exit code: 0 if nothing differs, 1 if something does.
    """
    from pyspark_raftmq.jobs.rebuild import rebuild

    with explained():
        if to is not None:
            to.mkdir(parents=True)
        with job_session(master, memory, quiet=as_json) as running:
            found = rebuild(running, source_of(log, cluster), source_of(rows, None), to and to.absolute())
    if as_json:
        told = {**found._asdict(), "differences": [each._asdict() for each in found.differences]}
        show(True, {**told, "underived": [each._asdict() for each in found.underived]})
    else:
        _print_rebuild(found)
    return DIFFERENT if found.differences else 0


def _print_rebuild(found: RebuildReport) -> None:
    click.echo(f"{found.segments} segments: {found.items} messages and {found.records} keys were derived")
    for each in found.underived:
        topic = found.topics.get(each.topic_id, str(each.topic_id))
        click.echo(f"taken as they are: {topic} queue {each.queue_id}, offsets {each.start} to {each.end - 1}")
    lines = [
        (each.family, found.topics.get(each.topic_id, "?"), each.queue_id, each.offset, each.position, each.what)
        for each in found.differences[:_SHOWN]
    ]
    titles = ["rows", "topic", "queue", "offset", "position", "difference"]
    print_table(titles, lines, none="no differences", left={"rows", "topic", "difference"})
    _print_rest(len(found.differences))


@click.command("audit")
@click.argument("copies", nargs=-1, required=True, metavar="COPY...", type=_COPY)
@_CLUSTER
@session_options
@json_option
def audit_command(copies: tuple[str, ...], cluster: str | None, master: str | None, memory: str, as_json: bool) -> int:
    """Compare copies of one log with each other: backups of several nodes, their directories, the tier's URL.

    Every entry is checked, and chunks of 1 MiB are compared. Exit code: 0 if nothing was found, 1 if something was.
    """
    from pyspark_raftmq.jobs.audit import audit

    with explained(), job_session(master, memory, quiet=as_json) as running:
        found = audit(running, [source_of(each, cluster) for each in copies])
    if as_json:
        show(True, {**found._asdict(), "findings": [each._asdict() for each in found.findings]})
    else:
        _print_audit(found)
    return DIFFERENT if found.findings else 0


def _print_audit(found: AuditReport) -> None:
    click.echo(
        f"{found.copies} copies, {found.segments} segments, {found.bytes} bytes read; {found.alone} segments are in "
        "one copy only"
    )
    lines = [(each.copy, "" if each.position < 0 else each.position, each.what) for each in found.findings[:_SHOWN]]
    print_table(["copy", "position", "finding"], lines, none="nothing was found", left={"copy", "finding"})
    _print_rest(len(found.findings))


def _print_rest(count: int) -> None:
    if count > _SHOWN:
        click.echo(f"and {count - _SHOWN} more; --json lists all")
