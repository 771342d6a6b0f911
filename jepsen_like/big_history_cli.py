"""`raftmq chaos check-history`: judges a large history with Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jepsen_like.check_cli import history_at
from raftmq.commands.value_types import SparkMasterType
from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jepsen_like.spark_history import BigVerdict

UNKNOWN = 3
"""Exit code of an unknown verdict, as in `raftmq chaos check`."""


@click.command("check-history")
@click.argument("history", type=LocalPath(exists=True, path_type=Path))
@click.option(
    "--master",
    default="local[2]",
    show_default=True,
    metavar="URL",
    type=SparkMasterType(),
    help="Where Spark runs the tasks.",
)
@click.option("--memory", default="2g", show_default=True, metavar="SIZE", help="Memory of Spark's driver.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def check_history_command(context: click.Context, history: Path, master: str, memory: str, as_json: bool) -> None:
    """Judge HISTORY with Spark: a file of JSON lines or the folder of a run, too large for the memory of one process.

    Needs Java 17 or newer and the extra spark. Exit code: 0 valid, 1 invalid, 3 unknown (2: wrong command).
    """
    import json

    from jepsen_like.history import HistoryError
    from jepsen_like.spark_history import check_history

    history = history_at(history).absolute()
    with _session(master, memory) as spark:
        try:
            verdict = check_history(spark, history)
        except HistoryError as error:
            click.echo(json.dumps({"unknown": str(error)}) if as_json else f"unknown: {error}")
            context.exit(UNKNOWN)
    click.echo(json.dumps(_as_dict(verdict)) if as_json else _as_text(verdict))
    context.exit(verdict.exit_code)


@contextmanager
def _session(master: str, memory: str) -> Iterator[SparkSession]:
    """Opens a Spark session, and ends it afterwards; a session that is active already belongs to the caller's program,
    and stays. Raises UsageError without Spark or Java."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise click.UsageError("Spark is not installed: pip install 'raftmq[spark]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    before = SparkSession.getActiveSession()
    builder = SparkSession.builder.master(master).appName("raftmq check-history").config("spark.driver.memory", memory)
    try:
        spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise click.UsageError(
            "Spark found no Java: install Java 17 or newer, or set JAVA_HOME to one, or put one on the PATH"
        ) from None
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        if before is None:
            spark.stop()


def _as_dict(verdict: BigVerdict) -> dict[str, Any]:
    outcome = {0: "valid", 1: "invalid", UNKNOWN: "unknown"}[verdict.exit_code]
    return {"outcome": outcome, **verdict._asdict(), "examples": [each._asdict() for each in verdict.examples]}


def _as_text(verdict: BigVerdict) -> str:
    from jepsen_like.checkers.anomaly_kinds import KINDS

    lines = [f"{verdict.operations} operations, {verdict.keys} registers"]
    for kind, count in verdict.counts.items():
        lines.append(f"{kind}: {count} ({KINDS[kind]})")
        lines += [
            f"  {each.subject} at {each.topic}/{each.queue_id}/{each.offset}, node {each.node}, step {each.step}"
            for each in verdict.examples
            if each.kind == kind
        ]
    return "\n".join([*lines, *(f"unknown: {doubt}" for doubt in verdict.doubts)])
