"""One cluster and one Spark session for the whole folder: starting Spark takes longer than all else here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from pyspark_raftmq.java import ensure_java
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three nodes; what the option `servers` is given."""
    live = LocalCluster(tmp_path_factory.mktemp("spark") / "data")
    live.up(3, free_base_port(12))
    yield live.servers
    live.down()


@pytest.fixture(scope="session")
def mq(servers: str) -> Iterator[raftmq.Client]:
    with raftmq.connect(servers) as client:
        yield client


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two workers; it finds the source by itself, nothing is registered."""
    from pyspark.sql import SparkSession

    ensure_java()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("raftmq-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        gateway = session.sparkContext._gateway
        session.stop()
        _end_java(gateway)


def _end_java(gateway: Any) -> None:
    """The JVM ends when its standard input does, which otherwise is a while after this process."""
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(20)
