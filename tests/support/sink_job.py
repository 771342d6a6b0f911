"""A driver of its own, for tests that kill it or want another master: `python sink_job.py MODE SERVERS TOPIC FOLDER`.

MODE is `fails` or `speculates` (a batch whose tasks do that), or one of a stream: `before` and `after` (it dies on that
side of its first commit), or `whole`. FOLDER is for checkpoints and for what the tries of tasks leave behind.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.pace import at_most

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Rows = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]
ROWS, TASKS = 400, 4
FROM = "sink-job-from"
"""The topic that streams copy."""
CLUSTER = "local-cluster[2,1,1024]"
"""Two executors: plain local[N] tries no task again. The environment's SINK_MASTER is for `speculates`."""
SMALL = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    "spark.executor.memory": "1g",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "500ms",
}


def main(mode: str, servers: str, topic: str, folder: str) -> None:
    """One driver, from its start to its end."""
    from pyspark_raftmq import session

    master = {"fails": CLUSTER, "speculates": os.environ.get("SINK_MASTER", CLUSTER)}.get(mode, "local[2]")
    spark = session(master, config={**SMALL, **(SPECULATION if mode == "speculates" else {})})
    tries = Path(folder) / "tries"
    tries.mkdir(exist_ok=True)
    if mode in ("fails", "speculates"):
        made = spark.range(0, ROWS, 1, TASKS).selectExpr("CAST(id AS STRING) AS body")
        rows = made.mapInArrow(fails(tries) if mode == "fails" else lingers(tries), "body string")
        sink = rows.write.format("raftmq").mode("append").options(servers=servers, topic=topic, sliceRows="10")
        sink.option("writeId", mode).save()
    else:
        stream(spark, mode, servers, topic, Path(folder))
    spark.stop()


def fails(tries: Path) -> Rows:
    """The first try of every task yields half of its rows and fails; the next one yields them shuffled."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.attemptNumber()
        (tries / f"{context.partitionId()}-{number}").touch()
        found = list(batches)
        if number:
            random.Random(number).shuffle(found)
        for at, batch in enumerate(found):
            if not number and at == len(found) // 2:
                time.sleep(1)  # what was yielded is staged
                raise RuntimeError("this try fails after half of its rows")
            yield batch

    return rows


def lingers(tries: Path) -> Rows:
    """The first try of the last task waits before its last rows until a second one has begun, and then some."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        mine = tries / f"{context.partitionId()}-{context.attemptNumber()}"
        mine.write_text(f"began {time.time()}")
        found = list(batches)
        slow = context.partitionId() == TASKS - 1 and not context.attemptNumber()
        yield from found[:-1]
        end = time.monotonic() + at_most(400)
        other = tries / f"{context.partitionId()}-1"
        while slow and not other.exists() and time.monotonic() < end:
            time.sleep(0.1)
        if other.exists():
            mine.write_text("both were live")
        yield from found[-1:]

    return rows


def stream(spark: SparkSession, mode: str, servers: str, topic: str, folder: Path) -> None:
    """Copies the topic FROM, as far as it goes. With `before` and `after` everything of this driver is killed at that
    side of the first commit."""
    spark.dataSource.register(dying(os.getpgid(0), mode))
    query = (
        spark.readStream.format("raftmq")
        .options(servers=servers, topic=FROM, columns="body", startingOffsets="earliest")
        .load()
        .writeStream.format("dying")
        .options(servers=servers, topic=topic, checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)


def dying(group: int, mode: str) -> type:
    """The data source, whose commits kill the process group `group`. Made here, so that Spark pickles it whole."""
    from pyspark_raftmq.source import DefaultSource
    from pyspark_raftmq.writing.sink import TaskDone, TopicStreamWriter
    from pyspark_raftmq.writing.sink_options import parse_sink_options

    class DyingWriter(TopicStreamWriter):
        def commit(self, messages: Sequence[TaskDone | None], batchId: int) -> None:
            if mode == "before":
                os.killpg(group, 9)
                os._exit(1)
            super().commit(messages, batchId)
            if mode == "after":
                os.killpg(group, 9)
                os._exit(1)

    class Dying(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamWriter(self, schema: object, overwrite: bool) -> DyingWriter:
            return DyingWriter(parse_sink_options(self.options, stream=True))

    return Dying


if __name__ == "__main__":
    main(*sys.argv[1:])
