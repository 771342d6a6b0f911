"""The kill matrix as a command: `raftmq sim bugs`, or `python -m jepsen_like.seeded_bugs` beside the sources."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from jepsen_like.seeded_bugs.catalogue import Bug
    from jepsen_like.seeded_bugs.matrix import Row


def choose(only: tuple[str, ...]) -> list[Bug]:
    """The bugs named, all without names. Raises click.UsageError for a name that is none."""
    from jepsen_like.seeded_bugs.catalogue import load_all

    bugs = load_all()
    if not only:
        return bugs
    known = {bug.id: bug for bug in bugs}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise click.UsageError(f"no bug {', '.join(unknown)}: choose from {', '.join(known)}")
    return [known[name] for name in only]


def report(only: tuple[str, ...], seeds: int, first_seed: int, jobs: int, *, as_json: bool, black_box: bool) -> int:
    """Runs and prints the matrix; exit code 1 if a bug is not caught or the unmutated code raises an alarm."""
    from jepsen_like.seeded_bugs import matrix
    from jepsen_like.seeded_bugs.catalogue import BugError, patched

    bugs = choose(only)
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
    alarms = matrix.clean(bugs, seeds, first_seed=first_seed)
    if as_json:
        click.echo(json.dumps({"bugs": [row.as_dict() for row in found], "clean": {"seeds": seeds, "alarms": alarms}}))
    else:
        by_seed = sum(row.kills > 0 for row in found)
        click.echo(
            f"{sum(row.caught for row in found)} of {len(found)} caught, {sum(row.scheduled for row in found)} by "
            f"their schedule, {by_seed} by random seeds; unmutated code: {len(alarms)} alarms on the same schedules "
            f"and {seeds} seeds from {first_seed}"
        )
        for alarm in alarms:
            click.echo(f"false alarm: {alarm}")
    return 0 if all(row.caught for row in found) and not alarms else 1


def _print_row(row: Row) -> None:
    note = f" [{row.note}]" if row.note else ""
    click.echo(
        f"{row.name:5} {'caught' if row.caught else 'NOT CAUGHT':10} {row.checker or '-':22} "
        f"{'schedule' if row.scheduled else '-':8} first seed {'-' if row.seed is None else row.seed:>5} "
        f"{row.kills_per_1000:7.1f}/1000 ({row.kills} of {row.seeds}) {row.title}{note}"
    )


@click.command()
@click.option("--only", multiple=True, metavar="ID", help="Only these bugs; may be repeated.")
@click.option("--seeds", default=200, show_default=True, type=click.IntRange(min=0), help="Random seeds per bug.")
@click.option("--first-seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--black-box", is_flag=True, help="Random seeds are judged only by what clients see.")
@click.option("--json", "as_json", is_flag=True)
def bugs(only: tuple[str, ...], seeds: int, first_seed: int, jobs: int, *, black_box: bool, as_json: bool) -> None:
    """Plants each bug in a copy of the packages and tells who finds it; not caught is exit code 1."""
    sys.exit(report(only, seeds, first_seed, jobs, as_json=as_json, black_box=black_box))
