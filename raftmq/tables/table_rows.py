"""Makes the rows of a table: the columns of a read, and columns made from them: those with Kafka's names, and the
fields of JSON bodies, with the errors of bodies that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.arrow.columns import COLUMNS, arrow_schema
from raftmq.tables.day_files import DAY_MS, ERROR, DayFile, write_day_files
from raftmq.tables.json_fields import BOOLEAN, DOUBLE, LONG, STRING, Fields, JsonField, Met
from raftmq.tables.table_folder import TablePlace

if TYPE_CHECKING:
    import pyarrow as pa

DAY = "day"
RAW = "_raw"
"""The column with the body of a row that has an error; null in all other rows."""
KAFKA = {
    "key": "keys",
    "value": "body",
    "partition": "queue_id",
    "offset": "queue_offset",
    "timestamp": "store_time",
    "headers": "properties",
}
"""Kafka's name of a column -> the column that it is made from. `topic` has the same name in both."""
RESERVED = (*COLUMNS, *KAFKA, RAW, ERROR, DAY)


class MoreColumns(NamedTuple):
    """The columns of a table that are made from others: those with Kafka's names if `kafka`, and the fields of JSON
    bodies if `json`. `given`: field -> kind, of the JSON fields that become columns; with `grows`, all other fields
    become columns too."""

    kafka: bool = False
    json: bool = False
    given: Mapping[str, str] = {}
    grows: bool = False


NO_MORE = MoreColumns()


class Written(NamedTuple):
    """The files of a round, the fields that it met, and the bodies that could not be decompressed."""

    files: Sequence[DayFile]
    met: Mapping[str, Mapping[str, int]] = {}
    undecoded: int = 0


class TableRows(NamedTuple):
    """Makes the rows of a table. It can be pickled and sent to tasks. `fields`: the fields that have columns. `schema`:
    the schema of the files, in which the day is a column; with None, files have the columns in their order and without
    the day."""

    columns: tuple[str, ...]
    more: MoreColumns = NO_MORE
    fields: tuple[JsonField, ...] = ()
    schema: pa.Schema | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that a read must bring."""
        needed = [*self.columns]
        if self.more.json:
            needed.append("body")
        if self.more.kafka:
            needed += KAFKA.values()
        return tuple(dict.fromkeys(needed))

    def write(
        self, where: TablePlace, topic: str, queue_id: int, batches: Iterable[pa.RecordBatch], prefix: str
    ) -> tuple[list[DayFile], Met]:
        """Writes the rows of the batches, which have the columns `read`, to one file per day; returns the files, and
        the counts of fields that have no column. Raises OSError and StoreFailed."""
        fields = Fields(self.fields, grows=self.more.grows)
        made = self._made(batches, fields) if self.more.json or self.more.kafka else batches
        if self.schema is not None:
            made = (_shaped(batch, self.schema) for batch in made)
        return [*write_day_files(where, topic, queue_id, made, prefix)], fields.met

    def _made(self, batches: Iterable[pa.RecordBatch], fields: Fields) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            made = {name: batch.column(name) for name in self.columns}
            if self.more.kafka:
                made |= {name: batch.column(source).cast(kafka_type(name)) for name, source in KAFKA.items()}
            if self.more.json:
                made |= self._fields_of(batch.column("body"), fields)
            yield pa.RecordBatch.from_arrays([*made.values()], names=[*made])

    def _fields_of(self, bodies: pa.Array, fields: Fields) -> dict[str, pa.Array]:
        import pyarrow as pa

        columns: dict[str, list[object]] = {field.name: [None] * len(bodies) for field in self.fields}
        raw: list[object] = [None] * len(bodies)
        errors: list[object] = [None] * len(bodies)
        for row, body in enumerate(bodies):
            data = body.as_py() or b""
            values, wrong = fields.read(data)
            for name, value in values.items():
                columns[name][row] = value
            if wrong:
                raw[row], errors[row] = data, wrong
        made = {RAW: pa.array(raw, pa.binary()), ERROR: pa.array(errors, pa.string())}
        return made | {each.column: pa.array(columns[each.name], field_type(each.kind)) for each in self.fields}


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the columns of the schema, in its order and types, and the day of each row."""
    import pyarrow as pa

    days = pa.array(batch.column("store_ms").to_numpy() // DAY_MS, pa.int32()).cast(pa.date32())
    columns = {name: batch.column(name) for name in batch.schema.names} | {DAY: days}
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)


def table_schema(columns: Sequence[str], more: MoreColumns) -> pa.Schema:
    """Returns the schema of a table before any field of JSON bodies has a column."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    if more.kafka:
        for name in KAFKA:
            schema = schema.append(pa.field(name, kafka_type(name)))
    if more.json:
        schema = schema.append(pa.field(RAW, pa.binary())).append(pa.field(ERROR, pa.string()))
    return schema.append(pa.field(DAY, pa.date32()))


def kafka_type(name: str) -> Any:
    """Returns the type that a column has in Kafka's source for Spark."""
    import pyarrow as pa

    return {
        "key": pa.binary(),
        "value": pa.binary(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }[name]


def field_type(kind: str) -> Any:
    """Returns the type of a column of JSON fields."""
    import pyarrow as pa

    return {STRING: pa.string(), LONG: pa.int64(), DOUBLE: pa.float64(), BOOLEAN: pa.bool_()}[kind]
