"""A node that is down when its group of brokers retires: started later, it says so, and ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.errors import ExitCode
from tests.raftmq.commands.test_drain_live import Run
from tests.raftmq.commands.test_drain_live import run as run  # a fixture
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster(tmp_path / "data")


def test_it_ends_without_having_been_there(cluster: LocalCluster, run: Run) -> None:
    cluster.up(3, free_base_port(30), groups=2)
    try:
        (late,) = (node for node in cluster.of_group(2) if node.id == 3)
        assert run("kill", "2/3")[0] == 0
        wait(lambda: run("broker-group", "drain", "2", "--yes", "--spread")[0] == 0, "another node of the group leads")
        code, retired = run("broker-group", "retire", "2", "--yes", "--force")
        assert (code, retired["state"]) == (0, "retired")
        aside = Path(retired["set_aside"]) / late.config_path.parent.name
        aside.rename(late.config_path.parent)
        ended = subprocess.run(
            [sys.executable, "-m", "cluster.node", "--config", str(late.config_path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=at_most(60),
        )
    finally:
        cluster.down()
    assert "serves" in ended.stderr + ended.stdout, "it did not know at its start"
    assert (ended.returncode, "has retired, and its nodes run no more" in ended.stderr) == (ExitCode.REFUSED, True)
