"""Data frames written to topics: every row once, and what cannot be written is said before a task starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import raftmq
from tests.support.topic_rows import wait_for_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(240)]


def test_a_batch_write_comes_once_also_if_it_is_run_again(spark: SparkSession, servers: str, mq: raftmq.Client) -> None:
    mq.admin.create_topic("sink-batch", 2)
    frame = spark.range(100).selectExpr(
        "CAST(id AS STRING) AS body", "CAST(id % 2 AS INT) AS queue_id", "'red' AS tag", "concat('k', id) AS keys"
    )
    sink = frame.write.format("raftmq").mode("append").options(servers=servers, topic="sink-batch", sliceRows=7)
    for _ in range(2):
        sink.option("writeId", "one").save()
    rows = wait_for_rows(mq, "sink-batch", 100)
    assert sorted(int(row.body) for row in rows) == list(range(100))
    assert all(int(row.body) % 2 == row.queue_id and row.tag == "red" for row in rows)
    assert {row.keys for row in rows} == {(f"k{number}",) for number in range(100)}
    sink.option("writeId", "two").save()
    wait_for_rows(mq, "sink-batch", 200)


@pytest.mark.slow
def test_a_stream_goes_from_topic_to_topic(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path
) -> None:
    for name in ("sink-from", "sink-to"):
        mq.admin.create_topic(name, 2)

    def run() -> None:
        read = spark.readStream.format("raftmq").options(servers=servers, topic="sink-from", columns="body,keys")
        query = (
            read.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("raftmq")
            .options(servers=servers, topic="sink-to", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    mq.send_batch("sink-from", [b"%d" % number for number in range(40)], queue_id=0)
    run()
    for done in (tmp_path / "checkpoint" / "commits").iterdir():
        done.unlink()  # as if the driver had died before it noted that the batch was done
    run()
    mq.send_batch("sink-from", [b"%d" % number for number in range(40, 60)], queue_id=1)
    run()
    rows = wait_for_rows(mq, "sink-to", 60)
    assert sorted(int(row.body) for row in rows) == list(range(60))


@pytest.mark.parametrize("stream", [False, True])
def test_a_topic_that_is_missing_is_refused_before_a_task_starts(
    spark: SparkSession, servers: str, tmp_path: Path, stream: bool
) -> None:
    """The driver refuses it: there is no job, and so no line of Java about tasks."""

    def write() -> None:
        source = spark.readStream.format("rate").load() if stream else spark.range(3).withColumnRenamed("id", "value")
        rows = source.selectExpr("CAST(value AS STRING) AS body")
        options = {"servers": servers, "topic": "sink-none"}
        if stream:
            sink = rows.writeStream.format("raftmq").option("checkpointLocation", str(tmp_path / "checkpoint"))
            sink.options(**options).start().awaitTermination(60)
        else:
            rows.write.format("raftmq").mode("append").options(**options).save()

    before = len(spark.sparkContext.statusTracker().getJobIdsForGroup())
    with pytest.raises(PySparkException, match="there is no topic sink-none") as caught:
        write()
    assert "raftmq topic create sink-none" in str(caught.value)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup()) == before
