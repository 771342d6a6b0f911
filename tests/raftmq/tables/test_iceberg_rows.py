"""The rows of Iceberg tables of topics: every reader finds the same, before and after files are merged."""

from __future__ import annotations

import json
import os
import time
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table.snapshots import Operation

import raftmq
from raftmq.arrow.columns import DEFAULT_COLUMNS
from raftmq.tables import iceberg_upkeep
from raftmq.tables.errors import CatalogError, LostRace, TableError
from raftmq.tables.formats import status_of, upkeep
from raftmq.tables.iceberg_catalog import load
from raftmq.tables.iceberg_table import IcebergTarget, OneCommit
from raftmq.tables.iceberg_upkeep import compact_iceberg
from raftmq.tables.kept_table import TableOptions
from raftmq.tables.table_rows import KAFKA, MoreColumns
from raftmq.tables.table_run import TableRun
from tests.support.followed_topics import send, stored
from tests.support.iceberg_rows import FILE, named, opened, rows_in, run_of, visible

pytestmark = pytest.mark.live

GROWS = MoreColumns(json=True, grows=True)
NARROW = ("topic", "queue_id", "queue_offset", "store_ms")


def send_json(mq: raftmq.Client, topic: str, *bodies: object, queue: int = 0) -> None:
    found = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    mq.send_batch(topic, found, queue_id=queue, key="k", properties={"shop": "7"})


@pytest.fixture
def sales(mq: raftmq.Client, request: pytest.FixtureRequest) -> str:
    """A topic of two queues without messages."""
    name: str = request.node.name.removeprefix("test_")
    mq.admin.create_topic(name, 2)
    return name


def ordered(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["queue_id"], row["queue_offset"]))


