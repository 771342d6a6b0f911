"""The columns of a topic: their names, order and types are part of the interface. New columns go to the end; existing
ones never change."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raftmq_wire.errors import LocalError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: dict[str, str] = {
    "topic": "string",
    "queue_id": "int32",
    "queue_offset": "int64",
    "body": "binary",
    "tag": "string",
    "keys": "string",
    "message_id": "string",
    "born_ms": "int64",
    "store_ms": "int64",
    "position": "int64",
    "properties": "map<string, string>",
    "store_time": "timestamp[us, UTC]",
    "index": "int64",
    "term": "int64",
}
"""Column name -> its type in Arrow. `keys` holds all keys separated by blanks, as RocketMQ stores them; `tag` and
`keys` are null if there are none. Times are milliseconds since the epoch: `born_ms` by the producer's clock, `store_ms`
in log time. `store_time` is `store_ms` as a timestamp. `position` is the byte position in the commit log at which the
message begins. `index` and `term` are those of the entry of the Raft log that contains it."""
ENTRY_COLUMNS = frozenset({"index", "term"})
"""Columns that need a further request, or a second read of the log. They are read only if the caller names them."""
DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name not in ENTRY_COLUMNS)
"""The columns that are read if the caller names none."""


def require_arrow() -> None:
    """Raises LocalError, which says what to install, if pyarrow or numpy is missing."""
    missing = [name for name in ("pyarrow", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise LocalError(
            f"{' and '.join(missing)} is not installed" if len(missing) == 1 else "pyarrow and numpy are not installed",
            "tables are made by the extra arrow",
            "pip install 'raftmq[arrow]' numpy",
        )


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Returns the schema of these columns, all nullable."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "map<string, string>": pa.map_(pa.string(), pa.string()),
        "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([pa.field(name, types[COLUMNS[name]]) for name in names])
