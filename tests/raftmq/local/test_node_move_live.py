"""`raftmq node move` against real processes: to a port where the node is, to nowhere, and of a node that is down."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.node_files import write_config
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.process import free_base_port
from raftmq_wire.errors import ExitCode
from tests.support.node_commands import node_command
from tests.support.wait_until import PATIENCE_S, wait

pytestmark = pytest.mark.live


def move(cluster: LocalCluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    return node_command(cluster, "move", *arguments, code=code)


def moved_when_calm(cluster: LocalCluster, *arguments: str) -> dict[str, Any]:
    """Asks again as long as an election comes in between and nothing was changed, as the command says."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return move(cluster, *arguments)
        except AssertionError as error:
            if "another leader was elected meanwhile" not in str(error) or time.monotonic() > deadline:
                raise


def refused(cluster: LocalCluster, *arguments: str) -> dict[str, Any]:
    error = move(cluster, *arguments, code=ExitCode.REFUSED)["error"]
    assert isinstance(error, dict)
    return error


def status(cluster: LocalCluster, node: int) -> dict[str, Any]:
    return AdminApi([f"127.0.0.1:{admin_port(cluster, node)}"], "").local("/v1/status")


def admin_port(cluster: LocalCluster, node: int) -> int:
    return next(each.admin_port for each in cluster.nodes if each.id == node)


def start_at(cluster: LocalCluster, node: int, port: int) -> None:
    """Starts a node that is down at another peer port, and waits until it answers. It alone knows of the port: the
    others dial where it was."""
    moved = [replace(each, peer_port=port) if each.id == node else each for each in cluster.nodes]
    write_config(moved[node - 1], moved)
    cluster.start(node)
    wait(
        lambda: next(each for each in cluster.view().nodes if each.record.id == node).status is not None,
        f"node {node} does not answer",
    )


@pytest.mark.ci
def test_a_member_moves_to_where_it_is_and_nowhere_else(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    leader = cluster.wait_leader()
    first, second = sorted({1, 2, 3} - {leader})
    term, port = status(cluster, leader)["term"], free_base_port(3)

    # The leader, to where nobody listens: refused, and it leads on.
    error = refused(cluster, str(leader), f"127.0.0.1:{port}")
    assert f"must find node {leader} at 127.0.0.1:{port}, and none did" in error["what"]
    for voter in (first, second):
        assert f"node {voter}: 127.0.0.1:{port}: Connection refused" in error["why"]
    assert "--force" in error["type"]
    there = status(cluster, leader)
    assert (there["term"], there["leader"]) == (term, leader)

    # A follower that runs at another port: found there, and reached again. Its HTTP API must be its own, too.
    cluster.kill(first)
    start_at(cluster, first, port)
    http = f"127.0.0.1:{admin_port(cluster, second)}"
    error = refused(cluster, str(first), f"127.0.0.1:{port}", "--http", http)
    assert f"http://{http}: node {second} answers there" in error["why"], error
    http = f"localhost:{admin_port(cluster, first)}"
    moved = move(cluster, str(first), f"127.0.0.1:{port}", "--http", http)
    assert (len(moved["found_by"]) >= 2, moved["warning"]) == (True, ""), moved
    cluster.wait_ready()
    assert status(cluster, leader)["term"] == term, "nobody was deposed"

    # A node that is down: only with --force, and then it is there when it starts.
    cluster.kill(second)
    error = refused(cluster, str(second), f"127.0.0.1:{port + 1}")
    assert "none did" in error["what"]
    moved = move(cluster, str(second), f"127.0.0.1:{port + 1}", "--force")
    assert moved["warning"].startswith("nothing was proven")
    start_at(cluster, second, port + 1)
    cluster.wait_ready()

    # The leader, to another name of where it is: it hands over first.
    at = next(each.peer_port for each in cluster.nodes if each.id == leader)
    moved = moved_when_calm(cluster, str(leader), f"localhost:{at}")
    assert len(moved["found_by"]) >= 2, "one that was started just now may not be asked yet"
    assert cluster.wait_ready().leader in (first, second)
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("T", queues=1)
        mq.send("T", b"on it goes")
