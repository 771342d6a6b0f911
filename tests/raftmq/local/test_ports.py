"""Ports and processes: what is in use is named, and nothing but our own nodes is ever signalled."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.config.loading import load
from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import NODES_MAX, plan_nodes
from cluster.runtime import tcp_ports
from raftmq.local import process as local_process
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.rows import each_row


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


def test_without_the_process_the_port_is_still_named(tmp_path: Path, taken: int) -> None:
    with pytest.raises(LocalError, match=f"port {taken}") as caught:
        local_process.check_ports([record(tmp_path, taken)], lambda port: None, nameless_s=0.3)
    assert "another process holds it" in caught.value.why


def test_a_port_at_the_end_of_a_connection_names_its_process(tmp_path: Path, taken: int) -> None:
    """The system gives any connection any port of its range: a node that is down for a moment may lose its own."""
    with socket.create_connection(("127.0.0.1", taken)) as outgoing:
        port = outgoing.getsockname()[1]
        with pytest.raises(LocalError) as caught:
            local_process.check_ports([record(tmp_path, port)])
    assert caught.value.what == f"port {port} (name server of node 1) is in use"
    assert f"(pid {os.getpid()}) has it as its end of a connection to 127.0.0.1:{taken}" in caught.value.why
    assert "for outgoing connections" in caught.value.why
    assert "raftmq up --base-port" in caught.value.fix


def test_default_ports_lie_outside_what_the_system_gives_away(tmp_path: Path) -> None:
    given = tcp_ports.USUAL_RANGE
    for nodes in range(1, NODES_MAX + 1):
        for node in plan_nodes(tmp_path, nodes, None):
            assert not set(node.ports.values()) & set(given)
    config = load(None, None, {"node.id": 1, "node.data_dir": "unused"})
    usual = {config.peer.port, config.admin.port, *(listener.port for listener in config.listeners)}
    assert not usual & set(given)


@each_row("given", [(32768, 60999), (1024, 65535), (10000, 65535), (20000, 60000), (15500, 40000)])
def test_free_ports_are_looked_for_outside_of_it(
    tmp_path: Path, given: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "range"
    file.write_text("{}\t{}\n".format(*given))
    monkeypatch.setattr(tcp_ports, "RANGE_FILE", file)
    for seed in range(20):
        base = local_process.free_base_port(12, seed)
        inside = {*range(base, base + 12)} & {*tcp_ports.ephemeral_ports()}
        assert not inside or given == (1024, 65535), "where there is no other, one of them must do"


def test_a_node_that_finds_its_port_taken_says_who_has_it(taken: int) -> None:
    error = OSError(errno.EADDRINUSE, f"error while attempting to bind on address ('127.0.0.1', {taken}): in use")
    lines = (tcp_ports.clash(error, {"peer.port": 1, "listeners.broker.port": taken}) or "").splitlines()
    assert lines[0] == f"The node cannot start: port {taken} (listeners.broker.port) is in use."
    assert "another process holds it" in lines[1], "this process does not count as its own enemy"
    assert len(lines) == 3
    assert tcp_ports.clash(OSError(errno.EACCES, "no"), {"peer.port": taken}) is None


def test_free_ports_pass(tmp_path: Path) -> None:
    base = local_process.free_base_port(12)
    local_process.check_ports(plan_nodes(tmp_path, 3, base))


def test_two_processes_never_get_the_same_free_ports(tmp_path: Path) -> None:
    """The same seed draws the same ports; while the first process lives, the second must go on looking."""
    ask = "from raftmq.local.process import free_base_port; print(free_base_port(12, 7), flush=True); input()"
    first, second = (
        subprocess.Popen([sys.executable, "-c", ask], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    try:
        bases = [int(process.stdout.readline()) for process in (first, second) if process.stdout]
        assert abs(bases[0] - bases[1]) >= 12
    finally:
        for process in (first, second):
            process.communicate("\n")


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
