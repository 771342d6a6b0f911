"""Tables with columns that are made of others: fields of JSON bodies as they come, and Kafka's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

import raftmq
from raftmq.arrow.columns import DEFAULT_COLUMNS
from raftmq.cli import cli
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import TableError
from raftmq.tables.kept_table import TableOptions
from raftmq.tables.table_rows import KAFKA, MoreColumns
from raftmq.tables.table_run import TableRun
from raftmq.tables.upkeep import compact

pytestmark = pytest.mark.live

JSON = TableOptions(("topic", "queue_id", "queue_offset", "store_ms"), more=MoreColumns(json=True, grows=True))


@pytest.fixture
def topic(mq: raftmq.Client, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.removeprefix("test_")
    mq.admin.create_topic(name, 2)
    return name


def send(mq: raftmq.Client, topic: str, *bodies: object, queue: int = 0) -> None:
    found = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    mq.send_batch(topic, found, queue_id=queue, key="k", properties={"shop": "7"})


def rows(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    table = DeltaTable(str(folder)).to_pyarrow_table(columns=["queue_id", "queue_offset", *columns])
    ordered = table.sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])
    return [tuple(row.values())[2:] for row in ordered.to_pylist()]


def test_columns_come_with_the_fields(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    """Each row is there whatever its body is, before and after files are merged."""
    send(mq, topic, {"price": 1, "name": "tea"}, {"price": 2.5}, b"no json")
    send(mq, topic, {"price": 3, "paid": True}, queue=1)
    with TableRun(mq, [topic], tmp_path, JSON) as run:
        assert run.round().messages == 4
        send(mq, topic, {"price": "free", "at": {"x": 1}}, {"price": 4, "Price": 5})
        assert run.round().messages == 2
        assert run.round().version is None
    for _ in range(2):
        assert rows(tmp_path, "price", "name", "paid", "at", "body_Price", "_raw", "_error") == [
            (1.0, "tea", None, None, None, None, None),
            (2.5, None, None, None, None, None, None),
            (None, None, None, None, None, b"no json", "not JSON: JSON is malformed: invalid character (byte 4)"),
            (None, None, None, '{"x":1}', None, b'{"price": "free", "at": {"x": 1}}', PRICE),
            (4.0, None, None, None, 5, None, None),
            (3.0, None, True, None, None, None, None),
        ]
        assert compact(tmp_path).made in (0, 1)
    with pytest.raises(TableError, match="other columns"):
        DeltaTarget(tmp_path, JSON.columns)
    assert not list(tmp_path.glob("day=*/_*"))


PRICE = "price: a string, and the column is double"


def test_a_commit_between_the_plan_and_new_columns_costs_a_round(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    """It may have brought the same messages."""
    others: list[int] = []

    class Overtaken(DeltaTarget):
        def add_fields(self, fields: Any) -> None:
            (tmp_path / "day=2026-01-01").mkdir(exist_ok=True)  # another commit, whatever it has
            others.append(DeltaTarget(tmp_path, JSON.columns, JSON.more).commit([], {}))
            super().add_fields(fields)

    send(mq, topic, {"a": 1})
    with TableRun(mq, [topic], tmp_path, JSON, Overtaken) as run:
        assert (run.round().version, run.round().messages) == (None, 1)
    assert (rows(tmp_path, "a"), len(others)) == ([(1,)], 1)


def test_a_run_that_dies_after_its_new_columns_goes_on(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    class Dies(DeltaTarget):
        def add_fields(self, fields: Any) -> None:
            super().add_fields(fields)
            raise Died

    send(mq, topic, {"a": 1}, {"b": 1})
    with TableRun(mq, [topic], tmp_path, JSON, Dies) as run, pytest.raises(Died):
        run.round()
    assert not list(tmp_path.glob("day=*/*"))
    with TableRun(mq, [topic], tmp_path, JSON) as run:
        assert run.round().messages == 2
    assert rows(tmp_path, "a", "b") == [(1, None), (None, 1)]


class Died(BaseException):
    """Nothing of a run may catch it."""


def test_given_fields_and_kafkas_names(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    send(mq, topic, {"price": 1, "name": "tea"}, {"price": "x"})
    file, folder = tmp_path / "schema.json", tmp_path / "t"
    file.write_text('{"price": "double"}')
    words = ["table", "run", topic, "--to", str(folder), "--once", "--kafka-columns", "--servers", ";".join(mq.servers)]
    ran = CliRunner().invoke(cli, [*words, "--schema", str(file)])
    assert ran.exit_code == 0, ran.output
    made = [*KAFKA, "_raw", "_error", "day", "price"]
    assert [field.name for field in DeltaTable(str(folder)).schema().fields] == [*DEFAULT_COLUMNS, *made]
    assert rows(folder, "price", "_error") == [(1.0, None), (None, PRICE)]
    (first, _) = rows(folder, "key", "value", "partition", "offset", "timestamp", "headers", "body", "store_time")
    assert first[:4] == (b"k", b'{"price": 1, "name": "tea"}', 0, 0)
    assert {"key": "shop", "value": b"7"} in first[5]
    assert (first[1], first[4]) == (first[6], first[7])
    file.write_text('{"price": "long"}')
    refused = CliRunner().invoke(cli, [*words, "--schema", str(file)])
    assert "has the field price as double, not as long" in refused.stderr
    shown = CliRunner().invoke(cli, ["table", "status", str(folder), "--servers", ";".join(mq.servers), "--json"])
    assert json.loads(shown.stdout)["unfit"] == 1
