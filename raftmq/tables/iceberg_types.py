"""The columns of a table of topics in Iceberg's types, and its partitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from raftmq.tables.json_fields import BOOLEAN, DOUBLE, LONG, STRING
from raftmq.tables.table_rows import DAY

KINDS: dict[str, IcebergType] = {
    STRING: StringType(),
    LONG: LongType(),
    DOUBLE: DoubleType(),
    BOOLEAN: BooleanType(),
}
"""Kind of a JSON field -> the Iceberg type of its column."""
_PLAIN: dict[Any, IcebergType] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.date32(): DateType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
}


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Returns the schema in Iceberg's types. The catalog assigns other column ids when it creates the table."""
    numbers = itertools.count(1)
    return Schema(*(_field(each, numbers) for each in schema))


def _field(field: pa.Field, numbers: Iterator[int]) -> NestedField:
    return NestedField(next(numbers), field.name, _type(field.type, numbers), required=False)


def _type(arrow: pa.DataType, numbers: Iterator[int]) -> IcebergType:
    if pa.types.is_map(arrow):
        key, value = next(numbers), next(numbers)
        return MapType(
            key, _type(arrow.key_type, numbers), value, _type(arrow.item_type, numbers), value_required=False
        )
    if pa.types.is_list(arrow):
        return ListType(next(numbers), _type(arrow.value_type, numbers), element_required=False)
    if pa.types.is_struct(arrow):
        return StructType(*(_field(arrow.field(at), numbers) for at in range(arrow.num_fields)))
    return _PLAIN[arrow]


def same_type(one: IcebergType, other: IcebergType) -> bool:
    """Returns True if two types are equal apart from the ids of their parts."""
    if isinstance(one, StructType) and isinstance(other, StructType):
        pairs = itertools.zip_longest(one.fields, other.fields)
        return all(a and b and a.name == b.name and same_type(a.field_type, b.field_type) for a, b in pairs)
    if isinstance(one, ListType) and isinstance(other, ListType):
        return same_type(one.element_type, other.element_type)
    if isinstance(one, MapType) and isinstance(other, MapType):
        return same_type(one.key_type, other.key_type) and same_type(one.value_type, other.value_type)
    return bool(one == other)


def day_spec(schema: Schema) -> PartitionSpec:
    """Returns the partitions of a table: one for each day."""
    return PartitionSpec(PartitionField(schema.find_field(DAY).field_id, 1000, IdentityTransform(), DAY))


def is_by_day(spec: PartitionSpec, schema: Schema) -> bool:
    """Returns True if `spec` partitions a table as `day_spec` does."""
    day = schema.find_field(DAY).field_id
    return [(field.source_id, str(field.transform)) for field in spec.fields] == [(day, "identity")]
