"""The registry of a local cluster, as an operator gets it with `raftmq up --groups 2`, breaks it and brings it back."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.config.loading import load
from cluster.config.local_layout import read_cluster
from raftmq import cli
from raftmq.client import connect
from raftmq.client.environment import user_of
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port, is_running
from raftmq.local.registry_processes import PORTS, addresses_of, answer_of, servers_of
from raftmq.local.rolling_restart import restart_registry
from raftmq_wire.errors import ExitCode
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = pytest.mark.live

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "data")
    with small_segments():
        yield made
    if (made.data / "cluster.json").exists():
        made.down()


@pytest.fixture
def run(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command for this cluster, with --json; its exit code and object, or what it printed."""

    def ran(*words: str, as_json: bool = True, data: bool = True) -> tuple[int, Any]:
        named = ["--data", str(cluster.data)] if data else []
        code = cli.run([*words, *named, *(["--json"] if as_json else [])])
        told = capsys.readouterr()
        return (code, json.loads(told.out)) if as_json and told.out.strip() else (code, told.out + told.err)

    return ran


def up(run: Run, *words: str) -> dict[str, Any]:
    code, told = run("up", "--detach", *words)
    assert code == 0, told
    found: dict[str, Any] = told
    return found


def states(run: Run) -> list[tuple[bool, bool]]:
    return [(each["running"], each["ready"]) for each in run("status")[1]["registry"]]


def processes_of(cluster: LocalCluster) -> list[psutil.Process]:
    """The processes of nodes and registry, with their children."""
    found = [psutil.Process(each.pid) for each in read_cluster(cluster.data).processes if each.pid is not None]
    return [*found, *(child for each in found for child in each.children())]


def test_a_registry_starts_with_two_groups_serves_clients_and_comes_back(cluster: LocalCluster, run: Run) -> None:
    told = up(run, "--nodes", "1", "--groups", "2", "--base-port", str(free_base_port(8 + PORTS)))
    registry = cluster.registry
    assert [each["name"] for each in told["registry"]] == ["registry/1", "registry/2", "registry/3"]
    assert told["servers"] == servers_of(registry)
    for node in cluster.nodes:
        assert load(node.config_path).cluster.registry == addresses_of(registry)
    with connect(told["servers"]) as mq:
        mq.admin.create_topic("orders", queues=1)
        for number in range(4):
            mq.send("orders", str(number).encode())
        with mq.consumer("readers", "orders", follow=False) as consumer:
            assert sorted(message.body for message in consumer) == [b"0", b"1", b"2", b"3"]
        assert states(run) == [(True, True)] * 3

        for each in registry:
            code, killed = run("kill", str(each.name), as_json=False)
            assert code == 0
            assert (
                f"registry node {each.id} (pid {each.pid}) is gone; type: raftmq restart registry/{each.id}" in killed
            )
        assert states(run) == [(False, False)] * 3
        assert "it does not run" in run("status", as_json=False)[1]
        mq.send("orders", b"while none runs")
        assert run("restart", "registry/2")[1]["node"] == "registry/2"
        assert states(run) == [(False, False), (True, True), (False, False)]
        up(run)  # starts what does not run, and nothing else
        assert states(run) == [(True, True)] * 3
        assert run("up")[1]["error"]["what"].endswith("is already running")
        before = {each.pid for each in cluster.registry}
        assert restart_registry(cluster, older=True) == [], "they were started with the nodes"
        assert [each.node for each in restart_registry(cluster)] == ["registry/1", "registry/2", "registry/3"]
        assert before.isdisjoint({each.pid for each in cluster.registry})
        assert states(run) == [(True, True)] * 3
    code, refused = run("kill", "registry/4")
    assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, "there is no registry node 4")
    code, refused = run("node", "can-stop", "registry/1")
    assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, "a process of the registry is no node of a group")
    assert "registry 1 cluster.registry" in run("logs", "registry/1", "-n", "3", as_json=False)[1]
    assert any(line.startswith("registry/3 | ") for line in run("logs", "-n", "1", as_json=False)[1].splitlines())
    files = run("support", "bundle", "--to", str(cluster.data.parent / "bundle.tar.gz"))[1]["files"]
    assert {"registry-1/registry.toml", "registry-3/log.txt"} <= set(files)
    assert sum(name.endswith("/registry.json") for name in files) == 2

    running = processes_of(cluster)
    assert len(running) == 2 + 2 * 3
    assert run("down")[1]["stopped"] == [1, "2/1", "registry/1", "registry/2", "registry/3"]
    wait(lambda: not any(map(psutil.Process.is_running, running)), lambda: running)
    assert run("down", "--purge", "--yes")[0] == 0
    assert not cluster.data.exists()


