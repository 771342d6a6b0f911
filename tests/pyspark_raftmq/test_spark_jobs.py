"""The jobs on a real cluster: each message once in the table whatever happened before, and figures that are right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import raftmq
from pyspark_raftmq.job_running import told_by_task
from pyspark_raftmq.jobs.export import TARGETS, ExportReport, export
from pyspark_raftmq.jobs.learning import FLOOR, FLOOR_BYTES, HEADROOM, SPAN_MS, SPAN_S
from pyspark_raftmq.jobs.traffic import counted, limits_file, traffic, write_limits
from pyspark_raftmq.options import ReadOptions, parse_options
from pyspark_raftmq.spark_cli import spark as spark_command
from raftmq.arrow.columns import DEFAULT_COLUMNS, arrow_schema
from raftmq.tables.day_files import DayFile, write_day_files
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.missing import Kept
from raftmq_wire.learnt_file import decode_file
from raftmq_wire.topic_identity import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(180)]

TOPIC = "lake"
Reached = Mapping[tuple[str, int], Position]
COLUMNS = "topic,queue_id,queue_offset,store_ms,body"


@pytest.fixture(scope="module")
def options(servers: str, mq: raftmq.Client) -> ReadOptions:
    """Two queues with 40 and 25 messages."""
    mq.admin.create_topic(TOPIC, 2)
    mq.send_batch(TOPIC, [b"x" * 10] * 40, queue_id=0, key="k")
    mq.send_batch(TOPIC, [b"x" * 20] * 25, queue_id=1)
    return parse_options({"servers": servers, "topic": TOPIC, "columns": COLUMNS})


def rows_in(folder: Path) -> list[tuple[int, int]]:
    from deltalake import DeltaTable

    table = DeltaTable(str(folder)).to_pyarrow_table(columns=["queue_id", "queue_offset"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def stored(mq: raftmq.Client) -> list[tuple[int, int]]:
    queues = mq.admin.describe_topic(TOPIC).queues
    return [(queue.queue_id, offset) for queue in queues for offset in range(queue.min_offset, queue.max_offset)]


def test_an_export_goes_on_where_the_table_ends(
    spark: SparkSession, mq: raftmq.Client, options: ReadOptions, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    first = export(
        spark, options, tmp_path, round_messages=30, on_commit=lambda done, total: seen.append((done, total))
    )
    assert (first.messages, first.commits, first.queues, first.races) == (65, 3, 2, 0)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (65, 65)
    assert rows_in(tmp_path) == stored(mq)
    assert export(spark, options, tmp_path).messages == 0
    mq.send_batch(TOPIC, [b"more"] * 3, queue_id=1)
    assert export(spark, options, tmp_path).messages == 3
    assert rows_in(tmp_path) == stored(mq)


def test_what_a_killed_export_wrote_is_not_in_the_table(
    spark: SparkSession, mq: raftmq.Client, options: ReadOptions, tmp_path: Path
) -> None:
    """The driver dies between the tasks and the commit, and after the commit."""

    class DiesBefore(DeltaTarget):
        def commit(self, files: Sequence[DayFile], reached: Reached, keeper: int | None = None) -> int:
            raise KeyboardInterrupt

    class DiesAfter(DeltaTarget):
        def commit(self, files: Sequence[DayFile], reached: Reached, keeper: int | None = None) -> int:
            super().commit(files, reached, keeper)
            raise KeyboardInterrupt

    for death, visible in ((DiesBefore, False), (DiesAfter, True)):
        with pytest.raises(KeyboardInterrupt):
            export(spark, options, tmp_path, kind=death, round_messages=30)
        assert bool(rows_in(tmp_path)) is visible
    assert len(list(tmp_path.rglob("*.parquet"))) > 2
    export(spark, options, tmp_path)
    assert rows_in(tmp_path) == stored(mq)


def test_of_two_exports_at_once_each_message_comes_from_one(
    spark: SparkSession, mq: raftmq.Client, options: ReadOptions, tmp_path: Path
) -> None:
    """The second runs as a whole between the tasks of the first and its commit."""
    from deltalake import DeltaTable

    inner: list[int] = []

    class Overtaken(DeltaTarget):
        def commit(self, files: Sequence[DayFile], reached: Reached, keeper: int | None = None) -> int:
            inner.append(export(spark, options, tmp_path).messages)
            return super().commit(files, reached, keeper)

    outer = export(spark, options, tmp_path, kind=Overtaken)
    assert inner == [len(stored(mq))]
    assert (outer.messages, outer.races) == (0, 1)
    assert rows_in(tmp_path) == stored(mq)
    named = {uri.rpartition("/")[2] for uri in DeltaTable(str(tmp_path)).file_uris()}
    assert {path.name for path in tmp_path.rglob("*.parquet")} == named, "files of the loser are removed"


def test_an_export_that_always_loses_gives_up(spark: SparkSession, options: ReadOptions, tmp_path: Path) -> None:
    class Loses(DeltaTarget):
        def commit(self, files: Sequence[DayFile], reached: Reached, keeper: int | None = None) -> int:
            raise LostRace("somebody was faster")

    with pytest.raises(TableError, match="another export writes to") as caught:
        export(spark, options, tmp_path, kind=Loses, races_max=1)
    assert caught.value.why.startswith("2 commits were refused")
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("form", ["delta", "parquet"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_topic_that_was_made_anew_is_not_mixed_with_the_old(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path, form: str, count: int
) -> None:
    """However many messages the new one has: the offset where the table goes on may be there again."""
    topic = f"lake-anew-{form}-{count}"
    given = {"servers": servers, "topic": topic, "columns": COLUMNS}
    options = parse_options(given)
    mq.admin.create_topic(topic, 1)
    mq.send_batch(topic, [b"x"] * 3)
    assert export(spark, options, tmp_path, kind=TARGETS[form]).messages == 3
    before = mq.admin.identity(topic)
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, 1)
    mq.send_batch(topic, [b"y"] * count)
    with pytest.raises(TableError, match=f"goes on at offset 3 of {topic} queue 0, in another topic") as caught:
        export(spark, options, tmp_path, kind=TARGETS[form])
    assert before is not None
    assert f"id {before.topic_id}, which is gone" in caught.value.why
    lenient = parse_options({**given, "failOnDataLoss": "false"})
    assert export(spark, lenient, tmp_path, kind=TARGETS[form]).messages == count
    assert export(spark, options, tmp_path, kind=TARGETS[form]).messages == 0
    mq.send_batch(topic, [b"z"] * 2)
    assert export(spark, options, tmp_path, kind=TARGETS[form]).messages == 2


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_what_an_earlier_release_exported_is_completed(
    spark: SparkSession,
    servers: str,
    mq: raftmq.Client,
    tmp_path: Path,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its positions say no topic; the next run, though it finds nothing new, says in which one they count."""
    topic = f"lake-completed-{form}"
    options = parse_options({"servers": servers, "topic": topic, "columns": COLUMNS})
    mq.admin.create_topic(topic, 1)
    mq.send_batch(topic, [b"x"] * 3)
    with monkeypatch.context() as earlier:
        ends = {(topic, 0): Kept(0, 3, None)}
        earlier.setattr("pyspark_raftmq.jobs.export._ends", lambda options: ends)
        assert export(spark, options, tmp_path, kind=TARGETS[form]).messages == 3
    target = TARGETS[form]
    assert target(tmp_path, options.columns).reached(topic, 0) == Position(3)
    assert export(spark, options, tmp_path, kind=TARGETS[form]).messages == 0
    assert target(tmp_path, options.columns).reached(topic, 0) == Position(3, mq.admin.identity(topic))


