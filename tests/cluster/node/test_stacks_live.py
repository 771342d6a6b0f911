"""A node that answers nothing can be asked where it is."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from jepsen_like.live.subjects.owned_resources import owning
from jepsen_like.live.subjects.processes import Processes
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from tests.support.wait_until import until

pytestmark = pytest.mark.live


def test_sigquit_prints_the_stacks_of_all_threads_and_the_node_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTMQ_CHAOS_STATE", str(tmp_path / "state"))
    base = free_base_port(4)
    path, log = tmp_path / "raftmq.toml", tmp_path / "node.log"
    path.write_text(
        f'[node]\nid = 1\ndata_dir = "{tmp_path}/data"\n[[peers]]\nid = 1\nport = {base}\n[peer]\nport = {base}\n'
        f'[[listeners]]\nname = "broker"\nport = {base + 1}\n[admin]\nport = {base + 2}\n'
    )
    create_data_dirs([path])
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
