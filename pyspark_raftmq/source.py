"""The data source for reading: the methods that Spark calls on the driver (schema, partitions) and in tasks (read). The
module `sink` has those for writing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_raftmq.errors import OptionError
from pyspark_raftmq.filter_bounds import NOTHING, narrowing_of
from pyspark_raftmq.filter_rows import row_filter_of
from pyspark_raftmq.kafka_names import column_advice
from pyspark_raftmq.options import AUTO, TRUE, ReadOptions, parse_options
from pyspark_raftmq.read_plan import plan, split
from pyspark_raftmq.read_task import RangePartition, copy_partitions, read_partition
from pyspark_raftmq.stream import TopicStream
from pyspark_raftmq.writing.sink import TopicStreamWriter, TopicWriter, check_topic
from pyspark_raftmq.writing.sink_options import check_sink_schema, parse_sink_options
from raftmq.arrow.columns import COLUMNS
from raftmq.arrow.row_filter import RowFilter

if TYPE_CHECKING:
    import pyarrow as pa


_SPARK = {
    "string": "string",
    "binary": "binary",
    "int32": "int",
    "int64": "bigint",
    "map<string, string>": "map<string,string>",
    "timestamp[us, UTC]": "timestamp",
}


def spark_type(name: str) -> str:
    """Returns the type of a column in Spark's words, for example "bigint"."""
    return _SPARK[COLUMNS[name]]


def ddl(names: Sequence[str]) -> str:
    """Returns the Spark schema of these columns. Spark derives from it the schema that
    `raftmq.arrow.columns.arrow_schema` makes, and refuses batches with any other schema."""
    return ", ".join(f"{name} {spark_type(name)}" for name in names)


# For mypy, Spark's classes are Any, so that its result is the same where Spark is not installed.
class DefaultSource(DataSource):  # type: ignore[misc]
    """The data source "raftmq": topics, read or written, in batch or as a stream."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the source in `format(…)`."""
        return "raftmq"

    def schema(self) -> str:
        """Returns the schema: all columns, or those of the option `columns` in its order. Raises OptionError."""
        return ddl(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> TopicReader:
        """Returns the reader of a batch. `schema` is the user's if one was given: any of the source's columns in any
        order. Raises OptionError."""
        options = parse_options(self.options, stream=False)
        used = options.filter_pushdown == TRUE or (options.filter_pushdown == AUTO and passes_filters())
        return (FilteringReader if used else TopicReader)(options, check_schema(schema))

    def streamReader(self, schema: StructType) -> TopicStream:
        """Returns the reader of a stream."""
        return TopicStream(parse_options(self.options, stream=True), check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Returns the writer of a batch. Raises OptionError, and PlanError if there is no such topic."""
        check_sink_schema(schema, overwrite=overwrite)
        options = parse_sink_options(self.options, stream=False)
        check_topic(options)
        return TopicWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """Returns the sink of a streaming query. Raises as `writer`."""
        check_sink_schema(schema, overwrite=overwrite)
        options = parse_sink_options(self.options, stream=True)
        check_topic(options)
        return TopicStreamWriter(options)


def check_schema(schema: StructType) -> tuple[str, ...]:
    """Returns the names of the columns in the schema. Raises OptionError for a column that the source does not have, or
    that it has with another type."""
    for field in schema.fields:
        asked = field.dataType.simpleString()
        if field.name not in COLUMNS or asked != spark_type(field.name) or not field.nullable:
            raise OptionError(
                f"the schema asks for the column {field.name} {asked}{'' if field.nullable else ' not null'}",
                f"there are {ddl(tuple(COLUMNS))}",
                column_advice(field.name, COLUMNS)
                or "leave .schema(…) out, or write these names and types, all nullable",
            )
    return tuple(schema.fieldNames())


_ASKS = "pyspark.sql.worker.data_source_pushdown_filters"


def passes_filters() -> bool:
    """Returns True in a process that Spark has started to pass filters of a query to a reader. Spark refuses a reader
    that takes filters in the other process, which plans a read, unless spark.sql.python.filterPushdown.enabled is set;
    a source cannot see this setting."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # without a daemon, the worker is the main module
    return _ASKS in sys.modules or (spec is not None and spec.name == _ASKS)


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """Reads topics in batch. It is made on the driver and pickled to every task, so it holds no connection."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = NOTHING
        self._rows: RowFilter | None = None

    def partitions(self) -> list[InputPartition]:
        """Returns the parts for the tasks: at least one per queue that has messages to read, with its exact range; for
        a copy of the log, one per segment or more. Raises PlanError."""
        options = self._options
        if options.copy is not None:
            return copy_partitions(options, self._narrowing)
        ranges = split(plan(options, self._narrowing), options.min_partitions, options.max_records_per_partition)
        return [RangePartition(planned) for planned in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one part. Raises ReadError rather than leave a message out."""
        return read_partition(self._options, self._columns, partition, self._rows)


class FilteringReader(TopicReader):
    """A reader to which Spark passes the filters of the query."""

    def pushFilters(self, filters: Sequence[Filter]) -> Sequence[Filter]:
        """Uses the filters to plan smaller ranges, and to leave out rows in the tasks. Returns all filters, so that
        Spark applies them too."""
        self._narrowing = narrowing_of(filters)
        self._rows = row_filter_of(filters)
        return filters
