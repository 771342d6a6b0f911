"""Data frames written to topics: every row once, and what cannot be written is said before a task starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import raftmq
from pyspark_raftmq.writing.sink import TopicWriter
from pyspark_raftmq.writing.sink_options import parse_sink_options
from tests.support.stream_between_topics import StreamBetweenTopics
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


def test_a_batch_write_that_is_run_again_says_that_its_rows_were_left_out(
    servers: str, mq: raftmq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """What Spark does with a batch of one task, in this process, whose log can be read."""
    mq.admin.create_topic("sink-again", 1)

    def write(write_id: str | None, *bodies: str) -> list[str]:
        given = {"servers": servers, "topic": "sink-again"} | ({"writeId": write_id} if write_id else {})
        writer = TopicWriter(parse_sink_options(given, stream=False))
        caplog.clear()
        writer.commit([writer.write(iter([pa.record_batch({"body": pa.array(bodies, pa.string())})]))])
        return [record.getMessage() for record in caplog.records if record.name.startswith("pyspark_raftmq")]

    assert write("again-1", "a", "b") == []
    (said,) = write("again-1", "a", "b")
    assert said.startswith('the write with writeId "again-1" was committed before, so these rows were left out')
    assert "sink-again" in said
    assert write("again-1") == [], "no row was left out"
    assert write("again-2", "c") == write(None, "d") == write(None, "d") == []
    assert sorted(row.body for row in wait_for_rows(mq, "sink-again", 5)) == [b"a", b"b", b"c", b"d", b"d"]


def test_two_batch_writes_of_one_id_at_the_same_time_say_that_one_counts(
    servers: str, mq: raftmq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    mq.admin.create_topic("sink-twice", 1)
    options = parse_sink_options({"servers": servers, "topic": "sink-twice", "writeId": "same"}, stream=False)
    writer = TopicWriter(options)
    done = [writer.write(iter([pa.record_batch({"body": pa.array([body], pa.string())})])) for body in "ab"]
    writer.commit(done[:1])
    assert not caplog.records
    writer.commit(done[1:])
    assert "the rows of only one of them are in the topic sink-twice" in caplog.records[-1].getMessage()
    assert [row.body for row in wait_for_rows(mq, "sink-twice", 1)] == [b"a"]


@pytest.mark.slow
def test_a_stream_goes_from_topic_to_topic(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path
) -> None:
    for name in ("sink-from", "sink-to"):
        mq.admin.create_topic(name, 2)
    stream = StreamBetweenTopics(spark, servers, "sink-from", "sink-to", tmp_path / "checkpoint", columns="body,keys")

    mq.send_batch("sink-from", [b"%d" % number for number in range(40)], queue_id=0)
    stream.run()
    stream.forget_the_end()
    stream.run()
    mq.send_batch("sink-from", [b"%d" % number for number in range(40, 60)], queue_id=1)
    stream.run()
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
