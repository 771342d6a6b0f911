"""A Spark session that works from any Python environment: this interpreter, a Java that was found, bounded memory."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_raftmq.errors import SourceError
from pyspark_raftmq.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_SPARK = (4, 3)
DRIVER_MEMORY = "1g"
LOCAL = "local[2]"


class SparkMissing(SourceError):
    """No Spark, or one that is too old."""


def session(
    master: str | None = None,
    *,
    app_name: str = "raftmq",
    driver_memory: str = DRIVER_MEMORY,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the data source registered. `config` is added to, and wins over, what is set here.

    `master`: where tasks run; None: as `spark-submit` was told, or on two cores of this machine.

    Sets PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON (this interpreter, unless they are set) and JAVA_HOME for this process. A
    session that is active already is returned as it is. Raises SparkMissing and JavaMissing.
    """
    check_spark()
    if not is_submitted():
        master = master or LOCAL
        ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": driver_memory,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.driver.host": "127.0.0.1"} if master is not None and master.startswith("local") else {}),
        **(config or {}),
    }
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _register(spark)
    return spark


def _register(spark: SparkSession) -> None:
    """Spark finds an installed package by its name, as here; an editable install only from inside the checkout."""
    if "pyspark_raftmq" not in {module.name for module in pkgutil.iter_modules()}:
        from pyspark_raftmq.source import DefaultSource

        spark.dataSource.register(DefaultSource)


def is_submitted() -> bool:
    """Whether `spark-submit` runs this process. A master that the program names would win over the one it was told."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def check_spark() -> None:
    """Raises SparkMissing unless Spark is installed and new enough."""
    do = "pip install 'raftmq[spark]'    (with Java: 'raftmq[spark,jre]')"
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing("Spark is not installed", f"{sys.executable} has no package pyspark", do)
    import pyspark

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < MIN_SPARK:
        wanted = ".".join(map(str, MIN_SPARK))
        raise SparkMissing(
            f"Spark {pyspark.__version__} is too old", f"the data source needs Spark {wanted} or newer", do
        )
