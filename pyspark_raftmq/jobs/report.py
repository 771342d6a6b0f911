"""`raftmq spark report`: summarizes the log by topic and hour, in one pass over the messages."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import raftmq
from pyspark_raftmq.options import ReadOptions
from pyspark_raftmq.read_plan import no_plan, topics_of
from raftmq.arrow.undecodable import RAW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOUR_MS = 3_600_000


class TopicLine(NamedTuple):
    """The line of a topic. Bytes are those of decompressed bodies, if they can be decompressed; `keys` is the
    approximate number of different keys (within 5 %)."""

    topic: str
    messages: int
    bytes: int
    p50_bytes: int
    p99_bytes: int
    max_bytes: int
    keys: int


class HourLine(NamedTuple):
    """The line of a topic in one hour of log time, which begins at `hour_ms`."""

    topic: str
    hour_ms: int
    messages: int
    bytes: int


class GroupLine(NamedTuple):
    """The line of a group that has committed offsets of a topic; `lag` is the number of messages that are kept and not
    committed."""

    group: str
    topic: str
    lag: int


class LogReport(NamedTuple):
    """The lines of a report. `topics` and `hours` are sorted, by topic and then by hour, and leave out topics without
    messages. `groups` has the groups in the cluster's order, each with its topics."""

    topics: list[TopicLine]
    hours: list[HourLine]
    groups: list[GroupLine]


def report(spark: SparkSession, options: ReadOptions, given: dict[str, str]) -> LogReport:
    """Returns the report. `given` are the options from which `options` was parsed. Raises PlanError, and Spark's error
    of a task."""
    from pyspark.sql import functions as f

    with options.connect() as mq:
        topics = topics_of(mq, options)
        groups = _groups(mq, options, topics)
    if not topics:
        return LogReport([], [], [])
    wanted = {**given, "columns": "topic,store_ms,body,keys", "onUndecodable": RAW}  # sizes are shown, no bodies
    frame = spark.read.format("raftmq").options(**wanted).load()
    size = f.length("body")
    rows = (
        frame.withColumn("hour_ms", f.col("store_ms") - f.col("store_ms") % _HOUR_MS)
        .rollup("topic", "hour_ms")
        .agg(
            f.count("*").alias("messages"),
            f.sum(size).alias("bytes"),
            f.percentile_approx(size, f.array(f.lit(0.5), f.lit(0.99))).alias("sizes"),
            f.max(size).alias("most"),
            f.approx_count_distinct("keys").alias("distinct"),
        )
        .where(f.col("topic").isNotNull())
        .collect()
    )
    whole = [row for row in rows if row.hour_ms is None]
    return LogReport(
        sorted(TopicLine(r.topic, r.messages, r.bytes, r.sizes[0], r.sizes[1], r.most, r.distinct) for r in whole),
        sorted(HourLine(r.topic, r.hour_ms, r.messages, r.bytes) for r in rows if r.hour_ms is not None),
        groups,
    )


def _groups(mq: raftmq.Client, options: ReadOptions, topics: Sequence[str]) -> list[GroupLine]:
    found = []
    try:
        for group in mq.admin.groups():
            for topic in topics:
                offsets = mq.admin.offsets(group, topic)
                if any(each.committed is not None for each in offsets):
                    found.append(GroupLine(group, topic, sum(each.lag for each in offsets)))
    except raftmq.RaftMQError as error:
        raise no_plan(options, "the groups", error) from error
    return found


def plot(lines: Sequence[HourLine], to: Path) -> None:
    """Plots messages per hour, one line per topic, as SVG or PNG, depending on the file's name. Raises OSError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    for topic in sorted({line.topic for line in lines}):
        of_topic = [line for line in lines if line.topic == topic]
        hours = [datetime.datetime.fromtimestamp(line.hour_ms / 1000, datetime.UTC) for line in of_topic]
        axes.plot(hours, [line.messages for line in of_topic], marker=".", label=topic)
    axes.set_xlabel("hour (UTC, log time)")
    axes.set_ylabel("messages")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.autofmt_xdate()
    figure.savefig(to)
