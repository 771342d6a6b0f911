"""A topic read by Spark: the rows are what was sent, exactly, and every mistake is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import raftmq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(180)]

TOPIC = "orders"
QUEUES = 4
MESSAGES = 3000
BODIES = [f"order {number} ".encode() + bytes([number % 256, 0, 255]) for number in range(MESSAGES)]


def load(spark: SparkSession, servers: str, topic: str = TOPIC, **options: Any) -> DataFrame:
    return spark.read.format("raftmq").options(servers=servers, topic=topic, **options).load()


@pytest.fixture(scope="module")
def sent(mq: raftmq.Client) -> dict[bytes, raftmq.SendResult]:
    """body -> where it is; every third has no key, every fifth no tag."""
    mq.admin.create_topic(TOPIC, QUEUES)
    with mq.producer() as producer:
        futures = [
            producer.send_soon(
                TOPIC,
                body,
                key=None if number % 3 == 0 else ("k", str(number)),
                tag=None if number % 5 == 0 else "new",
                queue_id=number % QUEUES,
            )
            for number, body in enumerate(BODIES)
        ]
        return {body: future.result() for body, future in zip(BODIES, futures, strict=True)}


def test_rows_are_what_was_sent(spark: SparkSession, servers: str, sent: dict[bytes, raftmq.SendResult]) -> None:
    frame = load(spark, servers)
    assert frame.columns == [
        "topic",
        "queue_id",
        "queue_offset",
        "body",
        "tag",
        "keys",
        "message_id",
        "born_ms",
        "store_ms",
        "position",
        "properties",
        "store_time",
    ]
    rows = frame.collect()
    assert len(rows) == MESSAGES
    numbers = {body: number for number, body in enumerate(BODIES)}
    for row in rows:
        number, result = numbers[bytes(row.body)], sent[bytes(row.body)]
        assert (row.topic, row.queue_id, row.queue_offset) == (TOPIC, result.queue_id, result.queue_offset)
        assert row.message_id == result.message_id
        assert row["keys"] == (None if number % 3 == 0 else f"k {number}")
        assert row.tag == (None if number % 5 == 0 else "new")
        assert row.born_ms > 0
        assert row.store_ms > 0
        assert row.position == result.position
        assert row.properties["UNIQ_KEY"] == result.message_id
        assert int(row.store_time.timestamp() * 1000) == row.store_ms
    for queue in range(QUEUES):
        assert [row.queue_offset for row in rows if row.queue_id == queue] == list(range(MESSAGES // QUEUES))


def test_one_partition_per_queue(spark: SparkSession, servers: str, sent: object) -> None:
    assert load(spark, servers).rdd.getNumPartitions() == QUEUES


def test_many_small_batches_hold_every_row(spark: SparkSession, servers: str, sent: object) -> None:
    frame = load(spark, servers, batchRows=7)
    assert frame.count() == MESSAGES
    assert frame.select("queue_id", "queue_offset").distinct().count() == MESSAGES


def test_an_empty_topic_has_no_rows(spark: SparkSession, servers: str, mq: raftmq.Client) -> None:
    mq.admin.create_topic("nothing-yet", 2)
    frame = load(spark, servers, "nothing-yet")
    assert frame.count() == 0
    assert "body" in frame.columns


def test_a_range_of_offsets(spark: SparkSession, servers: str, sent: object) -> None:
    frame = load(
        spark,
        servers,
        startingOffsets=json.dumps({"0": 10, "1": "latest", "2": 0}),
        endingOffsets=json.dumps({"0": 20, "2": 5, "3": "earliest"}),
    )
    rows = sorted((row.queue_id, row.queue_offset) for row in frame.select("queue_id", "queue_offset").collect())
    assert rows == [(0, offset) for offset in range(10, 20)] + [(2, offset) for offset in range(5)]


def test_the_first_action_fixes_the_range(spark: SparkSession, servers: str, mq: raftmq.Client) -> None:
    """A message that arrives later is in no further action of this frame, nor of one made from it; a new `load` sees
    it."""
    mq.admin.create_topic("growing", 1)
    mq.send_batch("growing", [b"first", b"second"])
    frame = load(spark, servers, "growing")
    assert frame.count() == 2
    mq.send_batch("growing", [b"third"])
    assert frame.count() == 2
    assert [bytes(row.body) for row in frame.select("body").collect()] == [b"first", b"second"]
    assert load(spark, servers, "growing").count() == 3


def test_columns_and_a_schema_of_ones_own(spark: SparkSession, servers: str, sent: object) -> None:
    by_option = load(spark, servers, columns="body, queue_id")
    assert by_option.columns == ["body", "queue_id"]
    assert {bytes(row.body) for row in by_option.collect()} == set(BODIES)
    by_schema = (
        spark.read.format("raftmq").schema("store_ms bigint, tag string").options(servers=servers, topic=TOPIC).load()
    )
    assert by_schema.columns == ["store_ms", "tag"]
    assert by_schema.where("tag is null").count() == MESSAGES // 5


def test_sql_reads_a_view(spark: SparkSession, servers: str, sent: object) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING raftmq OPTIONS (servers '{servers}', topic '{TOPIC}')")
    rows = spark.sql("SELECT queue_id, max(queue_offset) AS last FROM orders GROUP BY queue_id").collect()
    assert {(row.queue_id, row["last"]) for row in rows} == {(q, MESSAGES // QUEUES - 1) for q in range(QUEUES)}


def test_bodies_larger_than_a_batch(spark: SparkSession, servers: str, mq: raftmq.Client) -> None:
    mq.admin.create_topic("large", 1)
    bodies = [bytes([number]) * (3 << 20) for number in range(6)]
    for body in bodies:
        mq.send("large", body)
    rows = load(spark, servers, "large", columns="queue_offset,body").collect()
    assert [bytes(row.body) == bodies[row.queue_offset] for row in rows] == [True] * 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "orders"}, "the option servers is missing"),
        ({"servers": "127.0.0.1:1"}, "the option topic is missing"),
        ({"servers": "h:1", "topic": "t", "startOffsets": "1"}, "did you mean startingOffsets?"),
        ({"servers": "h:1", "topic": "t", "columns": "boddy"}, "did you mean body?"),
    ],
)
def test_a_wrong_option_is_named(spark: SparkSession, options: dict[str, str], said: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=said.replace("?", r"\?")):
        spark.read.format("raftmq").options(**options).load().count()


def test_an_unknown_topic_is_named(spark: SparkSession, servers: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="there is no topic no-such-topic"):
        load(spark, servers, "no-such-topic").count()


def test_a_column_that_is_not_there_is_refused(spark: SparkSession, servers: str) -> None:
    from pyspark.errors import PySparkException

    reader = spark.read.format("raftmq").schema("queue_offset int").options(servers=servers, topic=TOPIC)
    with pytest.raises(PySparkException, match="asks for the column queue_offset int"):
        reader.load().count()
