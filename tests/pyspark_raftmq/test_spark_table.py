"""A table that a streaming query keeps: each message once, whoever dies, and `raftmq table run` goes on with it."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import raftmq
from pyspark_raftmq.jobs.table import TableQuery
from raftmq.arrow.columns import DEFAULT_COLUMNS
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.kept_table import KeptTable, Round, TableOptions
from raftmq.tables.local_keeper import LOCK
from raftmq.tables.table_rows import MoreColumns
from raftmq.tables.table_run import TableRun
from raftmq.tables.upkeep import compact
from tests.support.followed_topics import send, stored
from tests.support.pace import at_most

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(180)]

OPTIONS = TableOptions(DEFAULT_COLUMNS)


@pytest.fixture
def topic(mq: raftmq.Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """Two queues with 40 and 25 messages."""
    name = request.node.name.removeprefix("test_").split("[")[0]
    mq.admin.create_topic(name, 2)
    send(mq, name, 40, 25)
    yield name
    mq.admin.delete_topic(name)


def rows_in(folder: Path) -> list[tuple[int, int]]:
    table = DeltaTable(str(folder)).to_pyarrow_table(columns=["queue_id", "queue_offset"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


class Spark:
    """Queries into the table of one topic, each until the topic's end."""

    def __init__(self, spark: SparkSession, mq: raftmq.Client, topic: str, folder: Path) -> None:
        self._spark = spark
        self._mq = mq
        self._source = {"servers": ";".join(mq.servers), "topic": topic}
        self._folder = folder

    def query(self, options: TableOptions = OPTIONS, kind: type[DeltaTarget] = DeltaTarget) -> int:
        """Returns the number of messages that it has added. Raises the error that ended it."""
        done: list[Round] = []
        table = KeptTable(self._folder, options, kind)
        columns = {"columns": ",".join(table.rows.read)}
        with (
            table as kept,
            TableQuery(self._spark, self._mq, self._source | columns, kept, done.append) as query,
        ):
            query.start(None)
            end_s = time.monotonic() + at_most(120)
            while not query.ended:
                assert time.monotonic() < end_s
                time.sleep(0.05)
            query.check()
        return sum(each.messages for each in done)


def run(mq: raftmq.Client, topic: str, folder: Path) -> int:
    with TableRun(mq, [topic], folder, OPTIONS) as running:
        return running.round().messages


def test_each_of_the_two_goes_on_where_the_other_ended(
    spark: SparkSession, mq: raftmq.Client, topic: str, tmp_path: Path
) -> None:
    """Whether the answer to a commit is lost, or another program writes the same messages first, too."""
    queries = Spark(spark, mq, topic, tmp_path)
    assert run(mq, topic, tmp_path) == 65
    send(mq, topic, 3, 5)

    class Unanswered(DeltaTarget):
        def commit(self, files: Any, reached: Any, keeper: int | None = None) -> int:
            super().commit(files, reached, keeper)
            raise OSError("no answer")

    with pytest.raises(OSError, match="no answer"):
        queries.query(kind=Unanswered)
    assert run(mq, topic, tmp_path) == 0
    assert rows_in(tmp_path) == stored(mq, topic)

    class Overtaken(DeltaTarget):
        def commit(self, files: Any, reached: Any, keeper: int | None = None) -> int:
            other = [file._replace(path=file.path.replace("run-", "other-")) for file in files]
            for mine, copied in zip(files, other, strict=True):
                (tmp_path / copied.path).write_bytes((tmp_path / mine.path).read_bytes())
            DeltaTarget(tmp_path, DEFAULT_COLUMNS).commit(other, reached)
            return super().commit(files, reached, keeper)

    send(mq, topic, 2, 2)
    with pytest.raises(LostRace):
        queries.query(kind=Overtaken)
    assert run(mq, topic, tmp_path) == 0
    assert rows_in(tmp_path) == stored(mq, topic)
    assert not [path for path in tmp_path.glob("day=*/*") if path.name.startswith("_run-")]

    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, 2)
    send(mq, topic, 50, 0)
    with pytest.raises(TableError, match="in another topic of this name"):
        queries.query()
    assert queries.query(OPTIONS._replace(accept_loss=True)) == 50
    assert run(mq, topic, tmp_path) == 0


@pytest.mark.ci
def test_the_rows_are_those_of_a_run_without_spark(
    spark: SparkSession, mq: raftmq.Client, topic: str, tmp_path: Path
) -> None:
    """With columns of fields and Kafka's names, also after small files were merged, and for each reader."""
    bodies = [b'{"price": 1, "at": {"x": 1}}', b'{"price": 2.5}', b"no json", b'{"price": "free", "Price": true}']
    mq.send_batch(topic, bodies, queue_id=1, key="k", properties={"shop": "7"})
    options = OPTIONS._replace(more=MoreColumns(kafka=True, json=True, grows=True))
    assert Spark(spark, mq, topic, tmp_path / "spark").query(options) == 69
    with TableRun(mq, [topic], tmp_path / "run", options) as running:
        assert running.round().messages == 69
    order = [("queue_id", "ascending"), ("queue_offset", "ascending")]
    ran, streamed = (DeltaTable(str(tmp_path / name)).to_pyarrow_table().sort_by(order) for name in ("run", "spark"))
    assert ran.schema == streamed.schema
    assert ran.to_pylist() == streamed.to_pylist()
    assert ran["price"].to_pylist()[-4:] == [1.0, 2.5, None, None]
    import duckdb
    import polars

    assert compact(tmp_path / "spark").made == 1
    table = DeltaTable(str(tmp_path / "spark"))
    one = polars.scan_delta(str(tmp_path / "spark")).filter(polars.col("price") > 1).select("offset").collect()
    rows = table.to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    two = duckdb.sql('SELECT "offset" FROM rows WHERE price > 1').fetchall()
    three = spark.read.parquet(*table.file_uris()).where("price > 1").select("offset").collect()
    assert one.rows() == two == [tuple(row) for row in three] == [(26,)]


@pytest.mark.ci
@pytest.mark.timeout(900)
@pytest.mark.parametrize("deaths", [6])
def test_kills_of_the_driver_cost_no_row(mq: raftmq.Client, topic: str, tmp_path: Path, deaths: int) -> None:
    """kill -9 of the command at random moments, with messages coming in and small files being merged; each third time
    the table is kept without Spark."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance, folder = random.Random(seed), tmp_path / "t"
    words = [topic, "--to", str(folder), "--servers", ";".join(mq.servers)]
    raftmq_command = [sys.executable, "-m", "raftmq"]
    for number in range(deaths):
        kind = ["table", "run"] if number % 3 == 2 else ["spark", "table"]
        log = tmp_path / f"log{number}"
        with log.open("w") as out:
            more = ["--every", "1s", "--compact-at", "4"]
            running = subprocess.Popen([*raftmq_command, *kind, *words, *more], stdout=out, stderr=out)
        end_s = time.monotonic() + at_most(60)
        while "version" not in log.read_text():
            send(mq, topic, chance.randrange(20), 1)
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.2)
        until_s = time.monotonic() + chance.uniform(0, 2.5)
        while time.monotonic() < until_s:
            send(mq, topic, chance.randrange(20), chance.randrange(20))
            time.sleep(0.05)
        assert running.poll() is None, log.read_text()
        running.kill()
        running.wait()
        assert (folder / LOCK).exists()
    done = subprocess.run([*raftmq_command, "spark", "table", *words, "--once"], check=True, capture_output=True)
    assert b"stopped after" in done.stderr
    assert rows_in(folder) == stored(mq, topic)
