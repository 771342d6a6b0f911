"""`live_cluster`: three real node processes on free ports, for tests that need the real thing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local import LocalCluster
from cluster.local_layout import NodeRecord
from cluster.local_process import free_base_port, log_tail


class LiveCluster:
    """Three nodes that the tests of one module share. A test that kills a node calls `restart` or `heal`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.local = cluster

    @property
    def data(self) -> Path:
        """The data directory, with cluster.json."""
        return self.local.data

    @property
    def servers(self) -> str:
        """What a client connects to."""
        return self.local.servers

    @property
    def nodes(self) -> list[NodeRecord]:
        """Ids, pids, ports and logs."""
        return self.local.nodes

    def leader(self) -> int:
        """Who leads; waits until somebody takes writes."""
        return self.local.wait_leader()

    def admin(self, node_id: int) -> str:
        """Base URL of a node's HTTP API, failpoints included."""
        return next(f"http://127.0.0.1:{node.admin_port}" for node in self.nodes if node.id == node_id)

    def kill(self, node_id: int) -> None:
        """kill -9."""
        self.local.kill(node_id)

    def restart(self, node_id: int) -> None:
        """Stops it if it runs, starts it, and waits until it knows a leader."""
        self.local.restart(node_id)

    def heal(self) -> None:
        """Starts what does not run and waits until all agree and writes are open."""
        for view in self.local.view().nodes:
            if not view.running:
                self.local.restart(view.record.id)
        self.local.wait_ready()


@pytest.fixture(scope="module")
def live_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A cluster with failpoints on, ended after the module. On a failed start the nodes' last words are shown."""
    data = tmp_path_factory.mktemp("live")
    cluster = LocalCluster(data)
    try:
        cluster.up(3, free_base_port(12), failpoints=True)
        yield LiveCluster(cluster)
    except BaseException:
        with contextlib.suppress(Exception):
            print(*(line for node in cluster.nodes for line in log_tail(node, 5)), sep="\n")  # noqa: T201
        raise
    finally:
        if (data / "cluster.json").exists():
            cluster.down()
