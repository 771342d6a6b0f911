"""The bar of a job shows the tasks of what runs, and its thread ends with the job; its error is told. No JVM starts."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from pyspark_raftmq import job_running
from pyspark_raftmq.job_running import tasks_of
from raftmq_wire.errors import LocalError
from tests.support.pace import at_most

PATIENCE_S = at_most(60)


def test_tasks_of_all_stages_that_run_count() -> None:
    """Spark may forget a stage between the two questions."""
    stages = {
        1: SimpleNamespace(numCompletedTasks=2, numTasks=5),
        2: None,
        3: SimpleNamespace(numCompletedTasks=0, numTasks=4),
    }
    assert tasks_of(SimpleNamespace(getActiveStageIds=lambda: [*stages], getStageInfo=stages.get)) == (2, 9)


@pytest.mark.parametrize("fails", [False, True])
def test_the_bar_follows_until_the_job_ends(fails: bool) -> None:
    shown = Progress(console=Console(file=io.StringIO(), force_terminal=True))
    looks = threading.Semaphore(0)

    def look() -> tuple[int, int]:
        looks.release()
        if fails:
            raise ConnectionError("the JVM is gone")
        return 3, 7

    with job_running.followed(shown, look, every_s=0.0):
        for _ in range(1 if fails else 2):
            assert looks.acquire(timeout=PATIENCE_S)
    (task,) = shown.tasks
    assert (task.completed, task.total) == ((0, None) if fails else (3, 7))
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_where_nobody_watches_nothing_is_asked() -> None:
    hidden = Progress(console=Console(file=io.StringIO()))
    hidden.disable = True
    with job_running.followed(hidden, lambda: pytest.fail("asked")):
        pass
    assert hidden.tasks == []


@pytest.mark.parametrize(
    ("debug", "active", "levels"),
    [("", False, ["FATAL"]), ("1", False, []), ("", True, [])],
    ids=["job", "debug", "own"],
)
def test_only_a_session_of_a_command_says_nothing_of_failed_tasks(
    monkeypatch: pytest.MonkeyPatch, debug: str, active: bool, levels: list[str]
) -> None:
    """One that was active before is somebody's program, which has its own level."""
    sql = pytest.importorskip("pyspark.sql")
    set_to: list[str] = []
    made = SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=set_to.append), stop=lambda: None)
    monkeypatch.setenv("RAFTMQ_DEBUG", debug)
    monkeypatch.setattr(job_running, "session", lambda master, driver_memory: made)
    monkeypatch.setattr(sql.SparkSession, "getActiveSession", lambda: made if active else None)
    with job_running.job_session(None, "1g", quiet=True) as running:
        assert running is made
    assert set_to == levels


@pytest.mark.spark
def test_the_error_of_a_job_is_told_when_spark_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session cannot be stopped then, and that is no news."""

    def gone() -> None:
        raise ConnectionRefusedError

    monkeypatch.setenv("RAFTMQ_DEBUG", "1")
    monkeypatch.setattr(job_running, "session", lambda *_, **__: SimpleNamespace(stop=gone))
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(LocalError, match="Spark has ended"), job_running.job_session(None, "1g", quiet=True):
        raise LocalError("Spark has ended", "", "")
