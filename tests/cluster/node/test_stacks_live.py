"""A node that answers nothing can be asked where it is."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from jepsen_like.live.subjects.owned_resources import owning
from jepsen_like.live.subjects.processes import Processes
from tests.support.lone_node import write_lone_node
from tests.support.wait_until import until

pytestmark = pytest.mark.live


def test_sigquit_prints_the_stacks_of_all_threads_and_the_node_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTMQ_CHAOS_STATE", str(tmp_path / "state"))
    log = tmp_path / "node.log"
    path, _ = write_lone_node(tmp_path, "")
    with owning(tmp_path, lambda _: None) as owned:
        processes = Processes(owned)
        assert not processes.print_stacks(1)
        command = [sys.executable, "-m", "cluster.node", "--config", str(path), "--log-file", str(log)]
        processes.start(1, command, log, os.environ)
        try:
            asyncio.run(until(lambda: " serves: " in log.read_text() or not processes.is_running(1), every_s=0.05))
            assert processes.print_stacks(1)
            last = "cluster/node/__main__.py"  # the first call of the thread that runs the loop, printed last
            asyncio.run(until(lambda: last in log.read_text() or not processes.is_running(1), every_s=0.05))
            told = log.read_text()
            assert "Current thread" in told
            assert told.count("Thread 0x") >= 2, "its lanes too"
            assert processes.is_running(1)
        finally:
            processes.stop_all()
