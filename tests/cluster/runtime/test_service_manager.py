"""The words that systemd hears, at a NOTIFY_SOCKET of the test's own: from a real node, and from a loop that stands."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.runtime.host.service_manager import ServiceManager
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.tools import needs

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "raftmq.service"


class Systemd:
    """The other end of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(60)

    def waits_for(self, word: str) -> list[str]:
        """All lines up to the one that begins so."""
        lines: list[str] = []
        while not any(line.startswith(word) for line in lines):
            lines += self.socket.recv(4096).decode().splitlines()
        return lines

    def heard(self) -> list[str]:
        """The lines that wait."""
        lines: list[str] = []
        self.socket.setblocking(False)
        try:
            while True:
                lines += self.socket.recv(4096).decode().splitlines()
        except BlockingIOError:
            return lines
        finally:
            self.socket.settimeout(60)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    yield made
    made.socket.close()


@pytest.mark.live
def test_a_node_is_ready_feeds_the_watchdog_and_stops(systemd: Systemd, tmp_path: Path) -> None:
    base, config = free_base_port(3), tmp_path / "raftmq.toml"
    config.write_text(
        f'[node]\nid = 1\ndata_dir = "data"\n[peer]\nport = {base}\n[admin]\nport = {base + 1}\n'
        f'[[listeners]]\nname = "broker"\nport = {base + 2}\n'
    )
    command = [sys.executable, "-m", "raftmq"]
    subprocess.run([*command, "init", "--config", str(config)], check=True, capture_output=True)
    env = {**os.environ, "NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "300000"}
    with subprocess.Popen([*command, "serve", "--config", str(config)], env=env, stderr=subprocess.DEVNULL) as node:
        try:
            before = systemd.waits_for("READY=1")
            assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in before)
            assert "STATUS=node 1 serves" in before
            assert before[-1] == "WATCHDOG_USEC=300000" or "WATCHDOG_USEC=300000" in before
            assert "WATCHDOG=1" not in before, "nothing is fed before the node serves"
            for _ in range(3):
                systemd.waits_for("WATCHDOG=1")
            node.send_signal(signal.SIGTERM)
            systemd.waits_for("STOPPING=1")
            assert node.wait(at_most(60)) == 0
        finally:
            node.kill()


async def test_a_loop_that_stands_still_feeds_nobody(systemd: Systemd) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "30000"}, os.getpid())
    manager.ready("serves")
    while "WATCHDOG=1" not in systemd.heard():
        await asyncio.sleep(0.005)
    systemd.heard()
    time.sleep(0.3)  # noqa: ASYNC251 - ten periods of the watchdog, in which the loop cannot turn
    assert systemd.heard() == []
    while "WATCHDOG=1" not in systemd.heard():
        await asyncio.sleep(0.005)
    manager.close()


async def test_another_process_is_watched(systemd: Systemd) -> None:
    env = {"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid() + 1)}
    manager = ServiceManager(env, os.getpid())
    manager.ready("serves")
    assert systemd.heard() == ["READY=1", "STATUS=serves"]
    manager.close()


async def test_without_systemd_nothing_is_said() -> None:
    manager = ServiceManager({"WATCHDOG_USEC": "30000"}, os.getpid())
    manager.recovering()
    manager.ready("serves")
    manager.stopping()
    manager.close()


@needs("systemd-analyze")
def test_the_unit_is_understood_and_exposes_little(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/raftmq/bin/raftmq", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert done.stdout + done.stderr == ""
    report = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(copy)]
    assert subprocess.run(report, capture_output=True).returncode == 0, "exposure above 3.0"


def test_the_watchdog_gives_a_loop_at_least_30_seconds() -> None:
    keys = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#")
    assert int(keys["WatchdogSec"]) >= 30
    assert keys["Type"] == "notify"
