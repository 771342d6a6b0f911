"""`raftmq bench`: measures this machine."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import json_option, names_cluster, print_json, print_table, servers_option
from raftmq.commands.value_types import NameType
from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from raftmq.commands.bench_modes import ModesReport
    from raftmq.commands.bench_open import OpenReport

SHARES = (0.1, 0.3, 0.5, 0.8)
PLOTS = (".svg", ".png", ".pdf")


_DIRECTORY = click.option(
    "--dir",
    "directory",
    type=LocalPath(exists=True, file_okay=False, path_type=Path),
    help="A folder on the disk to measure (default: the system's folder for temporary files).",
)
_SECURED = click.option("--secured", is_flag=True, help="Three nodes over TLS, as a user: what up --tls --auth makes.")


@command_group()
def bench() -> None:
    """Measure this machine: its disk, and three nodes on it."""


@bench.command("modes")
@_DIRECTORY
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
@_SECURED
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


@bench.command("open")
@servers_option
@click.option(
    "--topic",
    type=NameType("topic"),
    metavar="TOPIC",
    default="bench",
    show_default=True,
    help="Topic of the messages.",
)
@click.option(
    "--share",
    "shares",
    type=click.FloatRange(0.01, 10),
    multiple=True,
    help="Share of the capacity, which is measured first; repeatable.  [default: 0.1 0.3 0.5 0.8]",
)
@click.option(
    "--rate", "rates", type=click.FloatRange(1, 1_000_000), multiple=True, help="Messages per second; repeatable."
)
@click.option("--size", type=click.IntRange(1, 4 << 20), default=1024, show_default=True, help="Message size in bytes.")
@click.option(
    "--seconds", type=click.FloatRange(1, 3600), default=10.0, show_default=True, help="Duration of each run."
)
@click.option("--connections", type=click.IntRange(1, 256), default=4, show_default=True, help="Connections in use.")
@click.option("--even", is_flag=True, help="Arrivals in equal distances, not as independent users make them.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the arrivals.")
@_DIRECTORY
@_SECURED
@click.option(
    "--plot", type=LocalPath(dir_okay=False, path_type=Path), metavar="FILE", help="Draw the runs: .svg, .png or .pdf."
)
@json_option
def open_loop(
    servers: str | None,
    topic: str,
    shares: tuple[float, ...],
    rates: tuple[float, ...],
    size: int,
    seconds: float,
    connections: int,
    even: bool,
    seed: int,
    directory: Path | None,
    secured: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show the latency that users meet at a given load.

    Messages arrive by a schedule, whether earlier ones were answered or not, and their latency counts from the
    scheduled moment. Runs three nodes in a temporary directory, unless --servers or --data names a cluster, in whose
    topic the messages stay.
    """
    from raftmq.commands import bench_open as work

    if plot is not None and plot.suffix not in PLOTS:
        raise click.BadParameter(f"its name ends with none of {', '.join(PLOTS)}", param_hint="--plot")

    def tell(stage: str) -> None:
        if not as_json:
            click.echo(stage, err=True)

    shape = work.Shape(size, seconds, connections, even, seed)
    with contextlib.ExitStack() as ends:
        if names_cluster(servers):
            target = ends.enter_context(work.named(servers, topic))
        else:
            target = ends.enter_context(work.three_nodes(directory, topic, secured=secured))
        report = work.measure(target, shape, shares or (() if rates else SHARES), rates, tell)
    if plot is not None:
        work.drawn(report, plot)
        tell(f"drew {plot}")
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(report))
    else:
        _show_open(report)


def _show_open(report: OpenReport) -> None:
    from raftmq.commands.bench_open import LATE_SHARE_MAX

    columns = [
        "messages/s",
        "of capacity",
        "stored/s",
        "refused",
        "unknown",
        "p50 ms",
        "p99 ms",
        "p999 ms",
        "late",
        "busy",
    ]
    print_table(
        columns,
        [
            [
                f"{run.rate:,.0f}",
                f"{run.share:g}" if run.share else "",
                f"{run.stored_per_second:,.0f}",
                sum(run.refused.values()),
                run.unknown,
                run.p50_ms,
                run.p99_ms,
                run.p999_ms,
                f"{run.late_share:.2%}",
                f"{run.busy:.0%}",
            ]
            for run in report.runs
        ],
    )
    load = report.load_before
    capacity = ""
    if report.capacity:
        busy = f"{report.capacity_busy:.0%} of the processors"
        capacity = f"capacity: {report.capacity:,.0f} messages/s with many in flight, {busy}\n"
    click.echo(
        f"{capacity}load average before the run: {load[0]:.2f} {load[1]:.2f} {load[2]:.2f}\n"
        "latencies count from the scheduled moment; late: the generator itself sent it more than 1 ms late; busy: the "
        "share of this machine's processors"
    )
    codes = sorted({code for run in report.runs for code in run.refused}, key=int)
    if codes:
        click.echo(f'refused with code {", ".join(codes)}: see the page "Wire protocol" of the docs')
    if any(run.late_share > LATE_SHARE_MAX for run in report.runs):
        latest_ms = max(run.latest_ms for run in report.runs)
        click.echo(
            f"the generator was late, by up to {latest_ms:,.0f} ms: fewer --connections, or another machine", err=True
        )


def _show(report: ModesReport) -> None:
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
