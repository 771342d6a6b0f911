"""`raftmq spark traffic`: finds hot topics, queues and keys, and computes limits that the traffic so far has not
reached.

Each limit belongs to a topic and an hour of the week, or of the day if less than two weeks were seen (UTC, log time),
so that a topic which is busy at night is not judged by its traffic during the day. `raftmq quota import` takes the file
into the cluster.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import raftmq
from pyspark_raftmq.jobs.learning import (
    HOUR_MS,
    PEAK,
    SPAN_MS,
    STRAYS,
    HourCounts,
    Straying,
    hours_for,
    limits_of,
)
from pyspark_raftmq.options import ReadOptions
from pyspark_raftmq.read_plan import no_plan, topics_of
from raftmq.arrow.undecodable import RAW
from raftmq_wire.learnt_file import TOPICS_MAX, WEEK, LearntFile, LearntOrigin, TopicLimits, encode_file, hour_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ACCURACY = 100_000
"""The accuracy of Spark's quantiles: the error of a rank is 1 / ACCURACY, which is smaller than 1 - STRAYS."""
_TOP = 10


class QueueLine(NamedTuple):
    """The line of a queue; `of_mean` is the ratio of its messages to the mean of its topic's queues."""

    topic: str
    queue_id: int
    messages: int
    of_mean: float


class KeyLine(NamedTuple):
    """The line of the messages with one text as their keys; `share` is their share of the topic's messages."""

    topic: str
    keys: str
    messages: int
    share: float


class Limit(NamedTuple):
    """The limits of a topic in its busiest hour, per second; `spans` is the number of spans from which all of its
    limits were learnt."""

    topic: str
    hour: int
    """The number of the hour from Monday, 0:00 UTC, on, or from 0:00 on if there are 24."""
    messages_per_s: int
    bytes_per_s: int
    spans: int


class TrafficReport(NamedTuple):
    """The result of a traffic job: queues and keys, the hottest first. `first_ms` and `last_ms` bound the messages that
    were read; -1 if there were none."""

    queues: list[QueueLine]
    keys: list[KeyLine]
    limits: list[Limit]
    first_ms: int
    last_ms: int
    cluster: str
    """The id of the cluster."""
    topics: dict[str, TopicLimits]
    """All limits, of the TOPICS_MAX topics with the most messages."""


def traffic(spark: SparkSession, options: ReadOptions, given: dict[str, str]) -> TrafficReport:
    """Returns the report. `given`: the options from which `options` was parsed. Raises PlanError, and Spark's error of
    a task."""
    from pyspark.sql import functions as f

    with options.connect() as mq:
        found = topics_of(mq, options)
        try:
            mq.admin.members()  # the answer fills `mq.cluster_ids`
        except raftmq.RaftMQError as error:
            raise no_plan(options, "the cluster", error) from error
        cluster = mq.cluster_ids[0] if mq.cluster_ids else ""
        if not found:
            return TrafficReport([], [], [], -1, -1, cluster, {})
    wanted = {**given, "columns": "topic,queue_id,store_ms,body,keys", "onUndecodable": RAW}  # only sizes are used
    frame = spark.read.format("raftmq").options(**wanted).load().withColumn("size", f.length("body")).drop("body")
    frame = frame.cache()
    try:
        first_ms, last_ms = frame.agg(f.min("store_ms"), f.max("store_ms")).first()
        if first_ms is None:
            return TrafficReport([], [], [], -1, -1, cluster, {})
        limits, topics = _limits(frame, hours_for(first_ms, last_ms))
        return TrafficReport(_queues(frame), _keys(frame), limits, first_ms, last_ms, cluster, topics)
    finally:
        frame.unpersist(blocking=True)  # blocking, for the reason given in `rebuild`


def _queues(frame: DataFrame) -> list[QueueLine]:
    found = frame.groupBy("topic", "queue_id").count().collect()
    counts: dict[str, list[int]] = {}
    for row in found:
        counts.setdefault(row.topic, []).append(row["count"])
    means = {topic: statistics.mean(each) for topic, each in counts.items()}
    lines = [QueueLine(r.topic, r.queue_id, r["count"], round(r["count"] / means[r.topic], 2)) for r in found]
    return sorted(lines, key=lambda line: (-line.messages, line.topic, line.queue_id))[:_TOP]


