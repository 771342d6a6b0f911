"""The options of the sink, and the columns that it accepts; checked on the driver before a task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import raftmq
from pyspark_raftmq import login
from pyspark_raftmq.errors import OptionError, write
from pyspark_raftmq.kafka_names import column_advice
from pyspark_raftmq.login import Login, parse_login
from pyspark_raftmq.options import check_known, read_servers, required, whole_number

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = ("servers", *login.OPTIONS, "topic", "writeId", "sliceRows", "timeoutSeconds")
"""The names of the options as documented; Spark compares them without case."""
COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "tag": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>",),
    "queue_id": ("int", "bigint"),
}
"""The columns that the sink accepts: name -> types that it may have; the names are those of a read. Only `body` is
required."""
SLICE_ROWS = 1000
TIMEOUT_S = 120
NAME_MAX = 240


class SinkOptions(NamedTuple):
    """The options of a write."""

    servers: str
    topic: str
    write_id: str | None
    """The id of a batch write; two writes with the same id are the same write."""
    slice_rows: int
    """The most rows of one request."""
    timeout_s: int
    """Seconds for which a request is repeated before its task fails; longer than an election takes."""
    login: Login = Login()

    def connect(self) -> raftmq.Client:
        """Returns a client of the cluster that is written to. Raises OptionError."""
        return self.login.connect(self.servers)


def parse_sink_options(options: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Parses Spark's options, names in any case. Raises OptionError naming the option and what to write."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        check_known(name, OPTIONS)
    write_id = given.get("writeid")
    if stream and write_id is not None:
        raise OptionError(
            "the option writeId has no meaning for a stream",
            "its checkpoint names the query, and Spark numbers its batches",
            "leave it out",
        )
    if write_id is not None and not 0 < len(write_id) <= NAME_MAX:
        raise OptionError(
            f"the option writeId has {len(write_id)} characters",
            f"1 to {NAME_MAX} are possible",
            write("writeId", "orders-2026-11-22"),
        )
    return SinkOptions(
        servers=read_servers(required(given, "servers", "127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878")),
        topic=required(given, "topic", "orders"),
        write_id=write_id,
        slice_rows=min(whole_number(given, "sliceRows") or SLICE_ROWS, SLICE_ROWS),
        timeout_s=whole_number(given, "timeoutSeconds") or TIMEOUT_S,
        login=parse_login(given),
    )


def check_sink_schema(schema: StructType, *, overwrite: bool) -> None:
    """Raises OptionError for a column that cannot be written, and for the mode overwrite."""
    if overwrite:
        raise OptionError(
            "a topic cannot be overwritten",
            "messages are only ever added",
            'write .mode("append"), or delete the topic',
        )
    wanted = ", ".join(f"{name} {' or '.join(types)}" for name, types in COLUMNS.items())
    for field in schema.fields:
        asked = field.dataType.simpleString()
        if asked not in COLUMNS.get(field.name, ()):
            advice = write("topic", "orders") if field.name == "topic" else column_advice(field.name, COLUMNS)
            raise OptionError(
                f"the column {field.name} {asked} cannot be written",
                f"a message has {wanted}",
                advice or "select those, and put the rest into the body",
            )
    if "body" not in schema.fieldNames():
        raise OptionError("there is no column body", f"a message has {wanted}", 'df.selectExpr("… AS body")')
