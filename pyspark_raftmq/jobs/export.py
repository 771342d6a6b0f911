"""`raftmq spark export`: exports topics to a Delta table or a folder of Parquet files, by day, each message exactly
once, even after restarts and races.

The offsets at which to continue are read from the target, so there is no checkpoint that could differ from it. A round
plans ranges from these offsets, lets tasks write files that readers do not see, and makes the files visible together
with the new offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import raftmq
from pyspark_raftmq.options import ReadOptions
from pyspark_raftmq.read_plan import no_plan, split, topics_of
from pyspark_raftmq.read_task import read_range
from raftmq.arrow.columns import COLUMNS
from raftmq.arrow.ranges import QueueRange
from raftmq.tables.day_files import DayFile, write_day_files
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.keepers import check_store
from raftmq.tables.missing import Kept, Queue, check_continues, first_of, kept_of, missing, moved, reached_by
from raftmq.tables.parquet_folder import HIDDEN, ParquetTarget, folder_of
from raftmq.tables.store_folder import StoreFolder
from raftmq.tables.table_folder import TablePlace, delta_table
from raftmq.tables.table_rows import DAY
from raftmq_wire.local_path import check_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA, PARQUET = "delta", "parquet"
Target = DeltaTarget | ParquetTarget
TARGETS: dict[str, type[Target]] = {DELTA: DeltaTarget, PARQUET: ParquetTarget}
ROUND_MESSAGES = 4_000_000
TASK_MESSAGES = 500_000
RACES_MAX = 20

OnCommit = Callable[[int, int], None]
"""A function that is called after each commit with (messages exported so far, messages to export in all)."""


class ExportReport(NamedTuple):
    """The result of an export. `version` is the Delta table's; `races` counts commits that failed because another
    export was faster."""

    messages: int
    files: int
    bytes: int
    queues: int
    commits: int
    races: int
    version: int | None


def columns_there(folder: TablePlace, form: str) -> tuple[str, ...] | None:
    """Returns the columns of messages that the target has; None if the target does not exist yet, or was not made by an
    export."""
    there: list[str] = []
    if form == DELTA:
        table = delta_table(folder)
        if table is not None:
            there = [field.name for field in table.schema().fields if field.name != DAY]
    elif isinstance(folder, Path):
        import pyarrow.parquet as pq

        first = next(folder.glob(f"{DAY}=*/[!{HIDDEN}]*.parquet"), None)
        there = [] if first is None else pq.read_schema(first).names
    return tuple(there) if there and COLUMNS.keys() >= {*there} else None


def export(
    spark: SparkSession,
    options: ReadOptions,
    folder: TablePlace,
    *,
    kind: type[Target] = DeltaTarget,
    round_messages: int = ROUND_MESSAGES,
    races_max: int = RACES_MAX,
    on_commit: OnCommit = lambda done, total: None,
) -> ExportReport:
    """Exports all messages up to the ends that the topics have when it begins; returns the report. `options.starting`
    applies to queues that the table lacks. `races_max`: how many commits may fail because another export was faster,
    before the export raises TableError.

    The driver and all executors must see `folder`; an object store is a StoreFolder. Raises PlanError, TableError,
    StoreFailed, LocalError for a URL, and Spark's error of a task.
    """
    check_place(folder, kind)
    ends = _ends(options)
    report = ExportReport(0, 0, 0, 0, 0, 0, None)
    total: int | None = None
    while True:
        target = kind(folder, options.columns)
        accept_loss = not options.fail_on_data_loss
        ranges = missing(target, ends, accept_loss=accept_loss)
        left = sum(each.end - each.start for each in ranges)
        total = left if total is None else total
        changed = moved(target, ends, accept_loss=accept_loss)
        if not left and not changed:
            return report
        chosen = first_of(ranges, round_messages) if left else []
        files = _write(spark, options, folder, chosen, target.hidden) if left else []
        check_continues(files, chosen)
        try:
            version = target.commit(files, changed | reached_by(chosen))
        except LostRace as error:
            target.discard([file for file in files if file not in error.kept])
            report = _with(report._replace(races=report.races + 1), error.kept)
            if report.races > races_max:
                why = f"{report.races} commits were refused; the last one: {error}"
                raise TableError(f"another export writes to {folder}", why, "Let one of them end first") from error
            continue
        if not left:
            return report
        report = _with(report, files)._replace(
            queues=max(report.queues, len(chosen)), commits=report.commits + 1, version=version
        )
        on_commit(report.messages, total)


def check_place(where: TablePlace, kind: type[Target]) -> None:
    """Raises LocalError if an export of this kind cannot be made at `where`, and StoreFailed."""
    if not isinstance(where, StoreFolder):
        check_local(where, "the folder of an export")
    elif issubclass(kind, ParquetTarget):
        folder_of(where)
    else:
        check_store(where)


def _with(report: ExportReport, files: Sequence[DayFile]) -> ExportReport:
    return report._replace(
        messages=report.messages + sum(file.end - file.start for file in files),
        files=report.files + len(files),
        bytes=report.bytes + sum(file.bytes for file in files),
    )


def _ends(options: ReadOptions) -> dict[Queue, Kept]:
    """Returns queue -> the range of offsets that it keeps, as the leader reports it. Raises PlanError."""
    found: dict[Queue, Kept] = {}
    with options.connect() as mq:
        for topic in topics_of(mq, options):
            try:
                found |= kept_of(topic, mq.admin.describe_topic(topic))
            except raftmq.RaftMQError as error:
                raise no_plan(options, topic, error) from error
    return {key: kept for key, kept in found.items() if options.topics.has(*key)}


def _write(
    spark: SparkSession, options: ReadOptions, folder: TablePlace, ranges: list[QueueRange], prefix: str
) -> list[DayFile]:
    """Writes the files in tasks and returns them; if a task ran twice, only the files of the attempt that Spark
    accepted. Messages that retention removes during the run are an error here, and the next run plans again from the
    messages that are kept."""
    options = options._replace(fail_on_data_loss=True)
    parts = split(ranges, spark.sparkContext.defaultParallelism, TASK_MESSAGES)
    tasks = spark.sparkContext.parallelize([tuple(part) for part in parts], len(parts))
    found = tasks.mapPartitions(partial(_write_parts, options, folder, prefix)).collect()
    return [DayFile(*each) for each in found]


def _write_parts(
    options: ReadOptions, folder: TablePlace, prefix: str, parts: Iterator[tuple[Any, ...]]
) -> Iterator[tuple[object, ...]]:
    """Writes the files of these parts and yields them. Runs in a Spark task. Raises ReadError and OSError."""
    for part in parts:
        planned = QueueRange(*part)
        batches = read_range(options, options.columns, planned)
        for file in write_day_files(folder, planned.topic, planned.queue_id, batches, prefix):
            yield tuple(file)
