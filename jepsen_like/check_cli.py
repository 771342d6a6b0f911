"""`raftmq chaos check`, also `python -m jepsen_like.check_cli check`: judges a recorded history."""

from __future__ import annotations

from pathlib import Path

import click

from raftmq.commands.command_group import command_group
from raftmq.local_path import LocalPath

HISTORY = "history.jsonl"


def history_at(given: Path) -> Path:
    """Returns the path of the history: `given` itself if it is a file, or the history in it if it is the folder of a
    run. Raises UsageError for any other folder.
    """
    if not given.is_dir():
        return given
    if not (given / HISTORY).is_file():
        raise click.UsageError(f"{given} holds no {HISTORY}: name the folder of a run, or a history")
    return given / HISTORY


@command_group()
def main() -> None:
    """Judge recorded histories."""


@main.command("check")
@click.argument("history", type=LocalPath(exists=True, path_type=Path))
@click.option("--workload", metavar="NAME", help="Judge by this workload, not by the one the file names.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--shown", default=3, show_default=True, metavar="N", help="Number of anomalies of each kind to show in full."
)
@click.option("--report", type=LocalPath(path_type=Path), metavar="FILE", help="Also write the HTML page of the run.")
@click.pass_context
def check_command(
    context: click.Context, history: Path, workload: str | None, as_json: bool, shown: int, report: Path | None
) -> None:
    """Judge HISTORY, a file of JSON lines or the folder of a run.

    Exit code: 0 valid, 1 invalid, 3 unknown (2: wrong command).

    A foreign, truncated or edited file is unknown; the output names the line.
    """
    import json

    from jepsen_like.checkers import check_file, workload_named
    from jepsen_like.report import RunInfo, machine_facts, write_report

    if workload is not None:
        try:
            workload_named(workload)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    history = history_at(history)
    verdict, ops = check_file(history, workload)
    if report is not None:
        run = RunInfo(history.name, f"raftmq chaos check {history}", machine=machine_facts())
        write_report(report, run, ops, verdict)
    click.echo(json.dumps(verdict.to_json()) if as_json else verdict.text(ops, shown))
    context.exit(verdict.exit_code)


if __name__ == "__main__":
    main()
