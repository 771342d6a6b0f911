"""Filters of a query reach the source by default: the rows are Spark's own, and what does not match is not read."""

from __future__ import annotations

import random
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import raftmq
from pyspark_raftmq import register
from raftmq.local.cluster import LocalCluster
from tests.support.pace import at_most
from tests.support.wait_until import wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(180)]

TOPIC = "filters"
QUEUES, MESSAGES = 2, 400
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ORDER = ["queue_id", "queue_offset"]


@pytest.fixture(scope="module")
def times(mq: raftmq.Client) -> list[int]:
    """The store times of the messages, ascending; the last eighth was sent later than the rest."""
    mq.admin.create_topic(TOPIC, QUEUES)
    with mq.producer() as producer:
        sent: list[Future[raftmq.SendResult]] = []
        for number in range(MESSAGES):
            if number == MESSAGES * 7 // 8:
                for each in sent:
                    each.result()
                wait(partial(passed, time.time() + 0.01), "the clock stands still")
            tag = (None, "a", "b", "ä", "c")[number % 5]
            sent.append(producer.send_soon(TOPIC, b"x" * 100, key=f"k{number}", tag=tag, queue_id=number % QUEUES))
        for each in sent:
            each.result()
    table = raftmq.read_arrow(TOPIC, servers=mq.servers, columns=["store_ms"])
    return sorted(table["store_ms"].to_pylist())


def passed(moment_s: float) -> bool:
    return time.time() > moment_s


def load(spark: SparkSession, mq: raftmq.Client, **options: Any) -> DataFrame:
    return spark.read.format("raftmq").options(servers=";".join(mq.servers), topic=TOPIC, **options).load()


def rows_to_java(frame: DataFrame) -> int:
    """Reads the frame; returns the rows that Spark got from the tasks of the source."""
    frame.collect()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return int(leaves.head().metrics().apply("numOutputRows").value())


def delivered(cluster: LocalCluster) -> int:
    """Returns the bytes of the topic's messages that the nodes have sent to readers."""
    found = 0
    for node in cluster.nodes:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}/metrics", timeout=at_most(10)) as reply:
            text = reply.read().decode()
        lines = re.findall(rf'^rocketmq_throughput_out_total\{{topic="{TOPIC}"\}} (\d+)', text, re.MULTILINE)
        found += sum(map(int, lines))
    return found


@pytest.mark.parametrize("where", ["queue_offset >= 170", "store_time >= timestamp_millis({})", "queue_id = 5"])
def test_a_query_of_a_range_reads_at_most_a_quarter_of_the_log(
    spark: SparkSession, cluster: LocalCluster, mq: raftmq.Client, times: list[int], where: str
) -> None:
    before = delivered(cluster)
    assert rows_to_java(load(spark, mq)) == MESSAGES
    between = delivered(cluster)
    some = rows_to_java(load(spark, mq).where(where.format(times[-MESSAGES // 8])))
    assert some <= MESSAGES / 4
    assert delivered(cluster) - between <= (between - before) / 4


@pytest.mark.parametrize("where", ["tag = 'a' AND queue_id = 1", "keys LIKE 'k1%' AND tag = 'ä'", "tag IS NULL"])
def test_only_rows_that_match_go_to_java(spark: SparkSession, mq: raftmq.Client, times: list[int], where: str) -> None:
    matching = load(spark, mq, filterPushdown="false").where(where).count()
    assert 0 < matching <= MESSAGES / 4
    assert rows_to_java(load(spark, mq).where(where)) == matching


def any_predicate(chance: random.Random, times: list[int]) -> str:
    """A condition in SQL; some are such that no source is told of them."""
    number, text = chance.randrange(-2, MESSAGES // QUEUES + 2), chance.choice(["a", "b", "ä", "", "c", "k1", "%"])
    ms = chance.choice(times) + chance.choice([-1, 0, 1])
    comparison = chance.choice(["=", "<", "<=", ">", ">=", "<>", "<=>"])
    return chance.choice(
        [
            f"queue_offset {comparison} {number}",
            f"queue_id {comparison} {number % 3}",
            f"queue_id IN ({number % 2}, 7, NULL)",
            f"queue_offset NOT IN ({number}, {number + 1})",
            f"store_ms {comparison} {ms}",
            f"store_time {comparison} timestamp_micros({ms * 1000 + chance.choice([-1, 0, 1])})",
            f"tag {comparison} '{text}'",
            f"tag NOT IN ('a', {chance.choice(['NULL', repr(text)])})",
            f"keys LIKE '{text}%'",
            f"keys LIKE '%{number % 10}'",
            f"tag IS {chance.choice(['', 'NOT '])}NULL",
            f"(tag = '{text}' OR queue_offset < {number})",
            f"queue_offset % 3 = {number % 3}",
            f"body {comparison} X'78'",
            f"topic {comparison} '{TOPIC}'",
        ]
    )


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_that_spark_alone_would_keep(
    spark: SparkSession, mq: raftmq.Client, times: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    where = " AND ".join(any_predicate(chance, times) for _ in range(chance.randrange(1, 4)))
    alone, pushed = (
        load(spark, mq, filterPushdown=word).where(where).orderBy(*ORDER).toArrow() for word in ("false", "auto")
    )
    assert pushed.equals(alone), where


@pytest.fixture
def told_nothing(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of somebody's own, in which Spark's setting is as it comes."""
    spark.conf.unset(PUSHDOWN)
    yield spark
    spark.conf.set(PUSHDOWN, "true")


def test_a_session_of_ones_own_reads_until_it_is_told_to_pass_filters(
    told_nothing: SparkSession, mq: raftmq.Client, times: list[int]
) -> None:
    spark = told_nothing
    assert rows_to_java(load(spark, mq).where("queue_offset < 5")) == MESSAGES
    with pytest.raises(PySparkException, match=PUSHDOWN):
        load(spark, mq, filterPushdown=True).where("queue_offset < 5").count()
    register(spark)
    assert rows_to_java(load(spark, mq).where("queue_offset < 5")) == 5 * QUEUES
    spark.conf.set(PUSHDOWN, "false")
    register(spark)
    assert spark.conf.get(PUSHDOWN) == "false"
