"""One bad item stops no read by Spark, unless the read is to fail: then the error names the message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from deltalake import DeltaTable

import raftmq
from pyspark_raftmq.jobs.export import export
from pyspark_raftmq.jobs.report import report
from pyspark_raftmq.jobs.traffic import traffic
from pyspark_raftmq.options import parse_options
from pyspark_raftmq.spark_cli import spark as spark_command
from raftmq.cli import run
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.errors import LocalError
from tests.support.bad_items import BAD, SOUND, UNDECODABLE, fill
from tests.support.small_segments import small_segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(180)]

TOPIC = "filled-by-strangers"
ALL = len(SOUND) + len(BAD)
FIRST = f"{TOPIC} queue 0 offset 1 cannot be decoded"


class Filled(NamedTuple):
    """Where the items are: on a node, and in a backup of it."""

    servers: str
    backup: str

    def options(self, **more: str) -> dict[str, str]:
        return {"servers": self.servers, "topic": TOPIC, **more}

    def copied(self, **more: str) -> dict[str, str]:
        return {"readFrom": "files", "path": self.backup, "topic": TOPIC, **more}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    home = tmp_path_factory.mktemp("filled")
    cluster = LocalCluster(home / "data")
    try:
        with small_segments():
            cluster.up(1, free_base_port(4))
        with raftmq.connect(cluster.servers) as mq:
            mq.admin.create_topic(TOPIC, queues=1)
            fill(mq, TOPIC)
        assert run(["backup", "create", "--to", str(home / "backups"), "--data", str(home / "data")]) == 0
        (backup,) = (home / "backups").iterdir()
        yield Filled(cluster.servers, str(backup))
    finally:
        cluster.down()


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("raftmq").options(**options).load()


def bodies(frame: DataFrame) -> list[bytes]:
    return [bytes(row.body) for row in frame.select("body").collect()]


@pytest.mark.parametrize("where", [Filled.options, Filled.copied], ids=["node", "copy"])
def test_a_batch(spark: SparkSession, filled: Filled, where: Any) -> None:
    raw = bodies(load(spark, where(filled, onUndecodable="raw")))
    assert len(raw) == ALL
    assert {*SOUND, *(bad.body for bad in UNDECODABLE.values())} <= set(raw)
    less = bodies(load(spark, where(filled, onUndecodable="skip")))
    assert set(SOUND) <= set(less)
    assert len(less) == ALL - len(UNDECODABLE)
    with pytest.raises(Exception, match=FIRST) as failed:
        load(spark, where(filled)).collect()
    assert "onUndecodable" in str(failed.value)
    assert load(spark, where(filled, columns="queue_offset,tag,keys,properties")).count() == ALL, "no body is decoded"


@pytest.mark.ci
def test_a_stream(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    def streamed(name: str, **more: str) -> list[bytes]:
        frame = spark.readStream.format("raftmq").options(**filled.options(startingOffsets="earliest", **more)).load()
        place = {"path": str(tmp_path / name), "checkpointLocation": str(tmp_path / f"{name}-checkpoint")}
        query = frame.writeStream.format("parquet").options(**place).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return bodies(spark.read.parquet(place["path"]))

    assert set(SOUND) <= set(streamed("raw", onUndecodable="raw"))
    assert len(streamed("skip", onUndecodable="skip")) == ALL - len(UNDECODABLE)
    with pytest.raises(Exception, match=FIRST):
        streamed("fail")


@pytest.mark.ci
def test_the_jobs(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    options = parse_options(filled.options())
    (line,) = report(spark, options, filled.options()).topics
    assert line.messages == ALL
    assert sum(line.messages for line in traffic(spark, options, filled.options()).queues) == ALL
    raw = parse_options(filled.options(onUndecodable="raw"))
    assert export(spark, raw, tmp_path / "raw").messages == ALL
    with pytest.raises(Exception, match=FIRST):
        export(spark, options, tmp_path / "fail")


@pytest.mark.ci
def test_a_table(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    def kept(name: str, *more: str) -> list[bytes]:
        words = ["table", TOPIC, "--to", str(tmp_path / name), "--servers", filled.servers, *more]
        spark_command.main(words, standalone_mode=False)
        found: list[bytes] = DeltaTable(str(tmp_path / name)).to_pyarrow_table(columns=["body"])["body"].to_pylist()
        return found

    whole = kept("raw", "--once")
    assert len(whole) == ALL
    assert set(SOUND) <= set(whole)
    with pytest.raises(LocalError, match=FIRST) as failed:
        kept("fail", "--on-undecodable", "fail")
    assert "--on-undecodable raw" in failed.value.fix
