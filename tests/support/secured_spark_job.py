"""A driver of its own that reads and writes as users of a secured cluster, and then waits: `python -m
tests.support.secured_spark_job FOLDER`.

Its first line of input is `Wanted` as JSON, so that no secret stands in a process list. It writes everything below
FOLDER, prints READY, and ends at its next line of input. Nothing that it writes is compressed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyspark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

READY = "the driver waits"
MARKER = "harmless-marker"
TOPIC, COPIES, HIDDEN, GROUP = f"{MARKER}-orders", f"{MARKER}-copies", f"{MARKER}-hidden", f"{MARKER}-lake"
CLUSTER = "local-cluster[1,2,1024]"
"""An executor is a process of its own, with a folder and logs of its own."""
LOGGED = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""


class Wanted(NamedTuple):
    """How the driver reaches the cluster, and as which users."""

    servers: str
    ca: str
    user: str
    secret: str
    """The secret of the options."""
    wrong: str
    """A secret that no user has."""
    user_file: str
    env_user: str
    env_secret: str
    """User and secret of the environment of the driver and the executors."""


class Places:
    """Where the driver writes what."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = folder / "checkpoints"
        self.events = folder / "events"
        self.local = folder / "local"
        self.home = folder / "spark"
        self.work = self.home / "work"
        """The folders of executors, which Spark puts into its home."""
        self.parquet = folder / "parquet"
        self.told = folder / "told.txt"
        """Plans and errors as a program sees them."""
        self.logging = folder / "log4j2.properties"


def prepare(folder: Path) -> dict[str, str]:
    """Makes the folders, and a home of Spark whose parts are those of the installed one; returns what the driver's
    environment gets."""
    places = Places(folder)
    for made in (places.events, places.local, places.home):
        made.mkdir(parents=True)
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":
            (places.home / part.name).symlink_to(part)
    places.logging.write_text(LOGGED)
    logged = f"-Dlog4j2.configurationFile={places.logging.as_uri()}"
    return {"SPARK_HOME": str(places.home), "SPARK_SUBMIT_OPTS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {logged}"}


def main(folder: Path) -> None:
    """Reads and writes in every way, and waits."""
    from pyspark.errors import PySparkException

    from pyspark_raftmq import session

    wanted, places = Wanted(**json.loads(sys.stdin.readline())), Places(folder)
    os.environ |= {"RAFTMQ_ACCESS_KEY": wanted.env_user, "RAFTMQ_SECRET_KEY": wanted.env_secret}
    spark = session(
        CLUSTER,
        app_name=f"{MARKER}-app",
        config={
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": places.events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.logBlockUpdates.enabled": "true",
            "spark.eventLog.logStageExecutorMetrics": "true",
            "spark.local.dir": str(places.local),
            "spark.shuffle.compress": "false",
            "spark.broadcast.compress": "false",
            "spark.shuffle.spill.compress": "false",
            "spark.sql.inMemoryColumnarStorage.compressed": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.maxMetadataStringLength": "10000",
            "spark.executor.memory": "1g",
            "spark.executor.extraJavaOptions": f"-Dlog4j2.configurationFile={places.logging.as_uri()}",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    spark.sparkContext.setLogLevel("INFO")
    by_options = {"servers": wanted.servers, "tlsCa": wanted.ca, "accessKey": wanted.user, "secretKey": wanted.secret}
    by_file = {"servers": wanted.servers, "tlsCa": wanted.ca, "userFile": wanted.user_file}
    by_environment = {"servers": wanted.servers, "tlsCa": wanted.ca}
    told: list[str] = []
    for number, given in enumerate((by_options, by_file, by_environment)):
        told += work(spark, places, str(number), given)
    as_sql(spark, by_options)
    for wrong in ({**by_options, "secretKey": wanted.wrong}, {**by_options, "accessKey": "nobody"}):
        for attempt in (lambda: count(spark, wrong, TOPIC), lambda: streamed(spark, places, wrong)):  # noqa: B023
            try:
                attempt()
            except PySparkException:
                told.append(traceback.format_exc())
            else:
                raise AssertionError("a wrong secret was taken")
    try:
        count(spark, by_options, HIDDEN)
    except PySparkException:
        told.append(traceback.format_exc())
        print(told[-1], file=sys.stderr)  # noqa: T201 - as a program whose error nobody catches
    places.told.write_text("\n".join(told))
    print(READY, flush=True)  # noqa: T201 - for the test
    sys.stdin.readline()
    spark.stop()


def work(spark: SparkSession, places: Places, number: str, given: dict[str, str]) -> list[str]:
    """Reads and writes as one user; returns the plans."""
    read = spark.read.format("raftmq").options(**given, topic=TOPIC).load()
    kept = read.selectExpr("CAST(body AS STRING) AS body", "queue_id").mapInArrow(speaks, "body string, queue_id int")
    kept.write.option("compression", "none").parquet(str(places.parquet / number))
    disk = kept.repartition(2)
    disk.persist(pyspark.StorageLevel.DISK_ONLY)
    disk.count()
    sink = read.selectExpr("body").write.format("raftmq").mode("append").options(**given, topic=COPIES)
    sink.option("writeId", f"{MARKER}-{number}").save()
    query = stream(spark, given).writeStream.format("raftmq").options(**given, topic=COPIES)
    query = query.option("checkpointLocation", str(places.checkpoints / f"to-topic-{number}"))
    running = query.queryName(f"{MARKER}-query-{number}").trigger(availableNow=True).start()
    assert running.awaitTermination(240)
    files = stream(spark, given).groupBy("body").count().writeStream.format("memory").outputMode("complete")
    files = files.queryName(f"counts_{number}").option(
        "checkpointLocation", str(places.checkpoints / f"counts-{number}")
    )
    counted = files.trigger(availableNow=True).start()
    assert counted.awaitTermination(240)
    return [
        read._jdf.queryExecution().toString(),
        disk._jdf.queryExecution().toString(),
        str(running.lastProgress),
        str(counted.lastProgress),
        running._jsq.toString(),
    ]


def stream(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    """Returns a stream of the topic, whose offsets are committed for the group."""
    source = spark.readStream.format("raftmq").options(**given, topic=TOPIC, group=GROUP)
    return source.option("startingOffsets", "earliest").option("columns", "body,queue_id").load().select("body")


def speaks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Writes to the executor's log, as programs do."""
    print(f"{MARKER}: a task", file=sys.stderr)  # noqa: T201
    yield from batches


def as_sql(spark: SparkSession, given: dict[str, str]) -> None:
    """Names the options in SQL."""
    options = ", ".join(f"{name} '{value}'" for name, value in {**given, "topic": TOPIC}.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING raftmq OPTIONS ({options})")
    assert spark.sql("SELECT count(*) AS many FROM orders").first() is not None
    spark.sql("EXPLAIN EXTENDED SELECT * FROM orders").show(truncate=False)
    spark.sql("SELECT string(body) FROM orders").show(truncate=False)


def count(spark: SparkSession, given: dict[str, str], topic: str) -> int:
    """Returns the number of messages in a topic."""
    return spark.read.format("raftmq").options(**given, topic=topic).load().count()


def streamed(spark: SparkSession, places: Places, given: dict[str, str]) -> None:
    """Runs a stream to its end or error."""
    query = stream(spark, given).writeStream.format("noop").trigger(availableNow=True)
    query.option("checkpointLocation", str(places.checkpoints / "fails")).start().awaitTermination(240)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
