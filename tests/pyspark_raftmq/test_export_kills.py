"""An export that dies twenty times, before and after its commits, with a second driver beside it among them."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from pyspark_raftmq.jobs.export import DELTA, PARQUET, TARGETS, export
from pyspark_raftmq.options import parse_options
from raftmq.tables.day_files import DayFile
from raftmq_wire.topic_identity import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(1800)]

DEATHS = 20
Reached = dict[tuple[str, int], Position]


class DriverDied(BaseException):
    """Nothing of the job may catch it."""


def parquet_rows(spark: SparkSession, folder: Path) -> list[tuple[int, int]]:
    """Reads the folder as any user of Spark does."""
    return [tuple(row) for row in spark.read.parquet(str(folder)).select("queue_id", "queue_offset").collect()]


def delta_rows(folder: Path) -> list[tuple[int, int]]:
    from deltalake import DeltaTable

    table = DeltaTable(str(folder)).to_pyarrow_table(columns=["queue_id", "queue_offset"])
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("form", [DELTA, PARQUET])
def test_each_message_is_there_once(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path, form: str
) -> None:
    topic, columns, target = f"killed-{form}", "topic,queue_id,queue_offset,store_ms,body", TARGETS[form]
    options = parse_options({"servers": servers, "topic": topic, "columns": columns})
    mq.admin.create_topic(topic, 3)
    chance, died = random.Random(20), list[str]()

    class Before(target):  # type: ignore[valid-type, misc]
        def commit(self, *_: Any) -> int:
            died.append("before")
            raise DriverDied

    class After(target):  # type: ignore[valid-type, misc]
        def commit(self, files: list[DayFile], reached: Reached) -> int:
            super().commit(files, reached)
            died.append("after")
            raise DriverDied

    class Beside(After):
        def commit(self, files: list[DayFile], reached: Reached) -> int:
            # The other driver does the same work, and is faster.
            export(spark, options, tmp_path, kind=target, round_messages=50)
            died.append("beside")
            super().commit(files, reached)
            raise AssertionError("a driver that was overtaken has committed")

    deaths: list[Any] = [Before, After, Beside]
    while len(died) < DEATHS:
        mq.send_batch(topic, [b"x"] * chance.randrange(1, 60), queue_id=chance.randrange(3))
        death = deaths[len(died) % 3] if len(died) < 6 else chance.choice(deaths)
        with suppress(DriverDied):
            export(spark, options, tmp_path, kind=death, round_messages=50)
    export(spark, options, tmp_path, kind=target)
    rows = parquet_rows(spark, tmp_path) if form == PARQUET else delta_rows(tmp_path)
    ends = {queue.queue_id: queue.max_offset for queue in mq.admin.describe_topic(topic).queues}
    assert sorted(rows) == [(queue, offset) for queue, end in sorted(ends.items()) for offset in range(end)]
    assert set(died) == {"before", "after", "beside"}
