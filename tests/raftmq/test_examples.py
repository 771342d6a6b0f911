"""Each program in examples/ runs to its end, prints what it is about, and has sound types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pace import at_most

FOLDER = Path(__file__).parents[2] / "examples"
PRINTED = {
    "hello_sync.py": ["one one", "two two", "three three"],
    "hello_async.py": ["one one", "two two", "three three"],
    "workers.py": ["done: job 0", "done: job 19", "given up: nobody can do this"],
    "bank_transfer.py": ["t2 was not made: CHECK constraint failed: cents >= 0", "t1 300 cents"],
    "delayed_jobs.py": ["now", "in two seconds"],
    "outbox.py": ["ship tea for o1", "ship a cup for o2", "relayed: 2", "o1 was handled before"],
    "web_service.py": ["201 ['offset', 'queue']", "400 POST /orders?number=N with a body"],
    "failover.py": ["kill -9 of node", "sent 300, stored 300, in their order: True"],
}
LONG = {"delayed_jobs.py", "failover.py"}
"""They wait for what they show."""
WITH_SPARK = {"spark_streaming.py"}
"""tests/pyspark_raftmq/test_spark_example.py runs them."""


def test_each_program_is_run_and_listed() -> None:
    programs = {path.name for path in FOLDER.glob("*.py")}
    assert programs == PRINTED.keys() | WITH_SPARK
    assert all(f"[{name}]({name})" in (FOLDER / "README.md").read_text() for name in programs)


@pytest.mark.live
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.ci if name in LONG else ()) for name in sorted(PRINTED)]
)
def test_it_runs_to_its_end(live_cluster: Any, tmp_path: Path, name: str) -> None:
    env = os.environ | {"RAFTMQ_SERVERS": live_cluster.servers}
    words = [sys.executable, str(FOLDER / name)]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=at_most(90))
    assert done.returncode == 0, done.stderr
    assert [line for line in PRINTED[name] if line not in done.stdout] == []
    assert "never" not in done.stdout


@pytest.mark.ci
def test_their_types_are_sound() -> None:
    words = [sys.executable, "-m", "mypy", "--strict", *map(str, sorted(FOLDER.glob("*.py")))]
    done = subprocess.run(words, cwd=FOLDER.parent, capture_output=True, text=True, timeout=at_most(110))
    assert done.returncode == 0, done.stdout + done.stderr
