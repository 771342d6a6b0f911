"""An export that dies twenty times, before and after its commits, with a second driver beside it among them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import raftmq
from pyspark_raftmq.jobs.day_files import DayFile
from pyspark_raftmq.jobs.delta_table import DeltaTarget
from pyspark_raftmq.jobs.export import export
from pyspark_raftmq.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(1800)]

TOPIC = "killed"
DEATHS = 20
Reached = dict[tuple[str, int], int]


class DriverDied(BaseException):
    """Nothing of the job may catch it."""


def test_each_message_is_in_the_table_once(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    columns = "topic,queue_id,queue_offset,store_ms,body"
    options = parse_options({"servers": servers, "topic": TOPIC, "columns": columns})
    mq.admin.create_topic(TOPIC, 3)
    commit, chance = DeltaTarget.commit, random.Random(20)
    died: list[str] = []

    def before(self: DeltaTarget, files: list[DayFile], reached: Reached) -> int:
        died.append("before")
        raise DriverDied

    def after(self: DeltaTarget, files: list[DayFile], reached: Reached) -> int:
        commit(self, files, reached)
        died.append("after")
        raise DriverDied

    def beside(self: DeltaTarget, files: list[DayFile], reached: Reached) -> int:
        monkeypatch.setattr(DeltaTarget, "commit", commit)
        export(spark, options, tmp_path, round_messages=50)  # the other driver does the same work, and is faster
        died.append("beside")
        after(self, files, reached)
        raise AssertionError("a driver that was overtaken has committed")

    deaths: list[Callable[[DeltaTarget, list[DayFile], Reached], int]] = [before, after, beside]
    while len(died) < DEATHS:
        mq.send_batch(TOPIC, [b"x"] * chance.randrange(1, 60), queue_id=chance.randrange(3))
        monkeypatch.setattr(DeltaTarget, "commit", deaths[len(died) % 3] if len(died) < 6 else chance.choice(deaths))
        with suppress(DriverDied):
            export(spark, options, tmp_path, round_messages=50)
    monkeypatch.undo()
    export(spark, options, tmp_path)
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["queue_id", "queue_offset"]).to_pylist()
    ends = {queue.queue_id: queue.max_offset for queue in mq.admin.describe_topic(TOPIC).queues}
    assert sorted((row["queue_id"], row["queue_offset"]) for row in rows) == [
        (queue, offset) for queue, end in sorted(ends.items()) for offset in range(end)
    ]
    assert set(died) == {"before", "after", "beside"}
