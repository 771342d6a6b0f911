"""Spark reads copies of a log whose nodes are gone: the rows are those that the nodes gave, or the task fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import pyspark_raftmq
from pyspark_raftmq.spark_cli import spark as spark_command
from raftmq.arrow.columns import COLUMNS
from raftmq.arrow.log_copy import CopySource
from raftmq_wire.errors import LocalError
from tests.support.left_copies import ORDERS, OTHER, Left
from tests.support.pace import at_most

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(1200)]

ORDER = ["topic", "queue_id", "queue_offset"]


def load(spark: SparkSession, source: CopySource, topic: str, **options: Any) -> DataFrame:
    return spark.read.format("raftmq").options(readFrom=source.kind, topic=topic, **options).load(source.path)


@pytest.mark.parametrize("kind", [pytest.param("backup", marks=pytest.mark.slow), "tier"])
def test_rows_are_those_that_the_nodes_gave(spark: SparkSession, left: Left, kind: str) -> None:
    frame = load(spark, getattr(left, kind), f"{ORDERS},{OTHER}", columns=",".join(COLUMNS))
    assert frame.rdd.getNumPartitions() == 3
    found = frame.orderBy(*ORDER).toArrow()
    for topic, table in left.tables.items():
        of_topic = [row for row in found.to_pylist() if row["topic"] == topic]
        assert of_topic == table.sort_by([(name, "ascending") for name in ORDER]).to_pylist()


@pytest.mark.slow
def test_limits_and_patterns(spark: SparkSession, left: Left) -> None:
    source = left.tier
    frame = (
        spark.read.format("raftmq")
        .options(readFrom="tier", subscribePattern="left-.*", columns="topic,queue_offset", minPartitions=9)
        .options(startingTimestamp=left.middle_ms)
        .load(source.path)
    )
    assert frame.rdd.getNumPartitions() >= 9
    rows = sum(sum(ms >= left.middle_ms for ms in table["store_ms"].to_pylist()) for table in left.tables.values())
    assert frame.count() == rows


@pytest.mark.slow
def test_filters_give_the_same_rows_from_fewer_tasks(spark: SparkSession, left: Left) -> None:
    def some(**options: Any) -> DataFrame:
        frame = load(spark, left.tier, f"{ORDERS},{OTHER}", **options)
        return frame.where(f"topic = '{ORDERS}' AND queue_offset < 20 AND store_ms >= 0").orderBy(*ORDER)

    pushed, plain = some(filterPushdown=True), some()
    assert pushed.toArrow().equals(plain.toArrow())
    narrowed = load(spark, left.tier, ORDERS, filterPushdown=True).where("queue_id = 1 AND queue_offset < 5")
    assert narrowed.rdd.getNumPartitions() == 1 < load(spark, left.tier, ORDERS).rdd.getNumPartitions()


def test_a_damaged_file_fails_the_task_and_is_named(spark: SparkSession, left: Left, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(left.backup.path, copy)
    position = left.tables[OTHER]["position"][0].as_py()
    (segment, *_) = sorted((copy / "log").iterdir())
    data = segment.read_bytes()
    at = data.index(b"x" * 100) + 50
    segment.chmod(0o600)
    segment.write_bytes(data[:at] + b"y" + data[at + 1 :])
    frame = load(spark, left.backup._replace(path=str(copy)), OTHER, columns="body")
    with pytest.raises(PySparkException, match=f"{segment.name} is damaged at position {position} of the log"):
        frame.count()


@pytest.mark.ci
@pytest.mark.parametrize("job", ["rebuild", "audit"])
def test_damage_is_told_without_a_trace(left: Left, tmp_path: Path, job: str) -> None:
    """Of a command as a user starts it: Java says what it always says at its start, and then there are three lines, or
    the audit's finding."""
    copy = tmp_path / "copy"
    shutil.copytree(left.backup.path, copy)
    (segment, *_) = sorted((copy / "log").iterdir())
    segment.chmod(0o600)
    data = bytearray(segment.read_bytes())
    data[len(data) // 3] ^= 0xFF
    segment.write_bytes(data)
    words = ["--log", str(copy), "--verify", str(copy)] if job == "rebuild" else [str(copy), left.backup.path]
    done = subprocess.run(
        [sys.executable, "-m", "raftmq", "spark", job, *words],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=at_most(300),
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert segment.name in done.stdout + done.stderr
    said = done.stderr.splitlines()
    assert not [line for line in said if "Traceback" in line or "\tat " in line or "ERROR" in line], done.stderr
    begun = max((number for number, line in enumerate(said) if "WARN" in line or "log" in line.lower()), default=0)
    assert len(said) - begun <= 4, done.stderr


@pytest.mark.slow
def test_the_commands(spark: SparkSession, left: Left, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rebuild = [
        "rebuild",
        "--log",
        left.tier.path,
        "--verify",
        left.backup.path,
        "--to",
        str(tmp_path / "rows"),
        "--json",
    ]
    assert spark_command.main(rebuild, standalone_mode=False) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["differences"], told["underived"]) == ([], [])
    written = spark.read.parquet(str(tmp_path / "rows")).groupBy("family").count().collect()
    assert {row.family for row in written} == {"cq", "index"}
    copies = ["audit", left.tier.path, left.backup.path]
    assert spark_command.main([*copies, "--json"], standalone_mode=False) == 0
    assert json.loads(capsys.readouterr().out)["copies"] == 2
    assert spark_command.main(copies, standalone_mode=False) == 0
    assert "nothing was found" in capsys.readouterr().out
    with pytest.raises(LocalError, match="is no copy of a log"):
        spark_command.main([*copies, str(tmp_path)], standalone_mode=False)


@pytest.mark.slow
def test_spark_submit_runs_a_job(spark: SparkSession, left: Left, tmp_path: Path) -> None:
    """And `session()` takes the master that spark-submit was told."""
    asks = tmp_path / "asks.py"
    asks.write_text("from pyspark_raftmq import session\nprint(session().sparkContext.master)\n")
    jobs, backup = Path(pyspark_raftmq.__file__).parent / "__main__.py", left.backup.path
    rebuilt = submitted(tmp_path, jobs, "rebuild", "--json", "--log", backup, "--verify", backup)
    assert json.loads(rebuilt)["differences"] == []
    assert submitted(tmp_path, asks) == "local[1]\n"


def submitted(within: Path, *program: str | Path) -> str:
    """Returns the output of the program."""
    submit = str(Path(sys.executable).parent / "spark-submit")
    command = [submit, "--master", "local[1]", "--driver-memory", "512m", *map(str, program)]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, env=env, cwd=within, capture_output=True, text=True, timeout=at_most(500), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_no_copy_is_told_before_any_task(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="is no copy of a log"):
        load(spark, CopySource("files", str(tmp_path)), ORDERS).count()
