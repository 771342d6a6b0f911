"""Spark reads and writes topics: ``spark.read.format("raftmq").option("servers", "h:p;h:p").option("topic", "t")``.

Spark finds the source by this package's name and registers it by itself; `session()` makes a Spark session that is set
up for it, `register(spark)` prepares a session of your own. `topic_progress(query.lastProgress)` shows how far a stream
is. docs/pipeline.md has the options and columns.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from pyspark_raftmq.errors import SourceError

if TYPE_CHECKING:
    from pyspark_raftmq.spark_session import register, session
    from pyspark_raftmq.stream_progress import topic_progress

__all__ = ["register", "session", "topic_progress"]


def __getattr__(name: str) -> object:
    """Imports `DefaultSource`, which Spark looks for, and the public names only when they are first used, so that this
    package can be imported without Spark."""
    sessions = "pyspark_raftmq.spark_session"
    modules = {
        "DefaultSource": "pyspark_raftmq.source",
        "session": sessions,
        "register": sessions,
        "topic_progress": "pyspark_raftmq.stream_progress",
    }
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(modules[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(__name__):
            raise
        raise SourceError(
            f"Spark runs a Python that lacks the package {error.name}",
            f"that Python is {sys.executable}, and raftmq[spark] is not installed in it",
            "set PYSPARK_PYTHON to the Python of your environment before Spark starts, or use pyspark_raftmq.session()",
        ) from error
