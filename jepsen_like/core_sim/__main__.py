"""`python -m jepsen_like.core_sim run|replay`; behind `raftmq sim run --core` are the same functions."""

from __future__ import annotations

import sys

import click

from jepsen_like.core_sim.campaign import run_range
from jepsen_like.core_sim.knobs import draw
from jepsen_like.core_sim.run import run_seed


@click.group()
def main() -> None:
    """The Raft core alone, under faults, in virtual time."""


@main.command()
@click.option("--first-seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--seeds", default=1000, show_default=True, type=click.IntRange(min=1))
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Processes.")
@click.option("--black-box", is_flag=True, help="Judge only what clients see.")
def run(first_seed: int, seeds: int, jobs: int, *, black_box: bool) -> None:
    """Runs a range of seeds; exit code 1 on a violation or if the seeds exercise too little."""
    sys.exit(report_range(first_seed, seeds, jobs, black_box=black_box))


def report_range(first_seed: int, seeds: int, jobs: int, *, black_box: bool = False) -> int:
    """Runs and prints; the exit code."""
    summary = run_range(first_seed, seeds, jobs=jobs, black_box=black_box)
    for verdict in summary.violations:
        click.echo(f"seed {verdict.seed}: {verdict.checker}: {verdict.detail}")
        click.echo(f"  replay: python -m jepsen_like.core_sim replay {verdict.seed}")
    shortfalls = summary.shortfalls()
    for shortfall in shortfalls:
        click.echo(f"too little: {shortfall}")
    click.echo("rare states: " + ", ".join(f"{name} {count}" for name, count in sorted(summary.seen.items())))
    click.echo(summary.line())
    return 1 if summary.violations or shortfalls else 0


@main.command()
@click.argument("seed", type=click.IntRange(min=0))
@click.option(
    "--trace",
    is_flag=True,
    help="Print every event: time, kind (1 tick, 2 message, 3 sync), node, "
    "detail, term, role, last index, commit index.",
)
@click.option("--black-box", is_flag=True, help="Judge only what clients see.")
def replay(seed: int, *, trace: bool, black_box: bool) -> None:
    """Runs one seed again, byte for byte; exit code 1 on a violation."""
    sys.exit(report_seed(seed, trace=trace, black_box=black_box))


def report_seed(seed: int, *, trace: bool = False, black_box: bool = False) -> int:
    """Replays and prints; the exit code."""
    lines: list[str] | None = [] if trace else None
    verdict = run_seed(seed, black_box=black_box, lines=lines)
    for name, value in draw(seed)._asdict().items():
        click.echo(f"{name}: {value}")
    for line in lines or ():
        click.echo(line)
    outcome = f"{verdict.checker}: {verdict.detail}" if verdict.checker else "no violation"
    click.echo(
        f"seed {seed}: {outcome}; {verdict.events} events, {verdict.acked} acknowledged, {verdict.leader_changes} "
        f"leader changes, trace {verdict.trace}"
    )
    return 0 if verdict.valid else 1


if __name__ == "__main__":
    main()
