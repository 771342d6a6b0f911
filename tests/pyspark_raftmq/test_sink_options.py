"""The sink's options: wrong options and columns are refused with what to write instead."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from pyspark_raftmq.errors import OptionError
from pyspark_raftmq.writing.sink_options import SinkOptions, check_sink_schema, parse_sink_options

GIVEN = {"servers": "h:1", "topic": "t"}


def test_options_and_their_defaults() -> None:
    assert parse_sink_options(GIVEN, stream=True) == SinkOptions("h:1", "t", None, 1000, 120)
    more = {"writeid": "w", "sliceRows": "7", "timeoutSeconds": "5", "checkpointLocation": "/c"}
    assert parse_sink_options({**GIVEN, **more}, stream=False) == SinkOptions("h:1", "t", "w", 7, 5)


@pytest.mark.parametrize(
    ("options", "stream", "said"),
    [
        ({"servers": "h:1"}, True, "the option topic is missing"),
        ({**GIVEN, "writeId": "w"}, True, "no meaning for a stream"),
        ({**GIVEN, "writeId": "w" * 241}, False, "has 241 characters"),
        ({**GIVEN, "slicerow": "1"}, False, "did you mean sliceRows"),
        ({"kafka.bootstrap.servers": "h:1", "topic": "t"}, True, 'write .option("servers"'),
        ({**GIVEN, "sliceRows": "0"}, False, "must be a whole number"),
        ({**GIVEN, "password": "x"}, False, "looks like a credential"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], stream: bool, said: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_sink_options(options, stream=stream)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("columns", "overwrite", "said"),
    [
        ({"body": "binary"}, True, "cannot be overwritten"),
        ({"tag": "string"}, False, "there is no column body"),
        ({"body": "double"}, False, "the column body double cannot be written"),
        ({"body": "string", "value": "string"}, False, "the column value string cannot be written"),
    ],
)
def test_a_frame_that_is_no_messages_is_refused(columns: dict[str, str], overwrite: bool, said: str) -> None:
    with pytest.raises(OptionError) as error:
        check_sink_schema(schema_of(columns), overwrite=overwrite)
    assert said in str(error.value)


def test_every_column_that_a_read_names_so_can_be_written() -> None:
    columns = {
        "body": "binary",
        "tag": "string",
        "keys": "string",
        "properties": "map<string,string>",
        "queue_id": "integer",
    }
    check_sink_schema(schema_of(columns), overwrite=False)


def schema_of(columns: dict[str, str]) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        if kind.startswith("map"):
            from pyspark.sql.types import MapType, StringType

            schema.add(name, MapType(StringType(), StringType()))
        else:
            schema.add(name, kind)
    return schema
