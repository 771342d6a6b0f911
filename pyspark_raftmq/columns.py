"""The columns of a topic in Spark, and how messages become Arrow batches of them.

Order, names and types are part of the interface: add at the end, change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

    import raftmq


class Column(NamedTuple):
    """`spark` is the type in Spark's SQL; `arrow` names the function of pyarrow that makes its twin."""

    spark: str
    arrow: str
    value: Callable[[raftmq.Message], Any]


COLUMNS: dict[str, Column] = {
    "topic": Column("string", "string", lambda message: message.topic),
    "queue_id": Column("int", "int32", lambda message: message.queue_id),
    "queue_offset": Column("bigint", "int64", lambda message: message.queue_offset),
    "body": Column("binary", "binary", lambda message: message.body),
    "tag": Column("string", "string", lambda message: message.tag),
    "keys": Column("string", "string", lambda message: message.key),
    "message_id": Column("string", "string", lambda message: message.message_id),
    "born_ms": Column("bigint", "int64", lambda message: message.born_ms),
    "store_ms": Column("bigint", "int64", lambda message: message.store_ms),
}
"""`keys` holds all keys separated by blanks, as RocketMQ stores them; `tag` and `keys` are null if there are none.
Times are milliseconds since the epoch: born at the producer, stored in log time."""


def ddl(names: Sequence[str]) -> str:
    """The Spark schema of these columns."""
    return ", ".join(f"{name} {COLUMNS[name].spark}" for name in names)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Equal to what Spark derives from `ddl(names)`; it refuses batches of any other schema."""
    import pyarrow as pa

    return pa.schema([pa.field(name, getattr(pa, COLUMNS[name].arrow)()) for name in names])


def to_batch(messages: Sequence[raftmq.Message], schema: pa.Schema) -> pa.RecordBatch:
    """One row per message, in order. `schema` is of arrow_schema."""
    import pyarrow as pa

    arrays = [pa.array(map(COLUMNS[field.name].value, messages), type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
