"""A node that asks for it is opened again in its process, on the same ports and the same directory."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.config import Config
from cluster.config.exposure_check import open_folder
from cluster.config.loading import load
from cluster.node import node_runs as node_life
from cluster.node.node import Node
from cluster.node.node_runs import NodeRuns
from cluster.runtime.environment import Environment
from cluster.state.state_opening import StateLostError
from raftlog.errors import DiskFullError
from raftlog.storage.files.fs import OsFileSystem
from statemachine.rows.kv import KVFullError
from tests.support.lone_node import write_lone_node
from tests.support.wait_until import PATIENCE_S, until


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path, _ = write_lone_node(tmp_path)
    return load(path)


async def test_a_node_that_asks_for_it_is_opened_again(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cluster")
    lives: list[Node] = []
    closed: list[Node] = []
    life = NodeRuns(config, Environment(), lives.append, closed=closed.append)
    running = asyncio.get_running_loop().create_task(life.run())
    await until(lambda: lives and lives[0].serving.services.writes_open())
    applied = lives[0].state.applied.index
    lives[0].restart("to see it")
    await until(lambda: len(lives) == 2 and lives[1].serving.services.writes_open())
    assert closed == lives[:1]
    assert lives[1] is not lives[0]
    assert lives[1].state.applied.index > applied
    _, writer = await asyncio.open_connection("127.0.0.1", config.listeners[0].port)
    writer.close()
    life.stop()
    async with asyncio.timeout(PATIENCE_S):
        assert await running is lives[1]
    first, second = [line for line in caplog.messages if " serves: raftmq " in line]
    listener, identity = config.listeners[0], lives[0].storage.directory.identity
    parts = (
        "node 1 of cluster",
        f"broker 127.0.0.1:{listener.port}",
        f"admin 127.0.0.1:{config.admin.port}",
        f"directory {config.node.data_dir}",
        "log up to index ",  # a lone voter may have led before the line was written
        str(identity.cluster_uuid),
    )
    for part in parts:
        assert part in first
    assert "term 0" not in second
    assert any(line.endswith("leader 1: no leader was heard since it started") for line in caplog.messages)
    assert closed == lives
    assert not lives[1].restarting
    assert lives[1].failure is None


async def test_a_port_that_is_taken_ends_the_start_and_nothing_runs_after_it(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver, which was not started, may have a turn queued that applies entries, and the state is closed."""
    nodes: list[Node] = []
    life = NodeRuns(config, Environment(), lambda _: None, opened=nodes.append)
    with socket.create_server(("127.0.0.1", config.peer.port)), pytest.raises(OSError, match=str(config.peer.port)):
        await life.run()
    driver, turns = nodes[0].driver, nodes[0].driver.turns
    driver.wake()
    await asyncio.sleep(0)
    assert driver.turns == turns
    assert not [record for record in caplog.records if record.levelname == "CRITICAL"]


def opened(config: Config) -> Path:
    """Its data directory, as an earlier release made it."""
    data = Path(config.node.data_dir)
    data.chmod(0o755)
    return data


async def test_the_start_says_what_strangers_can_reach(
    config: Config, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = opened(config)
    monkeypatch.setattr(node_life, "open_folder", partial(open_folder, root=data))
    everywhere = replace(config, admin=replace(config.admin, bind="0.0.0.0"))
    life = NodeRuns(everywhere, Environment(), lambda node: life.stop())
    async with asyncio.timeout(PATIENCE_S):
        await life.run()
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert f"admin 0.0.0.0:{config.admin.port}" in warnings[0]
    assert "put these ports behind a firewall" in warnings[0]
    assert warnings[1].endswith(f"chmod 700 {data}")


async def test_who_is_stopped_while_it_starts_again_does_not(config: Config) -> None:
    lives: list[Node] = []
    life = NodeRuns(config, Environment(), lives.append, closed=lambda node: life.stop())
    running = asyncio.get_running_loop().create_task(life.run())
    await until(lambda: lives)
    lives[0].restart("in vain")
    async with asyncio.timeout(PATIENCE_S):
        assert await running is lives[0]
    assert len(lives) == 1


async def test_a_failure_ends_it_although_a_restart_was_asked_for(config: Config) -> None:
    lives: list[Node] = []
    life = NodeRuns(config, Environment(), lives.append)
    running = asyncio.get_running_loop().create_task(life.run())
    await until(lambda: lives)
    lives[0].driver.fail(RuntimeError("broken"))
    lives[0].restart("too late")
    async with asyncio.timeout(PATIENCE_S):
        ended = await running
    assert ended is lives[0]
    assert str(lives[0].failure) == "broken"


class SmallDisk(OsFileSystem):
    """Says how much space there is."""

    free = 0

    def free_bytes(self, path: Path) -> int:
        """Returns the free bytes that the test set."""
        return self.free


@pytest.mark.parametrize("error", [DiskFullError("a sync"), KVFullError("RocksDB")])
async def test_a_node_that_ended_for_lack_of_space_is_opened_again_when_there_is_some(
    config: Config, error: Exception
) -> None:
    disk = SmallDisk()
    lives: list[Node] = []
    disk.free = 1 << 40
    closed = asyncio.Event()
    life = NodeRuns(config, Environment(fs=disk), lives.append, closed=lambda node: closed.set(), look_every_ms=10)
    running = asyncio.get_running_loop().create_task(life.run())
    await until(lambda: lives and lives[0].serving.services.writes_open())
    disk.free = 0
    lives[0].driver.fail(error)
    async with asyncio.timeout(PATIENCE_S):
        await closed.wait()
    await asyncio.sleep(0.05)
    assert len(lives) == 1
    disk.free = 1 << 40
    await until(lambda: len(lives) == 2 and lives[1].serving.services.writes_open())
    life.stop()
    async with asyncio.timeout(PATIENCE_S):
        assert await running is lives[1]
    assert lives[1].failure is None


async def test_who_waits_for_space_can_be_stopped(config: Config) -> None:
    disk = SmallDisk()
    lives: list[Node] = []
    disk.free = 1 << 40
    life = NodeRuns(config, Environment(fs=disk), lives.append, closed=lambda node: life.stop(), look_every_ms=10)
    running = asyncio.get_running_loop().create_task(life.run())
    await until(lambda: lives)
    disk.free = 0
    lives[0].driver.fail(DiskFullError("full"))
    async with asyncio.timeout(PATIENCE_S):
        assert await running is lives[0]


async def test_a_stop_ends_the_search_for_a_state(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    def lost(*_: Any) -> Node:
        raise StateLostError("lost")

    async def for_ever(*_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(node_life, "Node", lost)
    monkeypatch.setattr(node_life, "restore_from_peers", for_ever)
    life = NodeRuns(config, Environment())
    running = asyncio.get_running_loop().create_task(life.run())
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
        life.stop()
        assert await running is None
