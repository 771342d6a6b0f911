"""Users of Spark's Kafka source are told what to write here, for every option and column that it has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from pyspark_raftmq import options as reads
from pyspark_raftmq.errors import OptionError
from pyspark_raftmq.kafka_names import COLUMNS, OPTIONS
from pyspark_raftmq.options import parse_options
from pyspark_raftmq.source import check_schema
from pyspark_raftmq.writing import sink_options as writes
from pyspark_raftmq.writing.sink_options import check_sink_schema, parse_sink_options
from raftmq.arrow.columns import COLUMNS as OURS

NEEDED = {"servers": "a:1", "topic": "orders"}
PAGE = (Path(__file__).parents[2] / "docs" / "concepts-kafka.md").read_text(encoding="utf-8")
SAME = {
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
}
"""Options of Kafka's source that mean the same here."""


def told(name: str, *, write: bool = False) -> str:
    """Returns the advice for an option."""
    parse: Callable[..., object] = parse_sink_options if write else parse_options
    with pytest.raises(OptionError) as caught:
        parse({**NEEDED, name: "x"}, stream=False)
    assert len(str(caught.value).splitlines()) == 3
    return caught.value.hint


def test_what_is_called_the_same_is_known() -> None:
    assert set(reads.OPTIONS) >= SAME
    assert not SAME & set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_answered_with_one_of_this_read_or_write(name: str) -> None:
    """In any case of letters, as Spark gives them; no advice names an option that would be refused in its turn."""
    for write, known in ((False, reads.OPTIONS), (True, writes.OPTIONS)):
        for written in (name, name.lower(), name.upper()):
            advice = told(written, write=write)
            assert "did you mean" not in advice
            assert set(re.findall(r'option\("(\w+)"', advice)) <= {*known, "readFrom"}


def test_those_that_users_type_first() -> None:
    assert 'option("tlsCa"' in told("kafka.security.protocol")
    assert 'option("group"' in told("groupIdPrefix")
    assert told("groupIdPrefix", write=True) == "leave it out: it has no meaning here"
    assert "accessKey and secretKey" in told("kafka.sasl.jaas.config")
    assert "tlsCert and tlsKey" in told("kafka.ssl.keystore.password")
    assert "a setting of Kafka's client" in told("kafka.fetch.max.bytes")
    assert "accessKey and secretKey" in told("password")


def test_each_column_is_answered() -> None:
    for name, ours in COLUMNS.items():
        assert ours in OURS
        with pytest.raises(OptionError, match=f"do:  write {ours}, which is Kafka's {name}"):
            parse_options({**NEEDED, "columns": f"topic,{name}"})
        with pytest.raises(OptionError, match=f"do:  write {ours}, "):
            check_schema(StructType().add(name, "string"))
        advice = f"write {ours}, " if ours in writes.COLUMNS else "leave it out: the cluster fills it"
        with pytest.raises(OptionError, match=f"do:  {advice}"):
            check_sink_schema(StructType().add("body", "string").add(name, "string"), overwrite=False)
    with pytest.raises(OptionError, match=r'do:  write \.option\("topic"'):
        check_sink_schema(StructType().add("body", "string").add("topic", "string"), overwrite=False)


def test_the_page_has_every_name() -> None:
    shown = set(re.findall(r"`([\w.]+)`", PAGE))
    assert not (SAME | set(OPTIONS) | set(COLUMNS)) - shown - {name for name in OPTIONS if name.startswith("kafka.s")}
