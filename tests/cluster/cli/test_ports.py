"""Ports and processes: what is in use is named, and nothing but our own nodes is ever signalled."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster import local_process
from cluster.local_config import plan_nodes
from cluster.local_errors import ExitCode, LocalError
from cluster.local_layout import NodeRecord


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def record(tmp_path: Path, port: int, pid: int | None = None) -> NodeRecord:
    return NodeRecord(1, pid, port, port, port, port, str(tmp_path / "n1" / "node.log"))


def test_a_used_port_names_port_purpose_and_process(tmp_path: Path, taken: int) -> None:
    with pytest.raises(LocalError) as caught:
        local_process.check_ports([record(tmp_path, taken)])
    assert caught.value.what == f"port {taken} (name server of node 1) is in use"
    assert f"(pid {os.getpid()}) listens on it" in caught.value.why
    assert caught.value.exit_code == ExitCode.REFUSED


def test_without_the_process_the_port_is_still_named(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_process, "port_owner", lambda port: None)
    monkeypatch.setattr(local_process, "NAMELESS_PORT_S", 0.3)
    with pytest.raises(LocalError, match=f"port {taken}") as caught:
        local_process.check_ports([record(tmp_path, taken)])
    assert "another process holds it" in caught.value.why


def test_free_ports_pass(tmp_path: Path) -> None:
    base = local_process.free_base_port(12)
    local_process.check_ports(plan_nodes(tmp_path, 3, base))


def test_a_port_in_time_wait_is_free(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
    local_process.check_ports([record(tmp_path, port)])


def test_a_pid_that_belongs_to_somebody_else_is_not_ours(tmp_path: Path) -> None:
    """cluster.json of last week may name a pid that the system has given to another program since."""
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        node = record(tmp_path, 1, other.pid)
        assert not local_process.is_running(node)
        assert not local_process.kill_node(node)
        assert local_process.stop_nodes([node]) == []
        assert other.poll() is None
    finally:
        other.communicate(b"\n")


def test_another_cluster_s_node_is_not_ours(tmp_path: Path) -> None:
    """Same module, other configuration file: the command line must fit as a whole."""
    code = "import time; time.sleep(60)"
    elsewhere = str(tmp_path / "other" / "raftmq.toml")
    other = subprocess.Popen([sys.executable, "-c", code, "cluster.node", "--config", elsewhere])
    try:
        assert not local_process.is_running(record(tmp_path, 1, other.pid))
        here = str(record(tmp_path, 1).config_path)
        same = subprocess.Popen([sys.executable, "-c", code, "cluster.node", "--config", here])
        try:
            while here not in psutil.Process(same.pid).cmdline():
                pass  # the system fills it in a moment after the program has started
            node = record(tmp_path, 1, same.pid)
            assert local_process.is_running(node)
            assert local_process.kill_node(node)
            assert not local_process.is_running(node)
        finally:
            same.kill()
            same.wait()
    finally:
        other.kill()
        other.wait()
