"""A cluster without a secret gets one while it runs, changes it, and tells it to nobody; real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.config.local_layout import ClusterFile, write_cluster
from cluster.config.node_files import plan_nodes, write_configs
from cluster.peer.secret import MARK, SECRET
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.small_segments import ENVIRONMENT

pytestmark = pytest.mark.live


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A cluster made by a release that knew no secret."""
    monkeypatch.setenv("RAFTMQ_BACKUP__ROOTS", str(tmp_path))
    data = tmp_path / "data"
    nodes = plan_nodes(data, 3, free_base_port(12))
    data.mkdir()
    write_configs(nodes)
    create_data_dirs([node.config_path for node in nodes], ENVIRONMENT)
    write_cluster(data, ClusterFile(nodes))
    for node in nodes:
        (node.home / "data" / SECRET).unlink()
        (node.home / "data" / MARK).unlink()
    made = LocalCluster(data)
    made.up()
    yield made
    made.down()


def raftmq(cluster: LocalCluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAFTMQ_")}
    command = [sys.executable, "-m", "raftmq.cli", *arguments, "--data", str(cluster.data), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=at_most(120), check=False)
    assert done.returncode == code, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.ci
def test_a_secret_is_made_and_changed_while_clients_write_and_is_shown_nowhere(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    before = raftmq(cluster, "secret", "status", code=1)
    assert [node["state"] for node in before["nodes"]] == ["none"] * 3
    term = cluster.view().term
    keys: set[bytes] = set()
    with connect(cluster.servers) as client:
        for command in ("create", "rotate"):
            client.send("orders", command.encode())
            made = raftmq(cluster, "secret", command)
            assert [node["state"] for node in made["nodes"]] == ["required"] * 3
            assert len({node["key"] for node in made["nodes"]}) == 1
            files = [(node.home / "data" / SECRET).read_bytes() for node in cluster.nodes]
            keys |= {line for file in files for line in file.splitlines() if not line.startswith(b"#")}
            client.send("orders", command.encode())
    assert len(keys) == 2
    assert cluster.view().term == term, "nobody took the leader for dead"
    told = json.dumps([raftmq(cluster, "status"), raftmq(cluster, "secret", "status")]).encode()
    cluster.restart(cluster.nodes[0].id)
    raftmq(cluster, "backup", "create", "--to", str(tmp_path / "backups"))
    kept = [*(Path(node.log) for node in cluster.nodes), *(p for p in (tmp_path / "backups").rglob("*") if p.is_file())]
    assert len(kept) > 5
    for key in keys:
        assert key not in told
        assert [path for path in kept if key in path.read_bytes()] == []
