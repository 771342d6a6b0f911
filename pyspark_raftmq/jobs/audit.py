"""`raftmq spark audit`: compares copies of one log with each other, chunk by chunk and entry by entry.

The log is the same, byte for byte, on every replica and in the tier. Each task reads one segment of one copy once:
every frame is checked, and every MiB gets a CRC. The driver compares. Rows are compared by their digests, if two copies
have a checkpoint of the same entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark_raftmq.errors import PlanError
from raftmq.arrow.log_copy import FILES, CopySource, Segment
from raftmq.arrow.ranges import Unreadable
from raftmq.copies.chunk_checksums import Chunk, SegmentSums, sums_of
from raftmq.copies.open_copy import opened, opened_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Finding(NamedTuple):
    """A fault of a copy: `copy` is damaged, or differs from the others, at `position` of the log; -1 if the fault has
    no position."""

    copy: str
    position: int
    what: str


class AuditReport(NamedTuple):
    """The result of comparing copies. `alone`: segments that only one copy has. They were checked but could not be
    compared."""

    copies: int
    segments: int
    bytes: int
    alone: int
    findings: list[Finding]


class Task(NamedTuple):
    """One segment of one copy, to be read up to `end`, the position that every copy of this segment reaches."""

    copy: int
    segment: Segment
    end: int


class Read(NamedTuple):
    """The result of one task; if there are no sums, `missing` says why."""

    task: Task
    sums: SegmentSums | None
    missing: str


def audit(spark: SparkSession, sources: Sequence[CopySource]) -> AuditReport:
    """Compares the copies. Raises PlanError if one of `sources` is no copy of a log."""
    try:
        tasks = plan(sources)
    except Unreadable as error:
        raise PlanError(error.what, error.why, error.hint) from error
    context = spark.sparkContext
    read = context.parallelize(tasks, max(1, len(tasks))).mapPartitions(partial(read_segments, sources)).collect()
    rows = context.parallelize([*enumerate(sources)], len(sources)).mapPartitions(read_digests).collect()
    return compare(sources, read, dict(rows))


def plan(sources: Sequence[CopySource]) -> list[Task]:
    """Returns a task for every segment of every copy. Raises Unreadable."""
    logs = []
    for source in sources:
        with opened(source) as copy:
            logs.append(copy.log())
    ends: dict[int, int] = {}
    for segment in (segment for log in logs for segment in log):
        ends[segment.base] = min(segment.end, ends.get(segment.base, segment.end))
    return [Task(number, segment, ends[segment.base]) for number, log in enumerate(logs) for segment in log]


def read_segments(sources: Sequence[CopySource], tasks: Iterable[Task]) -> Iterator[Read]:
    """Reads segments and yields their sums. Runs in a Spark task."""
    for task in tasks:
        try:
            with opened(sources[task.copy]) as copy:
                yield Read(task, sums_of(copy, task.segment, task.end), "")
        except Unreadable as error:
            yield Read(task, None, f"{error.what}: {error.why}")


Digest = tuple[int, dict[str, int]]
"""The digest of a copy's rows: (applied index, sum of the rows of each family)."""


def read_digests(sources: Iterable[tuple[int, CopySource]]) -> Iterator[tuple[int, Digest | str]]:
    """Yields (number of the copy, its digest) for each copy made of files. If its rows cannot be read, the reason takes
    the digest's place. Runs in a Spark task."""
    for number, source in sources:
        if source.kind == FILES:
            try:
                with opened_rows(source) as copy:
                    yield number, (copy.applied_index, copy.digest())
            except Unreadable as error:
                yield number, f"{error.what}: {error.why}"


def compare(sources: Sequence[CopySource], read: Iterable[Read], digests: dict[int, Digest | str]) -> AuditReport:
    """Returns the report, with its findings sorted by copy and position. `digests`: number of the copy -> its digest,
    or the reason why there is none."""
    findings: list[Finding] = []
    of_base: dict[int, list[Read]] = {}
    for each in read:
        of_base.setdefault(each.task.segment.base, []).append(each)
    for base, group in of_base.items():
        for each in group:
            why = each.missing if each.sums is None else each.sums.damage
            if why:
                findings.append(Finding(sources[each.task.copy].path, base, why))
        findings += [Finding(sources[copy].path, position, what) for copy, position, what in _differing(group)]
    findings += _differing_rows(sources, digests)
    return AuditReport(
        len(sources),
        len(of_base),
        sum(chunk.size for group in of_base.values() for each in group if each.sums for chunk in each.sums.chunks),
        sum(len(group) == 1 for group in of_base.values()),
        sorted(findings),
    )


def _differing(group: Sequence[Read]) -> Iterator[tuple[int, int, str]]:
    """Yields (copy, position, what differs) for each copy of one segment that differs from most others. If no content
    is the most frequent, every copy counts as different."""
    sums = {each.task.copy: each.sums for each in group if each.sums is not None}
    at: dict[int, dict[int, Chunk]] = {}
    for copy, found in sums.items():
        for chunk in found.chunks:
            at.setdefault(chunk.position, {})[copy] = chunk
    for position, chunks in at.items():
        for copy in _outvoted(chunks):
            yield copy, position, f"the {chunks[copy].size} bytes of the log from here on differ from the other copies"
    ends = {copy: found.ends for copy, found in sums.items() if found.ends is not None}
    for copy in _outvoted(ends):
        end = ends[copy]
        yield copy, end.base, f"the chain ends with entry {end.last_index} of term {end.term}, unlike the other copies"


def _differing_rows(sources: Sequence[CopySource], digests: dict[int, Digest | str]) -> Iterator[Finding]:
    for number, told in digests.items():
        if isinstance(told, str):
            yield Finding(sources[number].path, -1, told)
    sound = {number: told for number, told in digests.items() if not isinstance(told, str)}
    for index in {index for index, _ in sound.values()}:
        alike = {number: rows for number, (at, rows) in sound.items() if at == index}
        for family in sorted({family for rows in alike.values() for family in rows}):
            for number in _outvoted({number: rows.get(family, 0) for number, rows in alike.items()}):
                what = f"the rows of family {family} at entry {index} differ from the other copies"
                yield Finding(sources[number].path, -1, what)


def _outvoted(told: Mapping[int, object]) -> list[int]:
    """Returns the numbers of the copies whose value differs from the most frequent value; all copies if two values are
    equally frequent, [] if all are equal."""
    counts = Counter(told.values())
    if len(counts) < 2:
        return []
    (most, votes), (_, second) = counts.most_common(2)
    return [number for number, answer in told.items() if votes == second or answer != most]
