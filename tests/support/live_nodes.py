"""`live_cluster`: three real node processes on free ports, for tests that need the real thing."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.config.local_layout import NodeRecord
from raftmq.client import connect
from raftmq.client.message import Message
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port, log_tail
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait


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
        """The servers that a client connects to."""
        return self.local.servers

    @property
    def nodes(self) -> list[NodeRecord]:
        """Ids, pids, ports and logs."""
        return self.local.nodes

    def leader(self) -> int:
        """Returns the leader; waits until a node takes writes."""
        return self.local.wait_leader()

    def admin(self, node_id: int) -> str:
        """Base URL of a node's HTTP API, failpoints included."""
        return next(f"http://127.0.0.1:{node.admin_port}" for node in self.nodes if node.id == node_id)

    def ask(self, node_id: int, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> Any:
        """A node's own answer over HTTP."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.admin(node_id) + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=at_most(10)) as reply:
            return json.load(reply)

    def failpoint(self, node_id: int, name: str, action: str) -> None:
        """Sets a failpoint of a node."""
        self.ask(node_id, "/v1/failpoints", "PUT", {"name": name, "action": action})

    def wait_equal(self) -> None:
        """Waits until every node has applied everything that the leader has in its log."""

        def ends() -> list[tuple[int, int]]:
            views = [self.ask(node.id, "/v1/status") for node in self.nodes]
            return [(view["last_index"], view["applied_index"]) for view in views]

        wait(lambda: len({end for both in ends() for end in both}) == 1, lambda: f"not equal: {ends()}", progress=ends)

    def stored(self, topic: str) -> dict[int, list[Message]]:
        """node id -> every message of the topic, as that node itself hands it out (`wait_equal` first)."""
        found: dict[int, list[Message]] = {}
        with connect(self.servers) as mq:
            for node in self.nodes:
                queues = self.ask(node.id, f"/v1/topics/{topic}")["queues"]
                found[node.id] = messages = []
                for queue in queues:
                    at = queue["min_offset"]
                    while at < queue["max_offset"]:
                        pulled = mq.pull(topic, queue["queue_id"], at, node=f"127.0.0.1:{node.broker_port}")
                        messages += pulled.messages
                        assert pulled.next_offset > at, pulled
                        at = pulled.next_offset
        return found

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
        with small_segments():
            cluster.up(3, free_base_port(12), failpoints=True)
        yield LiveCluster(cluster)
    except BaseException:
        with contextlib.suppress(Exception):
            print(*(line for node in cluster.nodes for line in log_tail(node, 5)), sep="\n")  # noqa: T201
        raise
    finally:
        if (data / "cluster.json").exists():
            cluster.down()