def _keys(frame: DataFrame) -> list[KeyLine]:
    from pyspark.sql import functions as f

    totals = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    found = frame.where(f.col("keys").isNotNull()).groupBy("topic", "keys").count()
    top = found.orderBy(f.desc("count"), "topic", "keys").limit(_TOP).collect()
    return [KeyLine(r.topic, r["keys"], r["count"], round(r["count"] / totals[r.topic], 4)) for r in top]


def _limits(frame: DataFrame, hours: int) -> tuple[list[Limit], dict[str, TopicLimits]]:
    counts, straying = counted(frame, hours)
    spans: dict[str, int] = {}
    messages: dict[str, float] = {}
    for each in counts:
        spans[each.topic] = spans.get(each.topic, 0) + each.spans
        messages[each.topic] = messages.get(each.topic, 0) + each.spans * each.messages_mean
    kept = set(sorted(messages, key=lambda topic: -messages[topic])[:TOPICS_MAX])
    topics = limits_of(hours, [each for each in counts if each.topic in kept], straying)
    lines = []
    for topic, limits in topics.items():
        hour = max(range(hours), key=limits.messages.__getitem__)
        lines.append(Limit(topic, hour, limits.messages[hour], limits.bytes[hour], spans[topic]))
    return lines, topics


def counted(frame: DataFrame, hours: int) -> tuple[list[HourCounts], dict[str, Straying]]:
    """Counts messages with the columns topic, store_ms and size: returns the counts of each topic by hours, and topic
    -> how far its spans stray."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    span = f.floor(f.col("store_ms") / SPAN_MS)
    spans = (
        frame.groupBy("topic", span.alias("span"))
        .agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
        .withColumn("hour", ((f.floor(f.col("span") * SPAN_MS / HOUR_MS) + hour_of(0, WEEK)) % hours).cast("int"))
        .cache()
    )
    try:
        by_hour = spans.groupBy("topic", "hour").agg(
            f.count("*").alias("spans"),
            f.avg("messages").alias("messages_mean"),
            f.percentile_approx("messages", PEAK, ACCURACY).alias("messages_peak"),
            f.avg("bytes").alias("bytes_mean"),
            f.percentile_approx("bytes", PEAK, ACCURACY).alias("bytes_peak"),
        )
        near = Window.partitionBy("topic", "hour")
        factors = spans.select(
            "topic",
            (f.col("messages") / f.avg("messages").over(near)).alias("messages"),
            # A topic with only empty bodies has the ratio 1, instead of a division by zero.
            f.coalesce(f.col("bytes") / f.nullif(f.avg("bytes").over(near), f.lit(0.0)), f.lit(1.0)).alias("bytes"),
        )
        strays = factors.groupBy("topic").agg(
            f.percentile_approx("messages", STRAYS, ACCURACY).alias("messages"),
            f.percentile_approx("bytes", STRAYS, ACCURACY).alias("bytes"),
        )
        counts = [HourCounts(*(row[name] for name in HourCounts._fields)) for row in by_hour.collect()]
        return counts, {row.topic: Straying(row.messages, row.bytes) for row in strays.collect()}
    finally:
        spans.unpersist(blocking=True)


def limits_file(report: TrafficReport, made_ms: int, valid_ms: int) -> LearntFile:
    """Returns the limits as a file that `raftmq quota import` accepts for `valid_ms` milliseconds after `made_ms`."""
    origin = LearntOrigin(
        cluster=report.cluster,
        made_ms=made_ms,
        first_ms=max(0, report.first_ms),
        last_ms=max(0, report.last_ms),
        expires_ms=made_ms + valid_ms,
    )
    return LearntFile(origin, report.topics)


def write_limits(file: LearntFile, to: Path) -> None:
    """Replaces the file atomically. Raises OSError."""
    fresh = to.with_name(f"{to.name}.{os.getpid()}.tmp")
    try:
        with fresh.open("wb") as opened:
            opened.write(encode_file(file))
            opened.flush()
            os.fsync(opened.fileno())
        fresh.replace(to)
    finally:
        fresh.unlink(missing_ok=True)
