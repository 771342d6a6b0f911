"""Prints the results of seeds of the core: `raftmq sim run --core` and `raftmq sim replay SEED --core`."""

from __future__ import annotations

from pathlib import Path

import click

from jepsen_like.core_sim.campaign import run_range
from jepsen_like.core_sim.run import run_seed
from jepsen_like.core_sim.run_options import draw


def report_range(first_seed: int, seeds: int, jobs: int) -> int:
    """Runs a range of seeds; returns exit code 1 on a violation or if the seeds exercise too little."""
    summary = run_range(first_seed, seeds, jobs=jobs)
    for verdict in summary.violations:
        click.echo(f"seed {verdict.seed}: {verdict.checker}: {verdict.detail}")
        click.echo(f"  replay: raftmq sim replay {verdict.seed} --core")
    shortfalls = summary.shortfalls()
    for shortfall in shortfalls:
        click.echo(f"too little: {shortfall}")
    click.echo("rare states: " + ", ".join(f"{name} {count}" for name, count in sorted(summary.seen.items())))
    click.echo(summary.line())
    return 1 if summary.violations or shortfalls else 0


def report_seed(seed: int, trace: Path | None = None) -> int:
    """Runs one seed again, byte for byte; returns exit code 1 on a violation. The file `trace` gets every event: time,
    kind (1 tick, 2 message, 3 sync), node, detail, term, role, last index, commit index."""
    lines: list[str] | None = [] if trace is not None else None
    verdict = run_seed(seed, lines=lines)
    for name, value in draw(seed)._asdict().items():
        click.echo(f"{name}: {value}")
    if trace is not None:
        trace.write_text("".join(f"{line}\n" for line in lines or ()))
    outcome = f"{verdict.checker}: {verdict.detail}" if verdict.checker else "no violation"
    click.echo(
        f"seed {seed}: {outcome}; {verdict.events} events, {verdict.acked} acknowledged, {verdict.leader_changes} "
        f"leader changes, trace {verdict.trace}"
    )
    return 0 if verdict.valid else 1
