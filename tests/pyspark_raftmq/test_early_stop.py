"""Spark's own worker process, with a socket that Spark has closed: nothing is printed; what is an error is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pace import at_most

pytest.importorskip("pyspark")

ROOT = Path(__file__).parents[2]
WORKER = """
import os, socket, sys, traceback
from types import ModuleType
from pyspark import daemon
from pyspark_raftmq.early_stop import end_quietly

def main(infile, outfile):
    {task}

sys.modules["pyspark_of_this_test"] = module = ModuleType("pyspark_of_this_test")
module.main = main
sys.argv = ["daemon.py", "pyspark_of_this_test"]
os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"
ours, sparks = socket.socketpair()
sparks.close()
try:  # from here on as in daemon.manager
    daemon.worker(ours, True)
except BaseException:
    traceback.print_exc()
os._exit(1)
"""
GIVES_ROWS = 'outfile.write(b"rows"); sys.exit(-1)'
"""A task whose reader has enough: Spark's worker ends so."""


def printed(task: str) -> str:
    """Returns the output of a worker with this task."""
    command = [sys.executable, "-c", WORKER.format(task=task)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=at_most(60), check=False)
    return done.stderr


def test_a_limit_prints_no_traceback() -> None:
    assert "BrokenPipeError" in printed(GIVES_ROWS), "else Spark has changed, and end_quietly is not needed any more"
    assert printed(f"end_quietly(); end_quietly(); {GIVES_ROWS}") == ""


@pytest.mark.parametrize("error", ['BrokenPipeError("of a broker")', 'ValueError("a defect")'])
def test_what_else_ends_a_worker_is_printed(error: str) -> None:
    assert error.split('"')[1] in printed(f"end_quietly(); raise {error}")