def told(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    rows = opened(folder).scan(selected_fields=("queue_id", "queue_offset", *columns)).to_arrow().to_pylist()
    return [tuple(row[name] for name in columns) for row in ordered(rows)]


PRICE = "price: a string, and the column is double"


def test_columns_come_with_the_fields(mq: raftmq.Client, sales: str, tmp_path: Path) -> None:
    """Each row is there whatever its body is, before and after files are merged."""
    send_json(mq, sales, {"price": 1, "name": "tea"}, {"price": 2.5}, b"no json")
    send_json(mq, sales, {"price": 3, "paid": True}, queue=1)
    with run_of(mq, sales, tmp_path, columns=NARROW, more=GROWS) as run:
        assert run.round().messages == 4
        send_json(mq, sales, {"price": "free", "at": {"x": 1}}, {"price": 4, "Price": 5})
        assert run.round().messages == 2
        assert run.round().version is None
    assert status_of(mq, tmp_path, FILE).unfit == 2
    for _ in range(2):
        assert told(tmp_path, "price", "name", "paid", "at", "body_Price", "_raw", "_error") == [
            (1.0, "tea", None, None, None, None, None),
            (2.5, None, None, None, None, None, None),
            (None, None, None, None, None, b"no json", "not JSON: JSON is malformed: invalid character (byte 4)"),
            (None, None, None, '{"x":1}', None, b'{"price": "free", "at": {"x": 1}}', PRICE),
            (4.0, None, None, None, 5, None, None),
            (3.0, None, True, None, None, None, None),
        ]
        assert compact_iceberg(tmp_path, FILE, 24).made in (0, 1)
    assert status_of(mq, tmp_path, FILE).unfit == 2
    with pytest.raises(TableError, match="other columns"):
        run_of(mq, sales, tmp_path, columns=NARROW).__enter__()
    given = MoreColumns(json=True, given={"price": "long"})
    with pytest.raises(TableError, match="has the field price as double, not as long"):
        run_of(mq, sales, tmp_path, columns=NARROW, more=given).__enter__()
    assert not list(tmp_path.glob("day=*/_*"))


def test_a_commit_between_the_plan_and_new_columns_costs_a_round(mq: raftmq.Client, sales: str, tmp_path: Path) -> None:
    """It may have brought the same messages."""

    class Overtaken(IcebergTarget):
        def add_fields(self, fields: Any) -> None:
            with load(FILE, tmp_path) as catalog:
                IcebergTarget(catalog, FILE, tmp_path, NARROW, GROWS).commit([], {})
            super().add_fields(fields)

    send_json(mq, sales, {"a": 1})
    with run_of(mq, sales, tmp_path, kind=Overtaken, columns=NARROW, more=GROWS) as run:
        assert run.round().version is None
    with run_of(mq, sales, tmp_path, columns=NARROW, more=GROWS) as run:
        assert run.round().messages == 1
    assert told(tmp_path, "a") == [(1,)]


def test_another_writer_while_given_columns_are_added_is_told(mq: raftmq.Client, sales: str, tmp_path: Path) -> None:
    send_json(mq, sales, {"price": 1, "name": "tea"}, {"price": "x"})
    given = MoreColumns(kafka=True, json=True, given={"price": "double"})

    class Overtaken(IcebergTarget):
        def add_fields(self, fields: Any) -> None:
            opened(tmp_path).append(opened(tmp_path).scan().to_arrow())
            super().add_fields(fields)

    with pytest.raises(CatalogError, match="lacks columns, and another writer was faster"):
        run_of(mq, sales, tmp_path, kind=Overtaken, more=given).__enter__()
    with run_of(mq, sales, tmp_path, more=given) as run:
        assert run.round().messages == 2
    assert told(tmp_path, "price", "_error", "partition", "key") == [(1.0, None, 0, b"k"), (None, PRICE, 0, b"k")]


def test_every_reader_finds_the_rows_of_the_delta_table(
    mq: raftmq.Client, sales: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg, Polars, DuckDB on Arrow, and whoever reads the files alone."""
    send_json(mq, sales, {"price": 1, "name": "tea"}, {"price": 2.5}, b"no json", {"price": 3, "paid": True})
    more = MoreColumns(kafka=True, json=True, grows=True)
    columns = TableOptions(DEFAULT_COLUMNS, more=more)
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other one is a package of its own
    with (
        TableRun(mq, [sales], tmp_path / "delta", columns) as delta,
        run_of(mq, sales, tmp_path / "t", more=more) as run,
    ):
        delta.round()
        run.round()
        send_json(mq, sales, {"price": 7, "new": "x"}, queue=1)
        delta.round()
        run.round()
    expected = ordered(DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().to_pylist())
    names = [*expected[0]]
    for _ in range(2):
        table = opened(tmp_path / "t")
        arrow = table.scan().to_arrow()
        assert {*arrow.schema.names} == {*names, *KAFKA}
        assert ordered(arrow.select(names).to_pylist()) == expected
        some = ["queue_id", "queue_offset", "price", "_error", "day", "body"]
        frame = polars.scan_iceberg(table).select(some).collect()
        assert ordered(frame.to_dicts()) == [{name: row[name] for name in some} for row in expected]
        rows = duckdb.sql("SELECT queue_id, queue_offset, price, name FROM arrow ORDER BY ALL").fetchall()
        assert rows == [(row["queue_id"], row["queue_offset"], row["price"], row["name"]) for row in expected]
        files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
        alone = pa.concat_tables([pq.ParquetFile(file).read() for file in files], promote_options="default")
        assert ordered(alone.select(names).to_pylist()) == expected
        compact_iceberg(tmp_path / "t", FILE, 24)


def test_a_reader_skips_files_by_day_and_offset(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    with run_of(mq, topic, tmp_path) as run:
        run.round()
    table = opened(tmp_path)
    assert len([*table.scan("queue_offset >= 30").plan_files()]) == 1
    assert [*table.scan("day = '1999-01-01'").plan_files()] == []
    assert [*table.scan("topic = 'another'").plan_files()] == []


def test_small_files_become_one_and_the_others_go(
    mq: raftmq.Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_of(mq, topic, tmp_path) as run:
        for _ in range(5):
            assert run.round().version is not None
            send(mq, topic, 3, 2)
        with upkeep(tmp_path, FILE, 11, 24) as tending:
            assert tending.tend() == (0, 0, 0)
        with upkeep(tmp_path, FILE, 10, 24) as tending:
            assert tending.tend() == (10, 1, 0)
        newest = opened(tmp_path).metadata.current_snapshot()
        assert newest is not None
        assert newest.summary is not None
        assert newest.summary.operation is Operation.REPLACE, "no reader takes it for new rows"
        assert compact_iceberg(tmp_path, FILE, 24) == (0, 0, 0), "one file stays as it is"
        assert run.round().messages == 5, "and the positions are those of before"
        assert rows_in(tmp_path) == stored(mq, topic)
    (day,) = tmp_path.glob("day=*")
    (day / "_of-an-export.tmp").touch()
    with run_of(mq, topic, tmp_path) as run:
        assert len(visible(tmp_path) - named(tmp_path)) == 10, "readers of older snapshots need what was merged"
        metadata = {*(tmp_path / "metadata").iterdir()}
        for path in metadata:  # as of two days ago
            os.utime(path, (time.time() - 48 * 3600,) * 2)
        assert compact_iceberg(tmp_path, FILE, 0) == (3, 1, 13)
        assert metadata - {*(tmp_path / "metadata").iterdir()}, "what no snapshot names any more is gone"
        assert rows_in(tmp_path) == stored(mq, topic)
        send(mq, topic, 1)
        assert run.round().messages == 1
    assert (day / "_of-an-export.tmp").exists()
    assert rows_in(tmp_path) == stored(mq, topic)


def test_merged_rows_are_in_the_order_of_arrival(
    mq: raftmq.Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a reader of the newest messages, or of some offsets, skips other files, and other parts of a file."""
    with run_of(mq, topic, tmp_path) as run:
        for _ in range(9):
            run.round()
            send(mq, topic, 1)
        (day,) = tmp_path.glob("day=*")
        smallest = min(path.stat().st_size for path in day.iterdir())
        monkeypatch.setattr(iceberg_upkeep, "TARGET_BYTES", 3 * smallest)
        assert compact_iceberg(tmp_path, FILE, 24).made > 2
    rows = [pq.read_table(day / name, filters=[("queue_id", "=", 0)]) for name in named(tmp_path)]
    offsets = sorted(each.column("queue_offset").to_pylist() for each in rows if len(each))
    assert len(offsets) > 2
    assert [*chain.from_iterable(offsets)] == [*range(sum(map(len, offsets)))]


def test_a_table_without_a_commit_is_compacted(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    """The first round may have failed, and upkeep follows it."""
    with run_of(mq, topic, tmp_path) as run:
        assert compact_iceberg(tmp_path, FILE, 0) == (0, 0, 0)
        assert run.round().messages == 65
    assert rows_in(tmp_path) == stored(mq, topic)


def test_snapshots_that_only_added_rows_are_expired_and_readers_keep_theirs(
    mq: raftmq.Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour later. The one before a merge stays as long as the files that were merged."""
    with run_of(mq, topic, tmp_path) as run:
        for _ in range(3):
            run.round()
            send(mq, topic, 1)
        before = opened(tmp_path).metadata.current_snapshot_id
        compact_iceberg(tmp_path, FILE, 24)
        run.round()
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 7200)
        compact_iceberg(tmp_path, FILE, 24)
    table = opened(tmp_path)
    left = [each.snapshot_id for each in table.snapshots()]
    assert left == [before, *left[-2:]]
    assert len(left) == 3
    assert table.scan(snapshot_id=before).count() == 67
    assert rows_in(tmp_path) == stored(mq, topic)


def test_a_merge_that_a_round_overtakes_leaves_nothing(
    mq: raftmq.Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = OneCommit.send
    with run_of(mq, topic, tmp_path) as run:
        run.round()
        send(mq, topic, 2)

        def overtaken(self: OneCommit, snapshot_id: int) -> Any:
            monkeypatch.undo()
            assert run.round().messages == 2
            return sent(self, snapshot_id)

        monkeypatch.setattr(OneCommit, "send", overtaken)
        with pytest.raises(LostRace):
            compact_iceberg(tmp_path, FILE, 24)
        assert visible(tmp_path) == named(tmp_path)
    assert rows_in(tmp_path) == stored(mq, topic)


def test_what_the_catalog_names_is_on_disk_before(
    mq: raftmq.Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = set(), os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    with run_of(mq, topic, tmp_path) as run:
        run.round()
        compact_iceberg(tmp_path, FILE, 24)
    folders = [tmp_path / "metadata", *tmp_path.glob("day=*")]
    needed = [*folders, *tmp_path.glob("metadata/*"), *tmp_path.glob("day=*/run-*")]
    assert len(needed) > 8
    assert [path.name for path in needed if path.stat().st_ino not in synced] == []


def test_the_status_says_what_is_missing(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="has no table raftmq"):
        status_of(mq, tmp_path, FILE)
    with run_of(mq, topic, tmp_path) as run:
        run.round()
        assert status_of(mq, tmp_path, FILE).kept
    send(mq, topic, 0, 7)
    found = status_of(mq, tmp_path, FILE)
    assert (found.kept, found.behind, found.unfit, found.gone) == (False, 7, 0, [])
    assert (found.version, found.files, found.small, found.rows) == (1, 2, 2, 65)
    assert [(queue.queue_id, queue.offset, queue.behind) for queue in found.queues] == [(0, 40, 0), (1, 25, 7)]
    mq.admin.delete_topic(topic)
    assert status_of(mq, tmp_path, FILE).gone == [topic]
