"""An export that dies twenty times, before and after its commits, with a second driver beside it among them."""

from __future__ import annotations

import random
from collections.abc import Callable
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
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    topic, columns, target = f"killed-{form}", "topic,queue_id,queue_offset,store_ms,body", TARGETS[form]
    options = parse_options({"servers": servers, "topic": topic, "columns": columns})
    mq.admin.create_topic(topic, 3)
    commit, chance = target.commit, random.Random(20)
    died: list[str] = []

    def before(self: Any, files: list[DayFile], reached: Reached) -> int:
        died.append("before")
        raise DriverDied

    def after(self: Any, files: list[DayFile], reached: Reached) -> int:
        commit(self, files, reached)
        died.append("after")
        raise DriverDied

    def beside(self: Any, files: list[DayFile], reached: Reached) -> int:
        monkeypatch.setattr(target, "commit", commit)
        # The other driver does the same work, and is faster.
        export(spark, options, tmp_path, form=form, round_messages=50)
        died.append("beside")
        after(self, files, reached)
        raise AssertionError("a driver that was overtaken has committed")

    deaths: list[Callable[[Any, list[DayFile], Reached], int]] = [before, after, beside]
    while len(died) < DEATHS:
        mq.send_batch(topic, [b"x"] * chance.randrange(1, 60), queue_id=chance.randrange(3))
        monkeypatch.setattr(target, "commit", deaths[len(died) % 3] if len(died) < 6 else chance.choice(deaths))
        with suppress(DriverDied):
            export(spark, options, tmp_path, form=form, round_messages=50)
    monkeypatch.undo()
    export(spark, options, tmp_path, form=form)
    rows = parquet_rows(spark, tmp_path) if form == PARQUET else delta_rows(tmp_path)
    ends = {queue.queue_id: queue.max_offset for queue in mq.admin.describe_topic(topic).queues}
    assert sorted(rows) == [(queue, offset) for queue, end in sorted(ends.items()) for offset in range(end)]
    assert set(died) == {"before", "after", "beside"}
