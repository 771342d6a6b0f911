"""One cluster and one Spark session for the whole folder: starting Spark takes longer than all else here.

They end with the folder's last test: four idle processes would take their part of the processor from all that follows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from pyspark_raftmq.spark_session import DRIVER_MEMORY, session
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.left_copies import Left, leave
from tests.support.pace import at_most
from tests.support.small_segments import small_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Half of what these JVMs would take goes into compiling code for speed that a minute of tests never gets to use."""


@pytest.fixture(scope="package", autouse=True)
def short_lived_java() -> Iterator[None]:
    """Gives the JVMs of the session here and of commands' sessions a short life; a user's JVM is left as Java has
    it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
            patch.setenv(name, SHORT_LIVED_JAVA)
        yield


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes."""
    live = LocalCluster(tmp_path_factory.mktemp("spark") / "data")
    with small_segments():
        live.up(3, free_base_port(12))
    yield live
    live.down()


@pytest.fixture(scope="package")
def servers(cluster: LocalCluster) -> str:
    """The nodes as the option `servers` is given them."""
    return cluster.servers


@pytest.fixture(scope="package")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Copies of the log of another node, which is gone."""
    return leave(tmp_path_factory.mktemp("left"))


@pytest.fixture(scope="package")
def mq(servers: str) -> Iterator[raftmq.Client]:
    with raftmq.connect(servers) as client:
        yield client


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two workers; it finds the source by itself, nothing is registered."""
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            patch.setenv(name, "")  # remembered, and what the session sets is undone at the end
            patch.delenv(name)
        config = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": warehouse}
        made = session(driver_memory=os.environ.get("RAFTMQ_SPARK_MEMORY", DRIVER_MEMORY), config=config)
        yield made
        gateway = made.sparkContext._gateway
        made.stop()
        _end_java(gateway)


def _end_java(gateway: Any) -> None:
    """The JVM ends when its standard input does, which otherwise is a while after this process. Whoever makes a session
    afterwards in this process gets another one: PySpark would go on with the one that is gone."""
    from pyspark import SparkContext

    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(at_most(20))
    SparkContext._gateway = None
