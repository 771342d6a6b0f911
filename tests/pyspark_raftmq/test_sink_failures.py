"""Each row once, whatever befalls tasks and drivers: on a Spark cluster that retries and speculates, and with dead
drivers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import raftmq
from pyspark_raftmq.java import ensure_java
from raftmq.local.process import free_base_port
from tests.support import sink_job
from tests.support.pace import at_most
from tests.support.topic_rows import wait_for_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.live, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


def run(mode: str, servers: str, topic: str, folder: Path, **more: str) -> int:
    """Returns the exit code of a driver of its own; `more`: additions to its environment."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    command = [sys.executable, "-m", "tests.support.sink_job", mode, servers, topic, str(folder)]
    return subprocess.run(
        command, cwd=ROOT, env=env, start_new_session=True, timeout=at_most(850), check=False
    ).returncode


def numbers(mq: raftmq.Client, topic: str, count: int) -> list[int]:
    return sorted(int(row.body) for row in wait_for_rows(mq, topic, count))


def test_a_task_that_fails_after_half_of_its_rows_and_yields_them_shuffled(
    servers: str, mq: raftmq.Client, tmp_path: Path
) -> None:
    mq.admin.create_topic("sink-fails", 2)
    assert run("fails", servers, "sink-fails", tmp_path) == 0
    assert {name.name for name in (tmp_path / "tries").iterdir()} == {
        f"{task}-{number}" for task in range(sink_job.TASKS) for number in (0, 1)
    }
    assert numbers(mq, "sink-fails", sink_job.ROWS) == list(range(sink_job.ROWS))


@pytest.fixture
def two_hosts() -> Iterator[str]:
    """The URL of a Spark cluster of two workers: Spark runs no second attempt on the host of the first, so each has
    an address of its own, which local-cluster does not give."""
    import pyspark

    ensure_java()
    home = Path(pyspark.__file__).parent
    port = free_base_port(1)
    url = f"spark://127.0.0.1:{port}"

    def start(role: str, *options: str) -> subprocess.Popen[bytes]:
        command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{role}", *options]
        return subprocess.Popen(command, env={**os.environ, "SPARK_HOME": str(home)}, start_new_session=True)

    started = [start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    for host in ("127.0.0.1", "127.0.0.2"):
        options = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir")
        started.append(start("worker.Worker", *options, tempfile.mkdtemp(), url))
    yield url
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()


def test_two_attempts_of_a_task_are_live_and_one_counts(
    servers: str, mq: raftmq.Client, tmp_path: Path, two_hosts: str
) -> None:
    mq.admin.create_topic("sink-twice", 2)
    assert run("speculates", servers, "sink-twice", tmp_path, SINK_MASTER=two_hosts) == 0
    first = tmp_path / "tries" / f"{sink_job.TASKS - 1}-0"
    assert first.read_text() == "both were live"
    assert numbers(mq, "sink-twice", sink_job.ROWS) == list(range(sink_job.ROWS))


def test_drivers_that_die_before_and_after_the_commit(servers: str, mq: raftmq.Client, tmp_path: Path) -> None:
    for name in (sink_job.FROM, "sink-dies"):
        mq.admin.create_topic(name, 2)
    mq.send_batch(sink_job.FROM, [b"%d" % number for number in range(30)], queue_id=0)
    assert run("before", servers, "sink-dies", tmp_path) != 0
    assert sum(queue.max_offset for queue in mq.admin.describe_topic("sink-dies").queues) == 0
    assert run("whole", servers, "sink-dies", tmp_path) == 0
    assert numbers(mq, "sink-dies", 30) == list(range(30))
    mq.send_batch(sink_job.FROM, [b"%d" % number for number in range(30, 50)], queue_id=1)
    assert run("after", servers, "sink-dies", tmp_path) != 0
    assert run("whole", servers, "sink-dies", tmp_path) == 0
    assert numbers(mq, "sink-dies", 50) == list(range(50))
