"""`raftmq upgrade` on real nodes: what it refuses before it stops one."""

from __future__ import annotations

import pytest

from raftmq.cli import run
from statemachine import levels
from tests.support.live_nodes import LiveCluster

pytestmark = pytest.mark.live


def processes(cluster: LiveCluster) -> list[int | None]:
    """The process ids of the nodes; all of them run."""
    views = cluster.local.view().nodes
    assert all(view.running for view in views)
    return [view.record.pid for view in views]


def test_a_version_two_levels_on_stops_no_node(
    live_cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = processes(live_cluster)
    monkeypatch.setattr(levels, "LEVEL", levels.LEVEL + 2)
    assert run(["upgrade", "run", "--data", str(live_cluster.data)]) == 5
    lines = capsys.readouterr().err.splitlines()
    assert f"knows level {levels.LEVEL}, and the cluster has level {levels.LEVEL - 2}" in lines[0]
    here = f"--data {live_cluster.data}"
    told = f"then: raftmq upgrade run {here}; raftmq upgrade finalize {here}"
    assert lines[-1].endswith(f"install the version of level {levels.LEVEL - 1}, {told}")
    assert processes(live_cluster) == before


def test_a_version_below_the_clusters_level_stops_no_node(
    live_cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = processes(live_cluster)
    monkeypatch.setattr(levels, "LEVEL", levels.LEVEL - 1)
    for command in ("plan", "run"):
        assert run(["upgrade", command, "--data", str(live_cluster.data)]) == 5
        assert "this version cannot be installed on the cluster" in capsys.readouterr().err
    assert processes(live_cluster) == before


@pytest.mark.ci
def test_a_finalized_cluster_of_this_version_needs_nothing(
    live_cluster: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    before = processes(live_cluster)
    assert run(["upgrade", "run", "--data", str(live_cluster.data)]) == 0
    assert "every node runs" in capsys.readouterr().out
    assert run(["upgrade", "finalize", "--data", str(live_cluster.data)]) == 0
    assert f"the cluster has level {levels.LEVEL} already: nothing was written" in capsys.readouterr().out
    assert processes(live_cluster) == before
