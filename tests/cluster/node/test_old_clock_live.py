"""A node whose clock shows last year: the others name it, and it serves and leads all the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jepsen_like.live.harm.power import NodeDisk, build_shim
from raftmq.client import connect
from tests.cluster.node.test_findings_live import wait_for
from tests.support.live_nodes import LiveCluster
from tests.support.tools import needs

pytestmark = [pytest.mark.live, needs("gcc")]
YEAR_MS = 365 * 86_400_000


@pytest.fixture
def disk(tmp_path: Path) -> NodeDisk:
    home = tmp_path / "untracked"
    home.mkdir()
    return NodeDisk(home, tmp_path / "shim", build_shim(tmp_path / "built"))


@pytest.mark.ci
def test_a_node_with_the_clock_of_last_year(
    live_cluster: LiveCluster, disk: NodeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = live_cluster
    leader = cluster.leader()
    late = next(node.id for node in cluster.nodes if node.id != leader)
    disk.set_clock(-YEAR_MS)
    cluster.kill(late)
    with monkeypatch.context() as patch:
        for name, value in disk.environment().items():
            patch.setenv(name, value)
        cluster.restart(late)
    assert disk.skewed_readings > 0
    said = wait_for(cluster, leader, lambda said: ("clock_off", f"node {late}") in said)
    assert "behind the others" in said["clock_off", f"node {late}"]["says"]

    with connect(cluster.servers) as mq:
        for number in range(50):
            mq.send("years", b"%d" % number)
        cluster.ask(leader, "/v1/leader/transfer", "POST", {"to": late})
        for number in range(50, 100):
            mq.send("years", b"%d" % number)
    assert cluster.leader() == late
    cluster.wait_equal()
    stored = cluster.stored("years")
    assert [sorted(int(message.body) for message in stored[node.id]) for node in cluster.nodes] == [[*range(100)]] * 3
    times = [message.store_ms for message in sorted(stored[leader], key=lambda message: int(message.body))]
    assert times == sorted(times), "the log's time does not go back with its leader's clock"
    assert times[-1] > 1000 * time.time() - YEAR_MS / 2
