"""Spark reads topics: ``spark.read.format("raftmq").option("servers", "h:p;h:p").option("topic", "orders").load()``.

Spark finds the source by this package's name and registers it by itself. docs/spark.md has the options and columns.
"""

from __future__ import annotations

import importlib


def __getattr__(name: str) -> object:
    """`DefaultSource`, which Spark looks for; on demand, so that the rest of the package needs no Spark."""
    if name == "DefaultSource":
        return importlib.import_module("pyspark_raftmq.source").DefaultSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
