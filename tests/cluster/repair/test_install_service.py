"""While a node runs: an offer begins an install, what makes it needless ends it, and nobody loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.repair.fetch import PIECE
from cluster.repair.progress import InstallMetrics
from cluster.repair.snapshot_install import ALARM, SnapshotInstaller
from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import Environment
from raftlog.messages import InstallSnapshot
from raftlog.types import EntryId, NodeId
from tests.support.contexts import context_of
from tests.support.install_kit import Giver, Peers, Taker, progress
from tests.support.node_kit import START_MS, Clock
from tests.support.pace import at_most


class Core:
    """The part of RawNode that is looked at."""

    def __init__(self, tail: Any) -> None:
        self.tail = tail

    @property
    def last_index(self) -> int:
        return int(self.tail.index)


class Running:
    """A node that runs, as far as installs see it."""

    def __init__(self, giver: Giver, piece_bytes: int = PIECE, taker: Taker | None = None) -> None:
        self.giver = giver
        self.taker = taker or Taker()
        self.directory = self.taker.open()
        self.core = Core(self.directory.log.tail)
        self.peers = Peers({2: giver, 3: giver}, piece_bytes)
        self.alarms = Alarms(lambda: START_MS)
        self.restarts: list[str] = []
        self.progress = progress()
        loop, environment = asyncio.get_running_loop(), Environment(clock=Clock())
        self.service = SnapshotInstaller(
            context_of(self.core, self.alarms, environment=environment, loop=loop),
            self.taker.where,
            self.peers,
            peers=lambda: [NodeId(2), NodeId(3)],
            metrics=InstallMetrics(),
            progress=self.progress,
            restart=self.restarts.append,
            retry_s=(0.0, 0.0),
        )

    def offer(self, first_index: int = 0, term: int = 1) -> None:
        first = first_index or self.giver.log.first_index
        self.service.offered(InstallSnapshot(NodeId(2), NodeId(1), term, first, EntryId(1, first - 1)))

    async def done(self) -> None:
        task = self.service._task
        assert task is not None
        await asyncio.wait([task])
        task.result()

    def reopened(self) -> Any:
        self.directory.close(clean=True)
        return self.taker.open()


@pytest.fixture
def giver() -> Giver:
    giver = Giver(100)
    giver.checkpoint()
    giver.trim(giver.log.position_of(60))
    return giver


async def test_an_offer_ends_in_one_restart_and_the_opening_uses_the_snapshot(giver: Giver) -> None:
    node = Running(giver)
    node.offer()
    for _ in range(5):
        node.offer()  # it is repeated as long as it lasts
        await asyncio.sleep(0)
    await node.done()
    assert len(node.restarts) == 1
    assert "snapshot of entry 100 that node 2 gave" in node.restarts[0]
    task = node.service._task
    node.offer()
    assert node.service._task is task, "one is decided already"
    assert node.progress.view().stage == "restart"
    await node.service.close()
    node.taker.check(node.reopened(), giver)


async def test_a_log_that_grows_by_itself_ends_the_install(giver: Giver) -> None:
    node = Running(giver)

    def grows(peer: int, what: str, arguments: list[Any]) -> None:
        if len(node.peers.asked) == 3:
            node.core.tail = node.core.tail._replace(index=21)

    node.peers.before = grows
    node.offer()
    await node.done()
    assert node.restarts == []
    assert node.progress.view().stage == "none"
    node.peers.before = lambda peer, what, arguments: None
    node.offer(term=2)
    await node.done()
    assert len(node.restarts) == 1


async def test_a_newer_offer_makes_what_is_fetched_too_old(giver: Giver) -> None:
    node = Running(giver)
    offered: list[bool] = []

    def trims(peer: int, what: str, arguments: list[Any]) -> None:
        if what == "state" and arguments[0] == "file" and not offered:
            offered.append(True)
            giver.grow(100)
            giver.checkpoint()
            giver.trim(giver.log.position_of(180))
            node.offer()

    node.peers.before = trims
    node.offer()
    await node.done()
    assert len(node.restarts) == 1
    assert "snapshot of entry 200" in node.restarts[0]


async def test_nobody_who_gives_one_is_an_alarm_that_ends(giver: Giver) -> None:
    node = Running(giver)
    node.peers.dead.update((2, 3))
    node.offer()
    async with asyncio.timeout(at_most(20)):
        while not node.alarms.raised(ALARM):
            await asyncio.sleep(0)
    assert "the connection closed" in node.alarms.all()[0].text
    node.peers.dead.clear()
    await node.done()
    assert len(node.restarts) == 1
    assert not node.alarms.all()


async def test_a_disk_that_takes_no_snapshot_does_not_stop_the_node(giver: Giver) -> None:
    node = Running(giver)
    node.taker.fs.space_left = 0
    node.offer()
    async with asyncio.timeout(at_most(20)):
        while not node.progress.view().last_failure:
            await asyncio.sleep(0)
    node.taker.fs.space_left = 1 << 40
    await node.done()
    assert "Make room on that disk" in node.progress.view().last_failure
    assert len(node.restarts) == 1
    node.taker.check(node.reopened(), giver)


async def test_a_node_that_stops_resumes_later(giver: Giver) -> None:
    node = Running(giver, 2000)
    node.offer()
    while len(node.peers.asked) < 8:
        await asyncio.sleep(0)
    await node.service.close()
    node.offer()
    assert node.restarts == []
    asked = [arguments for _, what, arguments in node.peers.asked if arguments[0] == "file"]
    node.directory.close(clean=False)
    again = Running(giver, 2000, node.taker)
    again.offer()
    await again.done()
    resumed = [arguments for _, what, arguments in again.peers.asked if arguments[0] == "file"]
    both = {tuple(arguments) for arguments in asked + resumed}
    assert len(asked) + len(resumed) <= len(both) + 1, "only the piece that was on its way is asked for again"
