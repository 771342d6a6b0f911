"""Real-shaped messages by the million: what Spark reads is what was acknowledged, also when the leader dies during the
read, and the rows derived from the log are those of the node.

    RAFTMQ_SPARK_MESSAGES=10000000 python -m pytest -m slow tests/pyspark_raftmq/test_millions.py
"""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import raftmq
from pyspark_raftmq.jobs.rebuild import rebuild
from raftmq.arrow.log_copy import FILES, CopySource
from raftmq.cli import run
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = int(os.environ.get("RAFTMQ_SPARK_MESSAGES", "60000"))
_LIMIT_S = 1800 + MESSAGES // 500
pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(_LIMIT_S)]

TOPIC = "millions"
QUEUES = 8
BATCH = 500
SINGLES = 10
"""One of so many runs of messages is sent message by message: each then has a key and an entry of its own."""
TASKS = 64
PATIENCE_S = at_most(120)


class Filled(NamedTuple):
    """A cluster, and of each queue how many messages were acknowledged; message n of a queue has offset n."""

    live: LocalCluster
    home: Path
    acked: list[int]


def body(queue: int, number: int) -> bytes:
    """An order as JSON, 80 to 280 bytes."""
    note = "x" * (number * 7919 % 200)
    return b'{"order":%d,"queue":%d,"cents":%d,"note":"%s"}' % (number, queue, cents(number), note.encode())


def cents(number: int) -> int:
    return number * 31 % 10_007


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    home = tmp_path_factory.mktemp("millions")
    live = LocalCluster(home / "data")
    live.up(3, free_base_port(12))
    try:
        with raftmq.connect(live.servers) as mq:
            mq.admin.create_topic(TOPIC, QUEUES)
            yield Filled(live, home, fill(mq))
    finally:
        live.down()


def fill(mq: raftmq.Client) -> list[int]:
    """Asserts that every message was acknowledged at the offset that its body says."""
    acked = [0] * QUEUES
    with mq.producer() as producer:
        for turn in range(-(-MESSAGES // BATCH)):
            queue = turn % QUEUES
            first = acked[queue]
            bodies = [body(queue, first + number) for number in range(BATCH)]
            if turn % SINGLES:
                results = mq.send_batch(TOPIC, bodies, queue_id=queue, key=f"run-{turn}", tag="run")
            else:
                sent = [
                    producer.send_soon(TOPIC, each, queue_id=queue, key=f"order-{queue}-{first + number}", tag="single")
                    for number, each in enumerate(bodies)
                ]
                results = [each.result() for each in sent]
            assert [result.queue_offset for result in results] == list(range(first, first + BATCH))
            acked[queue] += BATCH
    return acked


def sums(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Returns, for each queue, the messages, sums of what they say, and how many do not stand where they were
    acknowledged."""
    from pyspark.sql import functions as f

    text = f.col("body").cast("string")
    said = f.get_json_object(text, "$.order").cast("bigint")
    rows = (
        frame.groupBy("queue_id")
        .agg(
            f.count("*"),
            f.sum("queue_offset"),
            f.bit_xor("queue_offset"),
            f.sum(f.get_json_object(text, "$.cents").cast("bigint")),
            f.count_if((said != f.col("queue_offset")) | (f.get_json_object(text, "$.queue") != f.col("queue_id"))),
        )
        .collect()
    )
    return sorted(tuple(row) for row in rows)


def acknowledged(counts: list[int]) -> list[tuple[Any, ...]]:
    """Returns the rows that `sums` is to return."""
    found = []
    for queue, count in enumerate(counts):
        together = 0
        for number in range(count):
            together ^= number
        found.append((queue, count, count * (count - 1) // 2, together, sum(map(cents, range(count))), 0))
    return found


def kill_the_leader_during(spark: SparkSession, live: LocalCluster, job: concurrent.futures.Future[Any]) -> int:
    """Kills the leader when some of the job's tasks have ended and some have not; returns the node. Asserts that this
    moment came."""
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not job.done():
        for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()):
            if stage is not None and TASKS // 8 < stage.numCompletedTasks < stage.numTasks // 2:
                node = live.wait_leader()
                live.kill(node)
                return node
        time.sleep(0.01)
    raise AssertionError("the leader was not killed during the read")


@pytest.mark.parametrize("read_from", ["leader", "follower"])
def test_rows_are_those_acknowledged_though_the_leader_dies(
    spark: SparkSession, filled: Filled, read_from: str
) -> None:
    options = {"servers": filled.live.servers, "topic": TOPIC, "columns": "queue_id,queue_offset,body"}
    frame = spark.read.format("raftmq").options(**options, readFrom=read_from, minPartitions=TASKS).load()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(sums, frame)
        node = kill_the_leader_during(spark, filled.live, job)
        found = job.result()
    filled.live.restart(node)
    assert found == acknowledged(filled.acked)


def test_rebuilt_rows_are_those_of_the_node(spark: SparkSession, filled: Filled) -> None:
    assert run(["backup", "create", "--to", str(filled.home / "backups"), "--data", str(filled.home / "data")]) == 0
    (folder,) = (filled.home / "backups").iterdir()
    backup = CopySource(FILES, str(folder))
    found = rebuild(spark, backup, backup)
    assert (found.differences, found.underived) == ([], [])
    assert found.items >= sum(filled.acked)
    assert found.records >= sum(filled.acked)
