"""The data source itself: what Spark calls, on the driver (schema, partitions) and in tasks (read)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import raftmq
from pyspark_raftmq.columns import ddl, spark_type
from pyspark_raftmq.errors import OptionError, ReadError
from pyspark_raftmq.options import ReadOptions, parse_options
from pyspark_raftmq.plan import plan
from raftmq.arrow.columns import COLUMNS
from raftmq.arrow.ranges import QueueRange, Unreadable
from raftmq.arrow.tables import followers_of, node_for

if TYPE_CHECKING:
    import pyarrow as pa


# mypy sees Spark as Any, so that its answer is the same where Spark is not installed.
class DefaultSource(DataSource):  # type: ignore[misc]
    """A topic, read in batch."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "raftmq"

    def schema(self) -> str:
        """All columns, or those of the option `columns` in its order. Raises OptionError."""
        return ddl(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> TopicReader:
        """`schema` is the user's if one was given: any of our columns in any order. Raises OptionError."""
        return TopicReader(parse_options(self.options), check_schema(schema))


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


class QueuePartition(InputPartition):  # type: ignore[misc]
    """One queue's range: one task."""

    def __init__(self, planned: QueueRange) -> None:
        super().__init__(planned.queue_id)
        self.planned = planned


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """Made on the driver, pickled to every task: holds no connection."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[QueuePartition]:
        """One per queue that has something to read, with its exact range. Raises PlanError."""
        return [QueuePartition(planned) for planned in plan(self._options) if planned.start < planned.end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range of one queue. Raises ReadError rather than leave a message out."""
        # Spark makes a plain partition of its own when `partitions` returned none.
        if not isinstance(partition, QueuePartition):
            return
        from raftmq.arrow.reading import RangeReader

        with raftmq.connect(self._options.servers) as mq:
            reader = RangeReader(mq, partition.planned, node=node_for(partition.planned.queue_id, followers_of(mq)))
            try:
                yield from reader.batches(self._columns, self._options.batch_rows)
            except Unreadable as error:
                raise ReadError(error.what, error.why, error.hint) from error
