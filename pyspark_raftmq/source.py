"""The data source itself: what Spark calls, on the driver (schema, partitions) and in tasks (read). Writes: `sink`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_raftmq.errors import OptionError
from pyspark_raftmq.narrowing import NOTHING, narrowing_of
from pyspark_raftmq.options import ReadOptions, parse_options
from pyspark_raftmq.plan import plan, split
from pyspark_raftmq.stream import TopicStream
from pyspark_raftmq.task import RangePartition, copy_partitions, read_partition
from pyspark_raftmq.writing.sink import TopicStreamWriter, TopicWriter, check_topic
from pyspark_raftmq.writing.sink_options import check_sink_schema, parse_sink_options
from raftmq.arrow.columns import COLUMNS

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
    """The type of a column, as Spark writes it."""
    return _SPARK[COLUMNS[name]]


def ddl(names: Sequence[str]) -> str:
    """The Spark schema of these columns. Spark derives from it what `raftmq.arrow.columns.arrow_schema` makes, and
    refuses batches of any other schema."""
    return ", ".join(f"{name} {spark_type(name)}" for name in names)


# mypy sees Spark as Any, so that its answer is the same where Spark is not installed.
class DefaultSource(DataSource):  # type: ignore[misc]
    """Topics, read or written, in batch or as a stream."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "raftmq"

    def schema(self) -> str:
        """All columns, or those of the option `columns` in its order. Raises OptionError."""
        return ddl(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> TopicReader:
        """`schema` is the user's if one was given: any of our columns in any order. Raises OptionError."""
        options = parse_options(self.options, stream=False)
        kind = FilteringReader if options.filter_pushdown else TopicReader
        return kind(options, check_schema(schema))

    def streamReader(self, schema: StructType) -> TopicStream:
        """Returns the reader of a stream."""
        return TopicStream(parse_options(self.options, stream=True), check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """A batch write. Raises OptionError, and PlanError if there is no such topic."""
        check_sink_schema(schema, overwrite=overwrite)
        options = parse_sink_options(self.options, stream=False)
        check_topic(options)
        return TopicWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """The sink of a streaming query. Raises as `writer`."""
        check_sink_schema(schema, overwrite=overwrite)
        options = parse_sink_options(self.options, stream=True)
        check_topic(options)
        return TopicStreamWriter(options)


def check_schema(schema: StructType) -> tuple[str, ...]:
    """The names of the columns asked for. Raises OptionError for a column that we do not have, or not of this type."""
    for field in schema.fields:
        asked = field.dataType.simpleString()
        if field.name not in COLUMNS or asked != spark_type(field.name) or not field.nullable:
            raise OptionError(
                f"the schema asks for the column {field.name} {asked}{'' if field.nullable else ' not null'}",
                f"there are {ddl(tuple(COLUMNS))}",
                "leave .schema(…) out, or write these names and types, all nullable",
            )
    return tuple(schema.fieldNames())


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """Made on the driver, pickled to every task: holds no connection."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = NOTHING

    def partitions(self) -> list[InputPartition]:
        """Returns the tasks' parts: at least one per queue that has something to read, with its exact range; of a copy
        of the log, one per segment or more. Raises PlanError."""
        options = self._options
        if options.copy is not None:
            return copy_partitions(options, self._narrowing)
        ranges = split(plan(options, self._narrowing), options.min_partitions, options.max_records_per_partition)
        return [RangePartition(planned) for planned in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range. Raises ReadError rather than leave a message out."""
        return read_partition(self._options, self._columns, partition)


class FilteringReader(TopicReader):
    """A reader that is told the filters of the query. Spark refuses such a reader unless
    spark.sql.python.filterPushdown.enabled is set, which a source cannot see: hence the option `filterPushdown`."""

    def pushFilters(self, filters: Sequence[Filter]) -> Sequence[Filter]:
        """Makes the plan smaller where it can. All filters are left to Spark, too."""
        self._narrowing = narrowing_of(filters)
        return filters
