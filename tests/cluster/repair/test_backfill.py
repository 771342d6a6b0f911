"""Older segments come back, newest first, and the node does not stand for election before it has them."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.repair.backfill import ALARM, HOLD, LOST, Backfill, BackfillPauses
from cluster.repair.fetch import LOG, Fetched
from cluster.repair.install_service import InstallService
from cluster.repair.progress import InstallMetrics
from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import Environment
from cluster.runtime.read_leases import Leases
from raftlog.messages import InstallSnapshot
from raftlog.storage.node_dir import NodeDir
from raftlog.types import NOBODY, EntryId, NodeId
from tests.support.contexts import context_of
from tests.support.install_kit import DATA, Giver, Peers, Taker, progress
from tests.support.node_kit import START_MS
from tests.support.pace import at_most

NO_WAITS = BackfillPauses(look_s=0.0, retry_min_s=0.0, retry_max_s=0.0)
PIECE_BYTES = 900


class Core:
    """The part of the core that the backfill tells."""

    def __init__(self) -> None:
        self.holds: set[str] = set()
        self.trimmed_to: list[int] = []
        self.log: Any = None
        self.tail: Any = None
        self.leader_id = NodeId(2)

    @property
    def last_index(self) -> int:
        return int(self.tail.index)

    def hold_campaigns(self, reason: str, held: bool) -> None:
        self.holds.add(reason) if held else self.holds.discard(reason)

    def trimmed(self) -> None:
        self.trimmed_to.append(self.log.first_index)


class Node:
    """A node that has just installed a snapshot."""

    def __init__(self, giver: Giver, peers: Peers, trim_position: int) -> None:
        self.taker = Taker()
        taken, _ = self.taker.take(peers)
        assert taken is not None
        self.directory: NodeDir = self.taker.install(taken)
        self.trim_position = trim_position
        self.core = Core()
        self.applied = self.directory.log.tail.index
        self.alarms = Alarms(lambda: START_MS)
        self.begin(peers)

    @property
    def log(self) -> Any:
        return self.directory.log

    def begin(self, peers: Peers) -> None:
        self.core.log = self.log
        self.others = [NodeId(2), NodeId(3)]
        self.woken = 0
        self.peers = peers

    def make(self, loop: asyncio.AbstractEventLoop, waits: BackfillPauses = NO_WAITS) -> Backfill:
        environment = Environment(fs=self.taker.fs)
        return Backfill(
            context_of(self.core, self.alarms, environment=environment, loop=loop, wake=self._wake),
            self.log,
            DATA,
            self.peers,
            trim_position=lambda: self.trim_position,
            applied=lambda: self.applied,
            peers=lambda: self.others,
            metrics=InstallMetrics(),
            progress=progress(),
            waits=waits,
        )

    def _wake(self) -> None:
        self.woken += 1

    async def run(self) -> None:
        work = self.make(asyncio.get_running_loop())
        work.start()
        await finished(work)
        await work.close()


async def finished(work: Any) -> None:
    """Returns when the work that was begun, if there was any, has ended."""
    if work._task is not None:
        await work._task


@pytest.fixture
def giver() -> Giver:
    giver = Giver(150)
    giver.checkpoint()
    giver.trim(giver.log.position_of(40))
    return giver


@pytest.fixture
def node(giver: Giver) -> Node:
    return Node(giver, Peers({2: giver, 3: giver}, PIECE_BYTES), giver.log.first_position)


def check_whole(node: Node, giver: Giver) -> None:
    log = node.log
    assert log.first_index == giver.log.first_index
    assert log.previous == giver.log.previous
    last = log.tail.index + 1
    assert log.read_entries(log.first_index, last, 1 << 30) == giver.log.read_entries(log.first_index, last, 1 << 30)
    assert node.core.holds == set()
    assert node.woken == 1
    assert not node.taker.fs.exists(DATA / "install")


async def test_the_log_is_whole_again_and_only_then_the_node_may_lead(node: Node, giver: Giver) -> None:
    first = node.log.first_index
    assert first > giver.log.first_index
    held: list[set[str]] = []
    node.peers.before = lambda peer, what, arguments: held.append(set(node.core.holds))
    await node.run()
    assert held
    assert all(each == {HOLD} for each in held)
    assert node.core.trimmed_to == sorted(node.core.trimmed_to, reverse=True)
    assert len(node.core.trimmed_to) > 3
    assert node.core.trimmed_to[0] < first
    check_whole(node, giver)
    node.directory.close(clean=False)
    again = node.taker.open()
    assert again.log.first_index == giver.log.first_index


async def test_leftovers_that_cannot_be_removed_do_not_keep_the_node_from_leading(
    node: Node, giver: Giver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(node.taker.fs, "remove_tree", fails)
    await node.run()
    assert node.log.first_index == giver.log.first_index
    assert node.core.holds == set()
    assert node.woken == 1
    assert "removing /data/install failed" in caplog.text


async def test_nothing_is_missing_where_the_group_has_trimmed_as_much(node: Node) -> None:
    node.trim_position = node.log.first_position
    await node.run()
    assert node.core.holds == set()
    assert node.core.trimmed_to == []


async def test_what_the_group_trims_meanwhile_is_not_fetched(node: Node) -> None:
    middle = node.log.segment_at(node.log.first_position).previous.segment_base

    def trims(peer: int, what: str, arguments: list[Any]) -> None:
        if node.core.trimmed_to:
            node.trim_position = middle

    node.peers.before = trims
    await node.run()
    assert node.log.first_position <= middle
    assert len(node.core.trimmed_to) <= 2
    assert node.core.holds == set()


async def test_a_state_that_is_behind_its_log_is_waited_for(node: Node, giver: Giver) -> None:
    """It does not know yet what has been trimmed since the checkpoint that it was made from."""
    node.applied -= 1
    node.trim_position = 0
    loop = asyncio.get_running_loop()
    work = node.make(loop)
    work.start()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not [what for _, what, _ in node.peers.asked if what == "segment"][1:]
    assert node.core.holds == {HOLD}
    node.applied += 1
    node.trim_position = giver.log.first_position
    await finished(work)
    check_whole(node, giver)


async def test_a_group_in_which_everybody_waits_gets_a_leader(node: Node, giver: Giver) -> None:
    """Nobody leads, so nothing is committed, so no state learns what was trimmed."""
    node.applied -= 1
    node.core.leader_id = NOBODY
    work = node.make(asyncio.get_running_loop(), NO_WAITS._replace(look_s=0.001, leaderless_s=0.005))
    work.start()
    assert node.core.holds == {HOLD}
    async with asyncio.timeout(at_most(20)):
        while node.core.holds:
            await asyncio.sleep(0)
    node.core.leader_id, node.applied = NodeId(1), node.applied + 1
    held: list[set[str]] = []
    node.peers.before = lambda peer, what, arguments: held.append(set(node.core.holds))
    await finished(work)
    assert held
    assert all(each == {HOLD} for each in held), "now it knows that something is missing"
    check_whole(node, giver)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 9])
async def test_a_giver_that_goes_away_is_taken_over_from(node: Node, giver: Giver, number: int) -> None:
    asks = len(node.peers.asked)

    def dies(peer: int, what: str, arguments: list[Any]) -> None:
        if len(node.peers.asked) == asks + number:
            node.peers.dead.add(2)

    node.peers.before = dies
    await node.run()
    pieces = [
        (start + skip) for peer, what, (start, skip, *_) in [ask for ask in node.peers.asked[asks:] if ask[1] == LOG]
    ]
    assert len(pieces) <= len(set(pieces)) + 1, "what had come is not asked for again"
    check_whole(node, giver)


@pytest.mark.parametrize("what", ["log", "segment"])
async def test_damaged_bytes_are_refused_and_another_is_asked(node: Node, giver: Giver, what: str) -> None:
    spoiled = []

    def spoils(peer: int, source: str, arguments: list[Any], answer: Fetched) -> Fetched:
        if peer == 3 or source != what:
            return answer
        spoiled.append(peer)
        if what == "segment":
            return Fetched([*answer.fields[:3], answer.fields[3] ^ 1, *answer.fields[4:]], b"")
        data = bytearray(answer.payload)
        data[len(data) // 2] ^= 1
        return Fetched(answer.fields, bytes(data))

    node.peers.after = spoils
    await node.run()
    assert spoiled
    check_whole(node, giver)


async def test_a_stop_in_the_middle_of_a_segment_is_resumed(node: Node, giver: Giver) -> None:
    for _ in range(120):
        asks = len(node.peers.asked)
        node.peers.before = lambda peer, what, arguments, asks=asks: (  # type: ignore[misc]
            node.peers.dead.update((2, 3)) if len(node.peers.asked) > asks + 3 else None
        )
        task = asyncio.get_running_loop().create_task(node.run())
        while not node.peers.dead and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        node.peers.dead.clear()
        if not node.core.holds:
            break
        node.directory.close(clean=False)
        node.taker.fs.restart()
        node.directory = node.taker.open()
        node.begin(node.peers)
    check_whole(node, giver)


@pytest.mark.parametrize("trimmed", [False, True])
async def test_an_offer_that_leads_to_nothing_does_not_end_it(node: Node, giver: Giver, trimmed: bool) -> None:
    """This node fell behind what the leader's log begins with, and another leader had what it needs."""
    loop, restarts, core = asyncio.get_running_loop(), list[str](), node.core
    core.tail = node.log.tail
    state = SimpleNamespace(trim_position=node.trim_position, applied=SimpleNamespace(index=node.applied))
    service = InstallService(
        context_of(core, node.alarms, environment=Environment(fs=node.taker.fs), loop=loop, wake=node._wake),
        SimpleNamespace(  # type: ignore[arg-type]
            directory=node.directory, state=state, checkpointer=None, recovery=SimpleNamespace(state_set_aside="")
        ),
        SimpleNamespace(  # type: ignore[arg-type]
            client=node.peers,
            peers=lambda: node.others,
            givers=lambda: node.others,
            server=SimpleNamespace(sources={}),
        ),
        Leases(lambda: 0),
        restart=restarts.append,
    )
    service.start()
    while len(node.peers.asked) < 5:
        await asyncio.sleep(0)
    assert core.holds == {HOLD}
    first = core.tail.index + 10
    service.offered(InstallSnapshot(NodeId(2), NodeId(1), 1, first, EntryId(1, first - 1)))
    core.tail = core.tail._replace(index=first)
    if trimmed:
        state.trim_position = node.log.first_position
    async with asyncio.timeout(at_most(20)):
        while core.holds:
            await asyncio.sleep(0)
        await service.close()
    assert restarts == []
    if not trimmed:
        check_whole(node, giver)


async def test_who_is_alone_leads_without_and_says_so(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """The node is alone after unsafe-recover: there is nobody to ask."""
    node.others = []
    first = node.log.first_index
    await node.run()
    assert node.core.holds == set()
    assert node.log.first_index == first
    (alarm,) = node.alarms.all()
    assert alarm.key == LOST
    assert "may lead without" in caplog.text
    assert "complete" not in caplog.text


async def test_nobody_who_gives_anything_is_an_alarm_that_ends(node: Node, giver: Giver) -> None:
    node.peers.dead.update((2, 3))
    work = node.make(asyncio.get_running_loop())
    work.start()
    while not node.alarms.raised(ALARM):
        await asyncio.sleep(0)
    assert "does not lead" in node.alarms.all()[0].text
    node.peers.dead.clear()
    await finished(work)
    assert not node.alarms.all()
    check_whole(node, giver)
