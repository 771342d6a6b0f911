"""A driver that copies a topic to queues of several groups of brokers until it is killed: `python -m
tests.support.group_sink_job SERVERS FROM TO FOLDER SEED`.

Before each request of a commit it waits for a random time, so that a kill at any moment finds the commit under way. It
writes the requests, each with the number of its batch, to FOLDER/steps before it sends them.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

STEPS = "steps"
BEGUN, DONE = "begun", "done"
"""The first and the last step of a commit; between them are the names of its requests."""
PAUSE_S = 0.5
"""The longest wait before a step."""


def main(servers: str, source: str, target: str, folder: str, seed: str) -> None:
    """One driver, from its start to the end of its query, which is a failure."""
    from pyspark_raftmq import session

    spark = session("local[2]")
    spark.dataSource.register(slow(Path(folder), seed))
    read = spark.readStream.format("raftmq").options(servers=servers, topic=source, columns="body,queue_id")
    query = (
        read.option("startingOffsets", "earliest")
        .load()
        .writeStream.format("slow")
        .options(servers=servers, topic=target, checkpointLocation=str(Path(folder) / "checkpoint"))
        .start()
    )
    query.awaitTermination()


def slow(folder: Path, seed: str) -> type:
    """The data source, whose commits take their time. Made here, so that Spark pickles it whole."""
    from pyspark_raftmq.source import DefaultSource
    from pyspark_raftmq.writing.sink import TaskDone, TopicStreamWriter
    from pyspark_raftmq.writing.sink_options import parse_sink_options
    from raftmq.client.producing.staged_writes_client import StagedWrites

    class SlowWriter(TopicStreamWriter):
        def commit(self, messages: Sequence[TaskDone | None], batchId: int) -> None:
            chance, real = random.Random(f"{seed} {batchId}"), StagedWrites._ask

            def step(name: str) -> None:
                with (folder / STEPS).open("a") as steps:
                    steps.write(f"{batchId} {name}\n")
                time.sleep(chance.uniform(0, PAUSE_S))

            def ask(self: StagedWrites, code: Any, *rest: Any) -> Any:
                step(code.name)
                return real(self, code, *rest)

            step(BEGUN)
            with patch.object(StagedWrites, "_ask", ask):
                super().commit(messages, batchId)
            step(DONE)

    class Slow(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "slow"

        def streamWriter(self, schema: object, overwrite: bool) -> SlowWriter:
            return SlowWriter(parse_sink_options(self.options, stream=True))

    return Slow


if __name__ == "__main__":
    main(*sys.argv[1:])
