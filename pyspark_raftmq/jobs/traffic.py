"""`raftmq spark traffic`: finds hot topics, queues and keys, and limits that the traffic so far would not have reached.

The limits are advice: no part of the cluster reads them. Each belongs to a topic and an hour of the day (UTC, log
time), so that a topic which is busy at night is not limited by its traffic during the day.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_raftmq.options import ReadOptions
from pyspark_raftmq.read_plan import topics_of
from raftmq.arrow.undecodable import RAW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = 1
_SECOND_MS = 1000
_HOUR_MS = 3_600_000
_HOURS = 24
HEADROOM = 1.3
"""The ratio of a limit to the 99.9th percentile of the busy seconds."""
FLOOR = 10
"""The lowest limit, in messages per second: a topic with hardly any traffic so far says nothing about its needs."""
_P = 0.999
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
    """The limits of one topic in one hour of the day, per second; `seconds` is the number of busy seconds from which
    they were learned."""

    topic: str
    hour: int
    messages_per_s: int
    bytes_per_s: int
    seconds: int


class TrafficReport(NamedTuple):
    """The result of a traffic job: queues and keys, the hottest first. `first_ms` and `last_ms` bound the messages that
    were read; -1 if there were none."""

    queues: list[QueueLine]
    keys: list[KeyLine]
    limits: list[Limit]
    first_ms: int
    last_ms: int


def traffic(spark: SparkSession, options: ReadOptions, given: dict[str, str]) -> TrafficReport:
    """Returns the report. `given` are the options from which `options` was parsed. Raises PlanError, and Spark's error
    of a task."""
    from pyspark.sql import functions as f

    with options.connect() as mq:
        if not topics_of(mq, options):
            return TrafficReport([], [], [], -1, -1)
    wanted = {**given, "columns": "topic,queue_id,store_ms,body,keys", "onUndecodable": RAW}  # their size is used
    frame = spark.read.format("raftmq").options(**wanted).load().withColumn("size", f.length("body")).drop("body")
    frame = frame.cache()
    try:
        first_ms, last_ms = frame.agg(f.min("store_ms"), f.max("store_ms")).first()
        if first_ms is None:
            return TrafficReport([], [], [], -1, -1)
        return TrafficReport(_queues(frame), _keys(frame), _limits(frame), first_ms, last_ms)
    finally:
        frame.unpersist()


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


def _limits(frame: DataFrame) -> list[Limit]:
    from pyspark.sql import functions as f

    second = f.col("store_ms") - f.col("store_ms") % _SECOND_MS
    per_second = frame.groupBy("topic", second.alias("at_ms")).agg(
        f.count("*").alias("messages"), f.sum("size").alias("bytes")
    )
    hour = (f.floor(f.col("at_ms") / _HOUR_MS) % _HOURS).cast("int")
    found = (
        per_second.groupBy("topic", hour.alias("hour"))
        .agg(
            f.percentile_approx("messages", _P).alias("messages"),
            f.percentile_approx("bytes", _P).alias("bytes"),
            f.count("*").alias("seconds"),
        )
        .collect()
    )
    return sorted(
        Limit(r.topic, r.hour, max(FLOOR, round(HEADROOM * r.messages)), round(HEADROOM * r.bytes), r.seconds)
        for r in found
    )


def limits_document(report: TrafficReport, made_ms: int, valid_ms: int) -> dict[str, Any]:
    """Returns the limits as versioned JSON. A program that uses them stops doing so at `expires_ms`, and then has no
    limits."""
    return {
        "v": VERSION,
        "made_ms": made_ms,
        "expires_ms": made_ms + valid_ms,
        "learned_from": {"first_ms": report.first_ms, "last_ms": report.last_ms},
        "headroom": HEADROOM,
        "limits": [limit._asdict() for limit in report.limits],
    }


def write_limits(document: dict[str, Any], to: Path) -> None:
    """Replaces the file atomically. Raises OSError."""
    fresh = to.with_name(f"{to.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        fresh.replace(to)
    finally:
        fresh.unlink(missing_ok=True)
