"""Command line of the checkers. Exit codes: 0 valid, 1 invalid, 2 bad usage, 3 unknown."""

from __future__ import annotations

import json
from pathlib import Path

import click

from jepsen_like.checkers.compose import check_file
from jepsen_like.checkers.workload import WORKLOADS, workload_named


@click.group()
def main() -> None:
    """Judge recorded histories."""


@main.command("check")
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--workload", help=f"Judge by this workload, not by the one the file names: {', '.join(WORKLOADS)}.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--shown", default=3, show_default=True, help="Anomalies of each kind to show with their steps.")
@click.pass_context
def check_command(context: click.Context, history: Path, workload: str | None, as_json: bool, shown: int) -> None:
    """Judge HISTORY, a file of JSON lines. Foreign, cut or edited files are `unknown`, with the line."""
    if workload is not None:
        try:
            workload_named(workload)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    verdict, ops = check_file(history, workload)
    click.echo(json.dumps(verdict.to_json()) if as_json else verdict.text(ops, shown))
    context.exit(verdict.exit_code)
