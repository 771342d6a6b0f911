"""Counts the messages of a topic as a stream: one JSON line after each batch, with the sum of all batches.

The sum is part of the stream's checkpoint, so a restarted container goes on where it stopped. Usage: count.py TOPIC
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_raftmq import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SERVERS = os.environ.get("RAFTMQ_SERVERS", "n1:9876;n2:9876;n3:9876")
CHECKPOINTS = Path(os.environ.get("CHECKPOINTS", "/checkpoints"))
SECRET = Path("/handed/spark/secret")
COUNTING = Path("/data/counting")
"""The file that is there while the stream runs, for the health check."""


def main(topic: str) -> None:
    """Runs until it is stopped."""
    COUNTING.unlink(missing_ok=True)
    if SECRET.exists():
        os.environ.update(RAFTMQ_ACCESS_KEY="spark", RAFTMQ_SECRET_KEY=SECRET.read_text())
    spark = session(app_name="count", config={"spark.sql.shuffle.partitions": "2"})
    rows = (
        spark.readStream.format("raftmq")
        .option("servers", SERVERS)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("columns", "queue_id,queue_offset")
        .load()
    )

    def show(counts: DataFrame, batch: int) -> None:
        (row,) = counts.collect()
        sys.stdout.write(json.dumps({"topic": topic, "batch": batch, "messages": row["count"]}) + "\n")
        sys.stdout.flush()

    query = (
        rows.groupBy()
        .count()
        .writeStream.outputMode("complete")
        .option("checkpointLocation", str(CHECKPOINTS / topic))
        .trigger(processingTime="5 seconds")
        .foreachBatch(show)
        .start()
    )
    while query.lastProgress is None and not query.awaitTermination(1):
        pass
    COUNTING.touch()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
