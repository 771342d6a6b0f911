"""The columns of `raftmq.arrow.columns` in the words of Spark's SQL."""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.arrow.columns import COLUMNS

_SPARK = {
    "string": "string",
    "binary": "binary",
    "int32": "int",
    "int64": "bigint",
    "map<string, string>": "map<string,string>",
    "timestamp[us, UTC]": "timestamp",
}


def spark_type(name: str) -> str:
    """The type of a column, as Spark writes it."""
    return _SPARK[COLUMNS[name]]


def ddl(names: Sequence[str]) -> str:
    """The Spark schema of these columns. Spark derives from it what `raftmq.arrow.columns.arrow_schema` makes, and
    refuses batches of any other schema."""
    return ", ".join(f"{name} {spark_type(name)}" for name in names)
