"""`raftmq spark rebuild`: derives the rows of consume queues and of the message index from segments alone, and compares
them with a checkpoint.

Each task reads a segment, derives its rows and compares them with those of a checkpoint, so no rows are sent between
tasks. Only the few blocks of a queue that begin in one segment and end in another are joined first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_raftmq.errors import PlanError, ReadError
from raftmq.arrow.log_copy import CopySource, Segment
from raftmq.arrow.ranges import Unreadable
from raftmq.copies.derived_rows import BLOCK, Piece, QueueNumbers, Row, blocks_of, derive
from raftmq.copies.log_entries import entries_of, first_ms
from raftmq.copies.open_copy import opened, opened_rows
from raftmq.copies.row_check import (
    Checked,
    Difference,
    Underived,
    check_block,
    check_ends,
    check_segment,
    chunk_of_first,
    kept_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CQ, INDEX = "cq", "index"


class Work(NamedTuple):
    """The parameters that all tasks share. `log`: the copy from which segments are read; `rows`: the copy whose
    checkpoint has the rows to compare with; `to`: a folder for the rows as Parquet files, "" for none."""

    log: CopySource
    rows: CopySource
    to: str


class Task(NamedTuple):
    """One segment, up to position `end`. `following`: the next segment, None after the last one."""

    segment: Segment
    end: int
    following: Segment | None
    is_open: bool
    """True if the checkpoint has applied no entry behind this segment."""


class RebuildReport(NamedTuple):
    """The result of deriving rows and comparing them. `differences` is sorted; `topics`: topic id -> name."""

    segments: int
    items: int
    records: int
    differences: list[Difference]
    underived: list[Underived]
    topics: dict[int, str]


def rebuild(spark: SparkSession, log: CopySource, rows: CopySource, to: Path | None = None) -> RebuildReport:
    """Derives the rows from `log` and compares them with the checkpoint of `rows`, a copy made of files; writes them to
    `to` if given. Raises PlanError, and Spark's error of a task."""
    work = Work(log, rows, "" if to is None else str(to))
    try:
        tasks = plan(work)
    except Unreadable as error:
        raise PlanError(error.what, error.why, error.hint) from error
    if not tasks:
        raise PlanError(f"{log.path} has no segment of the log", "there is nothing to derive rows from", "another copy")
    context = spark.sparkContext
    made = context.parallelize(tasks, len(tasks)).mapPartitions(partial(derive_parts, work)).cache()
    try:
        checked = [part for part in made.collect() if isinstance(part, Checked)]
        edges = made.filter(lambda each: not isinstance(each, Checked)).groupByKey()
        found = edges.mapPartitions(partial(check_edges, work, tasks[-1].is_open)).collect()
    finally:
        made.unpersist(blocking=True)  # a late answer would print a stack trace once Spark has stopped
    return report_of(work, tasks, checked, found)


def plan(work: Work) -> list[Task]:
    """Returns a task for each segment below the checkpoint's last entry. Raises Unreadable."""
    with opened(work.log) as copy, opened_rows(work.rows) as rows:
        segments = [segment for segment in copy.log() if segment.base < rows.end_position]
        end = rows.end_position
    following = [*segments[1:], None]
    return [
        Task(segment, min(segment.end, end), after, is_open=segment.end >= end)
        for segment, after in zip(segments, following, strict=True)
    ]


def derive_parts(work: Work, tasks: Iterable[Task]) -> Iterator[Any]:
    """Yields for each segment a Checked without edges, and its edges as ((queue, block), pieces). Runs in a Spark
    task."""
    for task in tasks:
        with _explained(), opened(work.log) as copy, opened_rows(work.rows) as rows:
            next_ms = None
            if not task.is_open:
                following = task.following
                next_ms = rows.closed_ms(task.segment) if following is None else first_ms(copy, following)
            derived = derive(entries_of(copy, task.segment), task.end, next_ms)
            topic_ids = frozenset(rows.names())
            checked = check_segment(derived, rows.rows, topic_ids, task.segment.base, task.segment.end)
            if work.to:
                made = [(INDEX, row) for row in derived.keys]
                for block in blocks_of(derived, topic_ids):
                    if block.is_full:
                        made += [(CQ, row) for row in kept_rows(block.queue, block.pieces, rows.rows)]
                _write(Path(work.to), made)
        yield from checked.edges.items()
        yield checked._replace(edges={})


def check_edges(
    work: Work, to_end: bool, blocks: Iterable[tuple[tuple[QueueNumbers, int], Iterable[list[Piece]]]]
) -> Iterator[Difference]:
    """Checks the blocks that several segments share. Runs in a Spark task."""
    made: list[tuple[str, Row]] = []
    with _explained(), opened_rows(work.rows) as rows:
        for (queue, block), parts in blocks:
            pieces = sorted(Piece(*piece) for part in parts for piece in part)
            begins = pieces[0].base <= max(block, chunk_of_first(queue, rows.rows))
            whole = begins and (to_end or pieces[-1].end == block + BLOCK)
            yield from check_block(queue, block, pieces, rows.rows, whole=whole)
            made += [(CQ, row) for row in kept_rows(queue, pieces, rows.rows)]
    if work.to and made:
        _write(Path(work.to), made)


def _write(folder: Path, rows: list[tuple[str, Row]]) -> None:
    """Writes one file, sorted by family and key. A task that ran twice leaves two files with the same keys."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows.sort()
    table = pa.table(
        {
            "family": pa.array([family for family, _ in rows], pa.string()),
            "key": pa.array([key for _, (key, _) in rows], pa.binary()),
            "value": pa.array([value for _, (_, value) in rows], pa.binary()),
        }
    )
    pq.write_table(table, folder / f"rows-{uuid.uuid4().hex}.parquet", compression="zstd")


def report_of(work: Work, tasks: list[Task], checked: list[Checked], found: list[Difference]) -> RebuildReport:
    spans: dict[QueueNumbers, tuple[int, int]] = {}
    for part in checked:
        for queue, (start, end) in part.spans.items():
            before = spans.get(queue, (start, end))
            spans[queue] = min(start, before[0]), max(end, before[1])
    with opened_rows(work.rows) as rows:
        outside, underived = check_ends(
            spans,
            rows.rows,
            rows.queues,
            from_start=tasks[0].segment.base == 0,
            to_end=tasks[-1].is_open,
        )
        names = rows.names()
    return RebuildReport(
        len(tasks),
        sum(part.items for part in checked),
        sum(part.records for part in checked),
        sorted([*found, *outside, *(each for part in checked for each in part.differences)]),
        sorted(underived),
        names,
    )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Unreadable as error:
        raise ReadError(error.what, error.why, error.hint) from error
