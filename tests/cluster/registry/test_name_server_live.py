"""The registry of a real cluster of two groups: clients that know it alone, and what its loss does not stop."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cluster.config.node_files import GROUPS_SECRET
from cluster.peer.secret_files import write_keys
from cluster.placement.group_map import Epoch, GroupMember, GroupRecord
from cluster.registry.name_server import NameServer
from cluster.registry.registry_file import RegistryFile
from cluster.registry.surroundings import ChildWaits, Surroundings
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.init import check_data_dirs
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.registry_processes import RegistryProcesses
from tests.support.small_segments import small_segments
from tests.support.wait_until import until, wait

pytestmark = [pytest.mark.live, pytest.mark.slow]
CLUSTER = uuid.UUID(int=7)
RECORD = GroupRecord(1, "g1", Epoch(1, 0), 1, [GroupMember(1, "127.0.0.1", 1, "", {"broker": "127.0.0.1:1"})])


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[NameServer]]:
    """Three name servers in this process, with children of their own, whose watchdogs are in a hurry."""
    hurried = Surroundings(waits=ChildWaits(beat_s=0.5, limit_s=at_most(1), close_s=0.3))
    write_keys(tmp_path / "SECRET", [b"n" * 32], str(CLUSTER))
    base = free_base_port(9)
    processes = [f"127.0.0.1:{base + 6 + at}" for at in range(3)]
    made = []
    for at in range(3):
        file = RegistryFile(
            id=at + 1,
            cluster_id=CLUSTER,
            secret_file=str(tmp_path / "SECRET"),
            data_dir=str(tmp_path / f"r{at}"),
            processes=processes,
            port=base + at,
            peer_port=base + 3 + at,
        )
        with (tmp_path / f"{at}.log").open("ab") as log:
            made.append(NameServer(file, os.dup(log.fileno()), hurried))
        await made[-1].start()
    yield made
    await asyncio.gather(*(server.close() for server in made))


async def all_write(servers: list[NameServer]) -> None:
    await until(lambda: all(server.supervisor.has_majority for server in servers))


async def test_a_child_that_stands_still_is_ended_and_another_has_all(servers: list[NameServer]) -> None:
    await all_write(servers)
    servers[0].supervisor.hand([RECORD])
    for server in servers:
        child, starts = server.supervisor.pid, server.supervisor.starts
        assert child is not None
        os.kill(child, signal.SIGSTOP)
        await until(lambda server=server, starts=starts: server.supervisor.starts > starts)  # type: ignore[misc]
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
        await all_write(servers)
    for server in servers:
        await until(lambda server=server: server.records.view.groups == {1: RECORD})  # type: ignore[misc]


async def test_a_child_that_dies_is_started_again_and_its_lost_disk_is_filled(
    servers: list[NameServer], tmp_path: Path
) -> None:
    await all_write(servers)
    servers[0].supervisor.hand([RECORD])
    for at, server in enumerate(servers):
        child, starts = server.supervisor.pid, server.supervisor.starts
        assert child is not None
        os.kill(
            child, signal.SIGSTOP
        )  # else it may write one of its files again, and the next one finds the others gone
        for path in (tmp_path / f"r{at}").iterdir():
            path.unlink()
        os.kill(child, signal.SIGKILL)
        await until(lambda server=server, starts=starts: server.supervisor.starts > starts)  # type: ignore[misc]
        await all_write(servers)
        await until(lambda server=server: server.records.view.groups == {1: RECORD})  # type: ignore[misc]


async def test_a_process_says_how_it_is(servers: list[NameServer]) -> None:
    await all_write(servers)
    await until(lambda: len({server.state().leader for server in servers} - {0}) == 1)
    before = servers[1].state()
    assert (before.ready, before.missing, before.living, before.has_majority) == (False, [], 0, True)
    assert 0 <= before.accepted_ms < 60_000
    assert before.child_starts == 1
    servers[1].supervisor.hand([RECORD])
    await until(lambda: servers[1].state().operations > before.operations)
    await until(lambda: servers[1].state().entries > before.entries)
    child = servers[1].supervisor.pid
    assert child is not None
    os.kill(child, signal.SIGKILL)
    await until(lambda: servers[1].state().child_starts == 2)
    await until(lambda: servers[1].state().has_majority)


async def test_another_secret_is_used_as_soon_as_all_have_it(servers: list[NameServer], tmp_path: Path) -> None:
    await all_write(servers)
    starts = [server.supervisor.starts for server in servers]
    write_keys(tmp_path / "SECRET", [b"m" * 32, b"n" * 32], str(CLUSTER))
    await until(lambda: all(server.supervisor.starts > before for server, before in zip(servers, starts, strict=True)))
    await all_write(servers)
    assert all(len(server.registrations.transport.keyring.keys) == 2 for server in servers)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "data")
    with small_segments():
        made.up(1, free_base_port(8), groups=2)
        made.down()
        yield made
    made.down()


def test_clients_that_know_the_registry_alone_are_served_and_its_loss_stops_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    uuid_text = check_data_dirs(cluster.first_nodes)
    registry = RegistryProcesses(tmp_path / "registry", uuid.UUID(str(uuid_text)), cluster.data / GROUPS_SECRET)
    registry.join(cluster.nodes)
    try:
        registry.start()
        cluster.up()
        with connect(registry.servers) as client:
            client.admin.create_topic("orders", queues=2, groups=[1, 2])
            for number in range(4):
                client.send("orders", str(number).encode())
            registry.kill(2)
            client.send("orders", b"one is gone")
            registry.kill()
            client.send("orders", b"all are gone")
            registry.wipe()
            registry.start()
            began = time.monotonic()
            with connect(registry.servers) as fresh:
                fresh.send("orders", b"as before")
            assert time.monotonic() - began < at_most(15)
            client.send("orders", b"and here")
        wait(lambda: all(registry.log(number).count(" serves") == 2 for number in (1, 2, 3)))
        assert registry.stop() == [0, 0, 0]
    except BaseException:
        print(*(registry.log(number)[-3000:] for number in (1, 2, 3)), sep="\n")  # noqa: T201
        raise
    finally:
        registry.kill()
