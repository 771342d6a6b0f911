"""Topics read as streams: each message once, through restarts, and progress that operators see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import raftmq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.ci, pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(180)]

Rows = list[tuple[str, int, int]]


class Query:
    """A stream into Parquet; each `run` is one availableNow query that goes on from the checkpoint."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path, **options: Any) -> None:
        self._spark = spark
        self._options = {"servers": servers, "columns": "topic,queue_id,queue_offset", **options}
        self._folder = folder
        self.where = "true"

    def run(self) -> list[int]:
        """Returns the number of rows of each of its batches."""
        frame = self._spark.readStream.format("raftmq").options(**self._options).load().where(self.where)
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(self._folder / "out"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
            return [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]
        finally:
            query.stop()

    def rows(self) -> Rows:
        found = self._spark.read.parquet(str(self._folder / "out")).collect()
        return sorted(tuple(row) for row in found)


def test_each_message_once_through_restarts(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path
) -> None:
    """Batches of at most ten, a topic that matches later, and a group whose lag is what Spark has not read."""
    mq.admin.create_topic("stream-a", 2)
    mq.send_batch("stream-a", [b"x"] * 15, queue_id=0)
    mq.send_batch("stream-a", [b"x"] * 4, queue_id=1)
    query = Query(
        spark,
        servers,
        tmp_path,
        subscribePattern="stream-.*",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=10,
        group="streamers",
    )
    assert query.run() == [10, 9]
    wanted = [("stream-a", 0, n) for n in range(15)] + [("stream-a", 1, n) for n in range(4)]
    assert query.rows() == wanted
    assert [each.lag for each in mq.admin.offsets("streamers", "stream-a")] == [0, 0]
    mq.send_batch("stream-a", [b"x"] * 3, queue_id=1)
    mq.admin.create_topic("stream-b", 1)
    mq.send_batch("stream-b", [b"x"] * 2, queue_id=0)
    assert [each.lag for each in mq.admin.offsets("streamers", "stream-a")] == [0, 3]
    assert query.run() == [5]
    assert query.rows() == sorted(
        wanted + [("stream-a", 1, n) for n in (4, 5, 6)] + [("stream-b", 0, 0), ("stream-b", 0, 1)]
    )
    assert [each.lag for each in mq.admin.offsets("streamers", "stream-b")] == [0]


def test_a_stream_begins_at_the_latest(spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path) -> None:
    mq.admin.create_topic("from-now", 1)
    mq.send_batch("from-now", [b"old", b"old"])
    query = Query(spark, servers, tmp_path, topic="from-now")
    assert query.run() == []
    mq.send_batch("from-now", [b"new"])
    assert query.run() == [1]
    assert query.rows() == [("from-now", 0, 2)]


@pytest.mark.parametrize("count", [2, 6, 9])
def test_a_stream_over_a_topic_that_was_made_anew(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path, count: int
) -> None:
    """However many messages the new one has: the offset of the stream may be there again."""
    from pyspark.errors import StreamingQueryException

    topic = f"anew-{count}"
    mq.admin.create_topic(topic, 1)
    mq.send_batch(topic, [b"x"] * 6)
    strict = Query(spark, servers, tmp_path, topic=topic, startingOffsets="earliest", group=topic)
    assert strict.run() == [6]
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, 1)
    mq.send_batch(topic, [b"x"] * count)
    with pytest.raises(StreamingQueryException, match=f"at offset 6 of {topic} queue 0, in another topic of this name"):
        strict.run()
    assert [each.lag for each in mq.admin.offsets(topic, topic)] == [count]
    lenient = Query(spark, servers, tmp_path, topic=topic, startingOffsets="earliest", failOnDataLoss=False)
    assert lenient.run() == [count]
    assert lenient.rows() == sorted([(topic, 0, n) for n in range(6)] + [(topic, 0, n) for n in range(count)])
    assert strict.run() == []


def test_a_filter_of_a_stream_selects_rows_and_moves_no_offset(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path
) -> None:
    """Spark pushes filters into batch reads only, also where its configuration allows it; every offset is read."""
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    mq.admin.create_topic("filtered", 1)
    mq.send_batch("filtered", [b"x"] * 8)
    query = Query(spark, servers, tmp_path, topic="filtered", startingOffsets="earliest", group="filterers")
    query.where = "queue_offset >= 5"
    assert query.run() == [8]
    assert query.rows() == [("filtered", 0, n) for n in (5, 6, 7)]
    assert [each.lag for each in mq.admin.offsets("filterers", "filtered")] == [0]
    assert query.run() == []
