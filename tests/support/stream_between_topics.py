"""A Spark stream that copies one topic to another, and forgets what it has done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StreamBetweenTopics:
    """A stream with a checkpoint, which is run until it has read what there is."""

    def __init__(
        self, spark: SparkSession, servers: str, source: str, target: str, checkpoint: Path, *, columns: str
    ) -> None:
        self._checkpoint = checkpoint
        self._spark, self._servers, self._source, self._target, self._columns = spark, servers, source, target, columns

    def run(self) -> None:
        """Goes on after the last batch that the checkpoint has, until everything that the topic has is written."""
        read = self._spark.readStream.format("raftmq").options(
            servers=self._servers, topic=self._source, columns=self._columns, startingOffsets="earliest"
        )
        write = read.load().writeStream.format("raftmq")
        query = (
            write.options(servers=self._servers, topic=self._target, checkpointLocation=str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    def forget_the_end(self) -> None:
        """Leaves the checkpoint as if the driver had died before it noted that its last batches were done."""
        for done in (self._checkpoint / "commits").iterdir():
            done.unlink()
