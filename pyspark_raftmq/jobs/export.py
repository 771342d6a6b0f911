"""`raftmq spark export`: exports topics to a Delta table or a folder of Parquet files, by day, each message exactly
once, even after restarts and races.

The offsets at which to continue are read from the target, so there is no checkpoint that could differ from it. A round
plans ranges from these offsets, lets tasks write files that readers do not see, and makes the files visible together
with the new offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import raftmq
from pyspark_raftmq.errors import PlanError
from pyspark_raftmq.jobs.day_files import DayFile, write_day_files
from pyspark_raftmq.jobs.delta_table import DeltaTarget, LostRace, TableError, check_continues
from pyspark_raftmq.jobs.parquet_folder import ParquetTarget
from pyspark_raftmq.options import ReadOptions
from pyspark_raftmq.read_plan import no_plan, split, topics_of
from pyspark_raftmq.read_task import read_range
from raftmq.arrow.ranges import QueueRange
from raftmq_wire.local_path import check_local
from raftmq_wire.topic_identity import Position, TopicIdentity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

NEEDED = ("topic", "queue_id", "queue_offset", "store_ms")
"""Columns that an export always includes: they say which message a row is, and on which day it was stored."""
DELTA, PARQUET = "delta", "parquet"
TARGETS: dict[str, type[DeltaTarget | ParquetTarget]] = {DELTA: DeltaTarget, PARQUET: ParquetTarget}
ROUND_MESSAGES = 4_000_000
TASK_MESSAGES = 500_000
_RACES_MAX = 20

_Queue = tuple[str, int]
"""(topic, queue_id)."""

OnCommit = Callable[[int, int], None]
"""A function that is called after each commit with the number of messages exported so far, and of all messages."""


class _Kept(NamedTuple):
    """The messages that a queue keeps: offsets from `first` up to, not including, `end`, of the topic `counted_in`."""

    first: int
    end: int
    counted_in: TopicIdentity | None


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


def export(
    spark: SparkSession,
    options: ReadOptions,
    folder: Path,
    *,
    form: str = DELTA,
    round_messages: int = ROUND_MESSAGES,
    on_commit: OnCommit = lambda done, total: None,
) -> ExportReport:
    """Exports all messages up to the topics' ends at its beginning. `options.starting` applies to queues that the table
    lacks.

    The driver and all executors must see `folder`. Raises PlanError, TableError, LocalError for a URL, and Spark's
    error of a task.
    """
    check_local(folder, "the folder of an export")
    ends = _ends(options)
    report = ExportReport(0, 0, 0, 0, 0, 0, None)
    total: int | None = None
    while True:
        target = TARGETS[form](folder, options.columns)
        ranges = _missing(options, target, ends)
        left = sum(each.end - each.start for each in ranges)
        total = left if total is None else total
        completed = _completed(target, ends)
        if not left and not completed:
            return report
        chosen = _first_of(ranges, round_messages) if left else []
        files = _write(spark, options, folder, chosen, target.hidden) if left else []
        check_continues(files, chosen)
        reached = {(each.topic, each.queue_id): Position(each.end, each.counted_in) for each in chosen}
        try:
            version = target.commit(files, completed | reached)
        except LostRace as error:
            target.discard([file for file in files if file not in error.kept])
            report = _with(report._replace(races=report.races + 1), error.kept)
            if report.races > _RACES_MAX:
                why = f"{report.races} commits were refused; the last one: {error}"
                raise TableError(f"another export writes to {folder}", why, "let one of them end first") from error
            continue
        if not left:
            return report
        report = _with(report, files)._replace(
            queues=max(report.queues, len(chosen)), commits=report.commits + 1, version=version
        )
        on_commit(report.messages, total)


def _with(report: ExportReport, files: Sequence[DayFile]) -> ExportReport:
    return report._replace(
        messages=report.messages + sum(file.end - file.start for file in files),
        files=report.files + len(files),
        bytes=report.bytes + sum(file.bytes for file in files),
    )


def _ends(options: ReadOptions) -> dict[_Queue, _Kept]:
    """Returns what each queue keeps, as the leader reports it. Raises PlanError."""
    found: dict[_Queue, _Kept] = {}
    with options.connect() as mq:
        for topic in topics_of(mq, options):
            try:
                described = mq.admin.describe_topic(topic)
            except raftmq.RaftMQError as error:
                raise no_plan(options, topic, error) from error
            found |= {
                (topic, queue.queue_id): _Kept(queue.min_offset, queue.max_offset, described.identity)
                for queue in described.queues
            }
    return {key: kept for key, kept in found.items() if options.topics.has(*key)}


def _completed(target: DeltaTarget | ParquetTarget, ends: Mapping[_Queue, _Kept]) -> dict[_Queue, Position]:
    """Returns the positions that an earlier release left without the identity of the topic, with the identity of the
    one that is there now."""
    found = {}
    for queue, kept in ends.items():
        reached = target.reached(*queue, kept.counted_in)
        if reached is not None and reached.counted_in is None and kept.counted_in is not None:
            found[queue] = Position(reached.offset, kept.counted_in)
    return found


def _missing(
    options: ReadOptions, target: DeltaTarget | ParquetTarget, ends: Mapping[_Queue, _Kept]
) -> list[QueueRange]:
    """Returns the ranges that the table does not have yet. Raises PlanError if retention has removed some of them, or
    if the table goes on in another topic; if the options accept losses, the queue then begins at what is kept."""
    ranges = []
    for (topic, queue_id), (first, end, counted_in) in ends.items():
        reached = target.reached(topic, queue_id, counted_in)
        start = first if reached is None else reached.offset
        if reached is not None and (another := reached.why_not_in(counted_in)):
            where = f"offset {start} of {topic} queue {queue_id}"
            if options.fail_on_data_loss:
                raise PlanError(
                    f"the table goes on at {where}, in another topic of this name",
                    another,
                    "export to another folder; to begin with the new topic in this one, --accept-loss",
                )
            logger.warning("the table was at %s and goes on at %d: %s", where, first, another)
            start = first
        if start > end or (start < first and options.fail_on_data_loss):
            raise PlanError(
                f"the table goes on at offset {start} of {topic} queue {queue_id}, which is not there",
                f"the queue keeps offsets {first} up to, not including, {end}",
                "was the topic made anew? export to another folder; if retention was faster, --accept-loss goes on",
            )
        ranges.append(QueueRange(topic, queue_id, max(start, first), end, counted_in))
    return [each for each in ranges if each.start < each.end]


def _first_of(ranges: list[QueueRange], most: int) -> list[QueueRange]:
    """Returns a part of each range, in proportion: at most about `most` messages in all, and at least one."""
    total = sum(each.end - each.start for each in ranges)
    if total <= most:
        return ranges
    parts = [each._replace(end=each.start + (each.end - each.start) * most // total) for each in ranges]
    return [each for each in parts if each.start < each.end] or [ranges[0]._replace(end=ranges[0].start + 1)]


def _write(
    spark: SparkSession, options: ReadOptions, folder: Path, ranges: list[QueueRange], prefix: str
) -> list[DayFile]:
    """Has tasks write the files and returns them; if a task ran twice, only the files of the attempt that Spark
    accepted. Messages that retention removes meanwhile are an error here, and the next run plans again from the
    messages that are kept."""
    options = options._replace(fail_on_data_loss=True)
    parts = split(ranges, spark.sparkContext.defaultParallelism, TASK_MESSAGES)
    tasks = spark.sparkContext.parallelize([tuple(part) for part in parts], len(parts))
    found = tasks.mapPartitions(partial(_write_parts, options, str(folder), prefix)).collect()
    return [DayFile(*each) for each in found]


def _write_parts(
    options: ReadOptions, folder: str, prefix: str, parts: Iterator[tuple[Any, ...]]
) -> Iterator[tuple[object, ...]]:
    """Writes the files of these parts and yields them. Runs in a Spark task. Raises ReadError and OSError."""
    for part in parts:
        planned = QueueRange(*part)
        batches = read_range(options, options.columns, planned)
        for file in write_day_files(Path(folder), planned.topic, planned.queue_id, batches, prefix):
            yield tuple(file)
