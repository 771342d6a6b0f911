"""`raftmq sim`: searches for broken promises in simulated time, replays a seed that broke one, and shrinks it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.commands.command_group import command_group
from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from jepsen_like.sim.result import SimResult

BUGS_MODULE = "jepsen_like.seeded_bugs.cli"
"""The module with the command `bugs`. It must be quick to import, and must not import this module."""
SHOWN_MAX = 5
"""The most violations that are printed per seed."""


@command_group()
def sim() -> None:
    """Run whole clusters in simulated time under faults; a seed repeats its run exactly."""


@sim.command()
@click.option("--first-seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--seeds", default=100, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Processes.")
@click.option(
    "--core", is_flag=True, help="Only the Raft core: no network protocol, no clients; a hundred times faster."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def run(first_seed: int, seeds: int, jobs: int, *, core: bool, as_json: bool) -> int:
    """Search a range of seeds.

    Exit code: 0 nothing found, 1 a promise was broken or the seeds were too easy to prove anything.
    """
    if core:
        if as_json:
            raise click.UsageError("--core prints text only; leave --json out")
        from jepsen_like.core_sim.report import report_range

        return report_range(first_seed, seeds, jobs)
    from jepsen_like.sim.campaign import run_range
    from raftmq.commands.shared_options import ended_like_ctrl_c, print_json

    with ended_like_ctrl_c():
        summary = run_range(first_seed, seeds, jobs=jobs, heard=_quiet if as_json else _show_violations)
    shortfalls = summary.shortfalls()
    if as_json:
        print_json(summary.as_dict())
    else:
        click.echo("rare states: " + ", ".join(f"{name} {count}" for name, count in sorted(summary.sometimes.items())))
        for shortfall in shortfalls:
            click.echo(f"too little: {shortfall}")
        click.echo(summary.line())
    return 1 if summary.failing or shortfalls else 0


def _quiet(verdict: SimResult) -> None:
    """Prints nothing: with --json the output comes at the end."""


def _show_violations(verdict: SimResult) -> None:
    for violation in verdict.violations[:SHOWN_MAX]:
        where = f"{violation.at_s:.4f} s, event {violation.event}"
        click.echo(f"seed {verdict.seed}: {violation.checker}: {violation.what} (at {where})")
    if verdict.violations:
        click.echo(f"  replay: raftmq sim replay {verdict.seed}")


@sim.command()
@click.argument("seed", type=click.IntRange(min=0))
@click.option("--core", is_flag=True, help="A seed of the core-only simulator.")
@click.option(
    "--trace",
    type=LocalPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the events to this file instead of the terminal.",
)
def replay(seed: int, *, core: bool, trace: Path | None) -> int:
    """Run one seed again, event for event, and print its story. Exit code: 0 nothing found, 1 a promise was broken."""
    if core:
        from jepsen_like.core_sim.report import report_seed

        return report_seed(seed, trace)
    from jepsen_like.sim.faults.fault_plan import plan
    from jepsen_like.sim.groups.second_group import options_of
    from jepsen_like.sim.operator import tasks
    from jepsen_like.sim.options import draw
    from jepsen_like.sim.world import run_seed

    options = draw(seed)
    click.echo(f"options: {options.describe()}")
    click.echo("plan:")
    for fault in plan(options):
        click.echo(f"  {fault.describe()}")
    if options.second:
        click.echo("plan of the second group:")
        for fault in plan(options_of(options)):
            click.echo(f"  {fault.describe()}")
    wanted = ", ".join(f"{task.kind} {task.node}" for task in tasks(options))
    click.echo(f"operator: {wanted or 'changes nothing'}")
    lines: list[str] = []
    tell: Callable[[str], None] = lines.append if trace is not None else click.echo
    verdict = run_seed(seed, trace=tell)
    if trace is not None:
        trace.write_text("\n".join(lines) + "\n")
    _show_violations(verdict)
    outcome = f"{len(verdict.violations)} violations" if verdict.violations else "no violation"
    click.echo(
        f"seed {seed}: {outcome}; {verdict.acked} operations acknowledged, {verdict.unknown} unknown, "
        f"{sum(verdict.faults.values())} faults, {verdict.leader_changes} leader changes, {verdict.events} events in "
        f"{verdict.virtual_s:.1f} simulated seconds, hash {verdict.hash}"
    )
    return 1 if verdict.violations else 0


@sim.command()
@click.argument("seed", type=click.IntRange(min=0))
@click.option("--runs", default=60, show_default=True, type=click.IntRange(min=1), help="Maximum number of attempts.")
def shrink(seed: int, runs: int) -> int:
    """Find fewer faults that break the same promise. Exit code: 0 shrunk, 5 the seed breaks nothing."""
    from jepsen_like.sim.campaign import shrink as shrink_seed
    from jepsen_like.sim.world import run_seed
    from raftmq_wire.errors import ExitCode, LocalError

    try:
        faults = shrink_seed(seed, runs, click.echo)
    except ValueError as error:
        raise LocalError(
            str(error), "only a seed that breaks a promise can be shrunk", f"raftmq sim replay {seed}", ExitCode.REFUSED
        ) from None
    click.echo("these faults are enough:")
    for fault in faults:
        click.echo(f"  {fault.describe()}")
    run_seed(seed, faults=faults, trace=click.echo)
    return 0


if importlib.util.find_spec(BUGS_MODULE) is not None:
    sim.add_command(importlib.import_module(BUGS_MODULE).bugs)