@pytest.mark.ci
def test_the_commands(
    spark: SparkSession, servers: str, options: ReadOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, picture = tmp_path / "table", tmp_path / "hours.svg"
    command = ["--servers", servers, "--json"]
    spark_command.main(["export", TOPIC, "--to", str(table), *command], standalone_mode=False)
    exported = json.loads(capsys.readouterr().out)
    assert exported["messages"] == len(rows_in(table)) > 0
    again = ["export", TOPIC, "--to", str(tmp_path / "files"), "--format", "parquet", *command]
    spark_command.main(again, standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["messages"] == exported["messages"]
    assert spark.read.parquet(str(tmp_path / "files")).count() == exported["messages"]
    spark_command.main(["report", TOPIC, "--plot", str(picture), *command], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    (line,) = told["topics"]
    assert (line["topic"], line["messages"], line["max_bytes"], line["keys"]) == (TOPIC, exported["messages"], 20, 1)
    assert line["bytes"] >= 40 * 10 + 25 * 20
    assert sum(hour["messages"] for hour in told["hours"]) == line["messages"]
    assert picture.read_text().lstrip().startswith("<?xml")


def test_traffic_finds_what_is_hot(spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path) -> None:
    mq.admin.create_topic("busy", 2)
    mq.send_batch("busy", [b"x" * 100] * 90, queue_id=0, key="hot")
    mq.send_batch("busy", [b"x" * 100] * 10, queue_id=1, key="cold")
    given = {"servers": servers, "topic": "busy"}
    found = traffic(spark, parse_options(given), given)
    assert found.queues == [("busy", 0, 90, 1.8), ("busy", 1, 10, 0.2)]
    assert found.keys == [("busy", "hot", 90, 0.9), ("busy", "cold", 10, 0.1)]
    stored = raftmq.read_arrow("busy", servers=servers, columns=["store_ms"]).column("store_ms").to_pylist()
    assert (found.first_ms, found.last_ms) == (min(stored), max(stored))
    busiest = max(Counter(ms // SPAN_MS for ms in stored).values())
    (line,) = found.limits
    assert line.messages_per_s == max(FLOOR, round(HEADROOM * busiest / SPAN_S))
    assert line.bytes_per_s == FLOOR_BYTES
    assert line.hour in {(ms // 3_600_000 + around) % 24 for ms in stored for around in (-1, 0, 1)}
    write_limits(limits_file(found, 1000, 500), tmp_path / "limits.json")
    written = decode_file((tmp_path / "limits.json").read_bytes())
    assert (written.origin.cluster, written.origin.expires_ms) == (mq.cluster_ids[0], 1500)
    assert {topic: len(limits.messages) for topic, limits in written.topics.items()} == {"busy": 24}
    assert [path.name for path in tmp_path.iterdir()] == ["limits.json"]


def test_what_traffic_counts_is_what_was_there(spark: SparkSession) -> None:
    """Two weeks of a topic with a message each half a minute, ten in the first ten minutes of Wednesdays' 9
    o'clock, and of one without bodies."""
    monday_ms = 1_795_996_800_000 - 1_795_996_800_000 % 604_800_000 + 4 * 86_400_000
    wednesday = 2 * 24 + 9
    rows = []
    for hour in range(0, 336, 3):
        for second in range(0, 3600, 30):
            ms = monday_ms + hour * 3_600_000 + second * 1000
            rows += [("even", ms, 100)] * (10 if hour % 168 == wednesday and second < 600 else 1)
    rows += [("empty", monday_ms + hour * 3_600_000, 0) for hour in range(336)]
    frame = spark.createDataFrame(rows, ["topic", "store_ms", "size"])
    counts, straying = counted(frame, 168)
    found = {(each.topic, each.hour): each for each in counts}
    assert len(found) == 56 + 168
    assert found["even", 0] == ("even", 0, 240, 1.0, 1.0, 100.0, 100.0)
    assert found["even", wednesday] == ("even", wednesday, 240, 2.5, 10.0, 250.0, 1000.0)
    assert found["empty", 7] == ("empty", 7, 2, 1.0, 1.0, 0.0, 0.0)
    assert straying == {"even": (4.0, 4.0), "empty": (1.0, 1.0)}


def test_mistakes_are_told_in_three_lines(servers: str, tmp_path: Path) -> None:
    from raftmq_wire.errors import LocalError

    export_to = ["export", "--to", str(tmp_path), "--servers", servers, TOPIC]
    with pytest.raises(LocalError, match="--columns lacks store_ms"):
        spark_command.main([*export_to, "--columns", "topic,queue_id,queue_offset"], standalone_mode=False)
    with pytest.raises(LocalError, match="nohost is not host:port, and no context"):
        spark_command.main([*export_to, "--servers", "nohost"], standalone_mode=False)


def written(folder: Path, form: str, columns: tuple[str, ...]) -> None:
    """Leaves the target of an export of one message."""
    target = TARGETS[form](folder, columns)
    values: dict[str, list[Any]] = {
        "topic": [TOPIC],
        "queue_id": [0],
        "queue_offset": [0],
        "store_ms": [1],
        "body": [b""],
    }
    batch = pa.RecordBatch.from_pydict({name: values[name] for name in columns}, schema=arrow_schema(columns))
    target.commit([*write_day_files(folder, TOPIC, 0, [batch], target.hidden)], {(TOPIC, 0): Position(1, None)})


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_second_export_has_the_columns_of_the_first(
    servers: str, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cluster and without Java; what is told to type is typed."""
    from raftmq_wire.errors import LocalError

    seen: list[tuple[str, ...]] = []

    def note(spark: object, options: ReadOptions, folder: Path, **more: object) -> ExportReport:
        seen.append(options.columns)
        return ExportReport(0, 0, 0, 0, 0, 0, None)

    monkeypatch.setattr("pyspark_raftmq.jobs.export.export", note)
    monkeypatch.setattr("pyspark_raftmq.spark_cli.job_session", lambda *_, **__: nullcontext())
    columns = ("topic", "queue_id", "queue_offset", "store_ms", "body")
    command = ["export", TOPIC, "--to", str(tmp_path / "lake"), "--format", form, "--servers", servers]
    spark_command.main(command, standalone_mode=False)
    assert seen == [DEFAULT_COLUMNS]
    written(tmp_path / "lake", form, columns)
    for more in ([], ["--columns", ",".join(columns)]):
        spark_command.main([*command, *more], standalone_mode=False)
        assert seen.pop() == columns
    for other in (",".join(columns[:-1]), ",".join(reversed(columns)), "tag"):
        with pytest.raises(LocalError, match="has other columns than --columns names") as caught:
            spark_command.main([*command, "--columns", other], standalone_mode=False)
        assert ", ".join(columns) in caught.value.why
        told = caught.value.fix.partition("    (")[0].removeprefix("raftmq spark ").split()
        spark_command.main([*told, "--servers", servers], standalone_mode=False)
        assert seen.pop() == columns


def test_parquet_files_need_a_folder_and_what_to_do_is_told(servers: str) -> None:
    from raftmq_wire.errors import LocalError

    command = ["export", TOPIC, "--to", "s3://bucket/x", "--format", "parquet", "--servers", servers]
    with pytest.raises(LocalError, match="s3://bucket/x cannot have files of --format parquet") as caught:
        spark_command.main(command, standalone_mode=False)
    assert caught.value.fix == "raftmq spark export TOPIC --to s3://bucket/x --format delta"
    with pytest.raises(LocalError, match="--to: http://host/x is not the URL of an object store"):
        spark_command.main(["export", TOPIC, "--to", "http://host/x", "--servers", servers], standalone_mode=False)


def test_a_folder_that_is_none_is_named(
    spark: SparkSession, servers: str, options: ReadOptions, tmp_path: Path
) -> None:
    from raftmq_wire.errors import LocalError

    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="file/table cannot be used"):
        spark_command.main(
            ["export", TOPIC, "--to", str(tmp_path / "file" / "table"), "--servers", servers], standalone_mode=False
        )


def test_the_error_of_a_task_is_found_in_the_trace() -> None:
    ours = "pyspark_raftmq.errors.ReadError: offset 3 cannot be read\n  why: gone\n  do:  again"
    trace = f"java.lang.X\nTraceback\n{ours}\n\tat x"
    assert told_by_task(trace) == ("offset 3 cannot be read", "gone", "again")
    assert told_by_task("java.lang.OutOfMemoryError\n\tat x\n\tat y") is None
