"""`raftmq bench`: measures this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import json_option, print_json, print_table
from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from raftmq.commands.bench_modes import Report


@command_group()
def bench() -> None:
    """Measure this machine: its disk, and three nodes on it."""


@bench.command("modes")
@click.option(
    "--dir",
    "directory",
    type=LocalPath(exists=True, file_okay=False, path_type=Path),
    help="A folder on the disk to measure (default: the system's folder for temporary files).",
)
@click.option(
    "--size", "sizes", type=click.IntRange(1, 4 << 20), multiple=True, help="Message size in bytes; repeatable."
)
@click.option(
    "--in-flight",
    "in_flight",
    type=click.IntRange(1, 4096),
    multiple=True,
    help="Number of sends in flight at a time; repeatable.",
)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=3.0, show_default=True, help="Duration of each measurement."
)
@click.option("--secured", is_flag=True, help="Over TLS, as a user: what up --tls --auth makes.")
@json_option
def modes(
    directory: Path | None,
    sizes: tuple[int, ...],
    in_flight: tuple[int, ...],
    seconds: float,
    secured: bool,
    as_json: bool,
) -> None:
    """Show what each acknowledgement level costs on this machine.

    Runs three nodes in a temporary directory for a minute or two, then removes them and their data.
    """
    from raftmq.commands.bench_modes import measure

    def tell(stage: str) -> None:
        if not as_json:
            click.echo(stage, err=True)

    with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=directory) as place:
        report = measure(Path(place), sizes or (1024,), in_flight or (1, 64), seconds, tell, secured=secured)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(report))
    else:
        _show(report)


def _show(report: Report) -> None:
    columns = ["bytes", "in flight", "level", "flush", "messages/s", "p50 ms", "p99 ms", "CPU µs"]
    print_table(
        columns,
        [
            [
                row.size_bytes,
                row.in_flight,
                row.level,
                row.flush,
                f"{row.messages_per_second:,}",
                row.p50_ms,
                row.p99_ms,
                row.cpu_us_per_message,
            ]
            for row in report.rows
        ],
    )
    disk, load = report.disk, report.load_before
    click.echo(
        f"disk: a write of 4 KiB and its fdatasync take {disk.sync_p50_ms} ms (p50), {disk.sync_p99_ms} ms (p99)\n"
        f"load average before the run: {load[0]:.2f} {load[1]:.2f} {load[2]:.2f}\n"
        'CPU is the total of all nodes, per message. What each level may lose: see the page "Guarantees" of the docs'
    )
