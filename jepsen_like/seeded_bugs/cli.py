"""The kill matrix as a command: `raftmq sim bugs`, or `python -m jepsen_like.seeded_bugs` beside the sources."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from jepsen_like.seeded_bugs.catalogue import Bug
    from jepsen_like.seeded_bugs.matrix import MatrixRow


SEEDS = {"core": 200, "full": 60}
"""Engine -> number of random seeds per bug, chosen so that the whole matrix ends within half an hour on two
processors."""
ENGINES = tuple(SEEDS)


def choose(only: tuple[str, ...]) -> list[Bug]:
    """Returns the bugs with these ids; all bugs if `only` is empty. Raises click.UsageError for an unknown id."""
    from jepsen_like.seeded_bugs.catalogue import load_all

    bugs = load_all()
    if not only:
        return bugs
    known = {bug.id: bug for bug in bugs}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise click.UsageError(f"no bug {', '.join(unknown)}: choose from {', '.join(known)}")
    return [known[name] for name in only]


def report(
    bugs: list[Bug],
    seeds: dict[str, int],
    first_seed: int,
    jobs: int,
    *,
    as_json: bool,
    black_box: bool,
) -> int:
    """Runs and prints the matrix. Returns exit code 1 if a bug is not caught, or the unmutated code raises an alarm."""
    from jepsen_like.seeded_bugs import matrix
    from jepsen_like.seeded_bugs.catalogue import BugError, patched

    try:
        for bug in bugs:
            patched(bug)
    except BugError as error:
        raise click.ClickException(str(error)) from error
    found = []
    for row in matrix.rows(bugs, seeds, jobs=jobs, first_seed=first_seed, black_box=black_box):
        found.append(row)
        if not as_json:
            _print_row(row)
    clean = matrix.clean(bugs, seeds, jobs=jobs, first_seed=first_seed)
    used = {engine: seeds[engine] for engine in dict.fromkeys(bug.engine for bug in bugs)}
    cpu_seconds = round(clean.cpu_seconds + sum(row.cpu_seconds for row in found), 1)
    if as_json:
        unmutated = {"first_seed": first_seed, "seeds": used, "alarms": clean.alarms}
        rows = [row.as_dict() for row in found]
        click.echo(json.dumps({"bugs": rows, "clean": unmutated, "cpu_seconds": cpu_seconds}))
    else:
        by_seed = sum(row.kills > 0 for row in found)
        counts = " and ".join(f"{count} {engine}" for engine, count in used.items())
        click.echo(
            f"{sum(row.caught for row in found)} of {len(found)} caught, {sum(row.scheduled for row in found)} by "
            f"their schedule, {by_seed} by random seeds; unmutated code: {len(clean.alarms)} alarms on the same "
            f"schedules and {counts} seeds from {first_seed}; {cpu_seconds / 60:.1f} processor minutes"
        )
        for alarm in clean.alarms:
            click.echo(f"false alarm: {alarm}")
    return 0 if all(row.caught for row in found) and not clean.alarms else 1


def _print_row(row: MatrixRow) -> None:
    note = f" [{row.note}]" if row.note else ""
    click.echo(
        f"{row.name:5} {row.engine:4} {'caught' if row.caught else 'NOT CAUGHT':10} {row.checker or '-':22} "
        f"{'schedule' if row.scheduled else '-':8} first seed {'-' if row.seed is None else row.seed:>5} "
        f"{row.kills_per_1000:7.1f}/1000 ({row.kills} of {row.seeds}) {row.title}{note}"
    )


@click.command()
@click.option("--only", multiple=True, metavar="ID", help="Only this bug; repeatable.")
@click.option("--engine", type=click.Choice(ENGINES), help="Only bugs of this engine.")
@click.option(
    "--seeds",
    type=click.IntRange(min=0),
    help=f"Random seeds per bug.  [default: {', '.join(f'{count} {name}' for name, count in SEEDS.items())}]",
)
@click.option("--first-seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--jobs", type=click.IntRange(min=1), help="Processes.  [default: one per processor]")
@click.option("--black-box", is_flag=True, help="Judge random seeds only by what clients see.")
@click.option("--json", "as_json", is_flag=True)
def bugs(
    only: tuple[str, ...],
    engine: str | None,
    seeds: int | None,
    first_seed: int,
    jobs: int | None,
    *,
    black_box: bool,
    as_json: bool,
) -> None:
    """Plant each bug in a copy of the packages and show which checks find it. Exit code 1 if a bug is not caught."""
    chosen = [bug for bug in choose(only) if engine in (None, bug.engine)]
    if not chosen:
        raise click.UsageError(f"none of these bugs is of engine {engine}")
    counts = SEEDS if seeds is None else dict.fromkeys(SEEDS, seeds)
    jobs = jobs or os.cpu_count() or 1
    sys.exit(report(chosen, counts, first_seed, jobs, as_json=as_json, black_box=black_box))
