"""Makes a Spark session that works in any Python environment: it uses this interpreter, a Java runtime that it finds,
and bounded memory."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_raftmq.errors import OptionError, SourceError, write
from pyspark_raftmq.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_SPARK = (4, 3)
DRIVER_MEMORY = "1g"
LOCAL = "local[2]"


_SECRET = "RAFTMQ_SECRET_KEY"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark's setting that makes it pass filters of queries to sources written in Python; off by default."""
_IMPORTS = "import pyspark_raftmq, raftmq, pyarrow"


class SparkMissing(SourceError):
    """Spark is not installed, or too old."""


class WrongPython(SourceError):
    """Spark would start an interpreter that lacks this package, or one of its dependencies."""


def session(
    master: str | None = None,
    *,
    app_name: str = "raftmq",
    driver_memory: str = DRIVER_MEMORY,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Returns a Spark session with the data source registered. `config` is added to the settings made here, and
    overrides them.

    `master`: where tasks run; None: as `spark-submit` was told, or on two cores of this machine.

    Sets PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON (this interpreter, unless they are set) and JAVA_HOME for this process. A
    session that is active already is returned as it is. Raises SparkMissing, JavaMissing and WrongPython, and
    OptionError for a setting with a user's secret.
    """
    check_spark()
    _check_no_secret(config or {})
    if not is_submitted():
        master = master or LOCAL
        ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": driver_memory,
        "spark.sql.session.timeZone": "UTC",
        _PUSHDOWN: "true",
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
    register(spark)
    return spark


_FINDS = "import pkgutil, sys; sys.exit('pyspark_raftmq' not in {module.name for module in pkgutil.iter_modules()})"


def _check_no_secret(config: Mapping[str, str]) -> None:
    """Raises OptionError for a setting that PySpark would write on the command line of Java with a user's secret."""
    for name in config:
        if name.endswith(_SECRET):
            raise OptionError(
                f"the setting {name} has a user's secret",
                "settings stand on the command line of Java, where every user of the machine reads them",
                f"{write('userFile', '/etc/raftmq/user')}, or set {_SECRET} in the environment of each process",
            )


def register(spark: SparkSession) -> None:
    """Registers the data source in a session of the user's own, and checks that Spark starts a Python that has it.
    Raises WrongPython; Spark itself would only say that there is no data source of this name.

    Unless the session says otherwise, Spark passes filters of queries to sources written in Python from then on.
    """
    context = None if is_remote() else spark.sparkContext
    if context is not None:
        check_python(context.pythonExec)
    _register(spark, sys.executable if context is None else context.pythonExec)
    if spark.conf.get(_PUSHDOWN, None) is None:
        spark.conf.set(_PUSHDOWN, "true")


def check_python(command: str) -> None:
    """Raises WrongPython unless the interpreter `command`, which Spark starts for plans and tasks, has all modules that
    this package needs there."""
    if shutil.which(command) == sys.executable:
        return
    try:
        done = subprocess.run([command, "-c", _IMPORTS], capture_output=True, text=True, timeout=60, check=False)
        lacks = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ends with an error"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        lacks = str(error)
    if lacks:
        raise WrongPython(
            f"Spark starts {command}, which is not the Python of raftmq[spark]",
            lacks,
            f"export PYSPARK_PYTHON={sys.executable} before Spark starts, or begin with pyspark_raftmq.session()",
        )


def is_remote() -> bool:
    """Returns True if sessions of this process use Spark Connect, where the server runs the Python code."""
    from pyspark.sql.utils import is_remote as remote

    found: bool = remote()
    return found


def _register(spark: SparkSession, command: str) -> None:
    """Registers the data source if Spark cannot find it by itself: it finds an installed package by its name, but an
    editable install only from inside the checkout. This process cannot tell, because its import path includes the
    folder in which it was started. So the interpreter `command`, which Spark starts, is asked."""
    found = subprocess.run([command, "-c", _FINDS], capture_output=True, timeout=60, check=False)
    if found.returncode:
        from pyspark_raftmq.source import DefaultSource

        spark.dataSource.register(DefaultSource)


def is_submitted() -> bool:
    """Returns True if `spark-submit` runs this process. The program must then name no master, because that would
    override the one given to `spark-submit`."""
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