def test_what_is_wrong_with_its_files_is_said_and_keeps_no_node_from_its_start(cluster: LocalCluster, run: Run) -> None:
    base = free_base_port(8 + PORTS)
    up(run, "--nodes", "1", "--groups", "2", "--base-port", str(base))
    run("down")
    journal = cluster.registry[1].home / "data" / "journal"
    data = bytearray(journal.read_bytes())
    data[60:76] = b"X" * 16
    journal.write_bytes(data)
    code, checked = run("fsck", str(cluster.data), data=False)
    assert code == ExitCode.FAILED
    assert [each["sound"] for each in checked["registry"]] == [True, False, True]
    assert "the registry can do without" in run("fsck", str(cluster.data), as_json=False, data=False)[1]
    assert journal.read_bytes() == data, "it is only looked at"
    told = run("up", "--detach", as_json=False)[1]
    assert f"{journal} is damaged at byte 40" in told
    assert f"mv {journal.parent} ELSEWHERE && raftmq restart registry/2" in told
    assert states(run) == [(True, True), (False, False), (True, True)]
    assert run("restart", "registry/2")[1]["error"]["what"] == "the directory of registry node 2 cannot be used"
    journal.parent.rename(cluster.data.parent / "elsewhere")
    assert run("restart", "registry/2")[0] == 0
    assert states(run) == [(True, True)] * 3

    run("down")
    with socket.create_server(("127.0.0.1", cluster.registry[0].port)):
        code, refused = run("up", "--detach")
    assert (code, refused["error"]["what"]) == (
        ExitCode.REFUSED,
        f"port {base + 8} (name server of registry node 1) is in use",
    )
    path = cluster.registry[2].config_path
    text = path.read_text()
    path.write_text(text.replace('cluster_id = "', 'cluster_id = "00000000-0000-0000-0000-000000000000" # "'))
    code, refused = run("up", "--detach")
    assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, f"{path} is of another cluster")
    path.write_text(text)
    path.write_text(text + "\nsurprise = 1\n")
    assert run("up", "--detach")[1]["error"]["what"] == f"{path} cannot be used"
    path.write_text(text)
    moved = free_base_port(8 + PORTS)
    up(run, "--base-port", str(moved))
    assert [each.port for each in cluster.registry] == [moved + 8, moved + 9, moved + 10]
    assert states(run) == [(True, True)] * 3


def test_a_running_cluster_of_one_group_registers_when_it_gets_a_second_one(cluster: LocalCluster, run: Run) -> None:
    up(run, "--nodes", "1", "--base-port", str(free_base_port(8 + PORTS)))
    assert cluster.registry == []
    assert not (cluster.data / "registry").exists()
    (first,) = cluster.nodes
    assert "registry" not in run("status")[1]
    up(run, "--groups", "2")
    assert cluster.nodes[0] == first, "the same process"
    assert states(run) == [(True, True)] * 3
    for answer in run("registry", "status")[1]["groups"]:
        assert [each["reached"] for each in answer["processes"]] == [True] * 3, answer


def test_the_registry_passes_to_nodes_what_users_of_a_secured_cluster_ask(cluster: LocalCluster, run: Run) -> None:
    told = up(run, "--nodes", "1", "--groups", "2", "--base-port", str(free_base_port(8 + PORTS)), "--auth")
    access, secret = user_of(cluster.data / "first-user")
    with connect(told["servers"], access_key=access, secret_key=secret) as mq:
        mq.admin.create_topic("orders", queues=1)
        mq.send("orders", b"one")
    assert [answer_of(each) for each in cluster.registry] == [""] * 3, "a node that denies it has answered"


def test_a_cluster_that_speaks_tls_alone_starts_without_a_registry(cluster: LocalCluster, run: Run) -> None:
    up(run, "--nodes", "1", "--groups", "2", "--base-port", str(free_base_port(8 + PORTS)))
    run("down")
    code, told = run("up", "--detach", "--tls", as_json=False)
    assert code == 0, told
    assert "none: it speaks no TLS" in told
    assert not any(map(is_running, cluster.registry))
    assert not any(load(node.config_path).cluster.registry for node in cluster.nodes)
    assert run("restart", "registry/1")[1]["error"]["what"] == "registry node 1 cannot run"
