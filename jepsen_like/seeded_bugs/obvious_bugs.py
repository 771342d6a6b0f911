"""Counts the bugs that are found without any search: `raftmq sim bugs --calm` and `--unit-tests`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from jepsen_like.seeded_bugs import recorded_results, unit_tests
from jepsen_like.seeded_bugs.calm_verdicts import CALM_MAX, CalmRow, calm_rows
from jepsen_like.seeded_bugs.catalogue import Bug

_SHOWN_MAX = 4


def report_calm(bugs: Sequence[Bug], jobs: int, *, as_json: bool) -> int:
    """Prints the bugs that a calm run (without faults, or with one crash) finds. Returns exit code 1 if these are more
    than CALM_MAX, or others than the recorded ones."""
    rows: list[CalmRow] = []
    for row in calm_rows(bugs, jobs):
        rows.append(row)
        if not as_json:
            click.echo(f"{row.name:5} without a fault: {row.fault_free or '-':22} one crash: {row.single_crash or '-'}")
    dead = sum(row.dies for row in rows)
    known = recorded_results.load()
    wrong = [row.name for row in rows if row.dies != bool(known.get(row.name, recorded_results.NOTHING).calm)]
    if as_json:
        click.echo(
            json.dumps(
                {"calm": [row._asdict() for row in rows], "dead": dead, "allowed": CALM_MAX, "not as recorded": wrong}
            )
        )
    else:
        click.echo(f"{dead} of {len(rows)} die in a calm run of 1,000 operations; {CALM_MAX} may")
        _print_wrong(wrong)
    return 1 if dead > CALM_MAX or wrong else 0


def report_unit_tests(bugs: Sequence[Bug], jobs: int, *, as_json: bool) -> int:
    """Prints which unit tests of the touched layer fail with each bug. Returns exit code 1 if the tests cannot be run
    with one, or if the record says otherwise."""
    found: list[unit_tests.Outcome] = []
    for outcome in unit_tests.outcomes(bugs, jobs):
        found.append(outcome)
        if not as_json:
            _print_outcome(outcome)
    passed = sum(outcome.unnoticed for outcome in found)
    known = recorded_results.load()
    wrong = [
        outcome.name
        for outcome in found
        if outcome.unnoticed != (known.get(outcome.name, recorded_results.NOTHING).unit_tests == recorded_results.PASS)
    ]
    if as_json:
        click.echo(
            json.dumps(
                {"unit_tests": [outcome._asdict() for outcome in found], "unnoticed": passed, "not as recorded": wrong}
            )
        )
    else:
        click.echo(f"{passed} of {len(found)} builds pass the unit tests of the layers they touch")
        _print_wrong(wrong)
    return 1 if wrong or any(outcome.note for outcome in found) else 0


def _print_wrong(names: Sequence[str]) -> None:
    if names:
        click.echo(f"recorded otherwise, or not at all, in {recorded_results.RECORD.name}: {', '.join(names)}")


def _print_outcome(outcome: unit_tests.Outcome) -> None:
    failed = outcome.failed
    names = ", ".join(name.rpartition("::")[2] for name in failed[:_SHOWN_MAX])
    more = f" and {len(failed) - _SHOWN_MAX} more" if len(failed) > _SHOWN_MAX else ""
    click.echo(f"{outcome.name:5} {f'{len(failed)} fail' if failed else 'pass':9} {outcome.note or names + more}")
