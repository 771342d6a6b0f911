"""Damaged ranges are fetched from peers, proved, and put in place; peers that lie or are damaged are passed over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cluster.repair.fetch import PAYLOAD_MAX, AnswerSource, Fetched, FetchError, FetchRefused, Status
from cluster.repair.log_repair import ALARM, LogRepairer
from cluster.repair.log_source import log_source
from cluster.runtime.alarms import Alarms
from jepsen_like.fakes.memory_fs import MemoryFileSystem
from jepsen_like.sim.world import run_seed
from raftlog.errors import DamagedLogError
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import FIRST_GROUP, Entry, EntryType, NodeId
from tests.support.samples import sample
from tests.support.wait_until import until

DATA = Path("/data")
GROUP = 7
SEGMENT_SIZE = 4 << 20
GENESIS = Genesis(UUID(int=1), GROUP, SEGMENT_SIZE, 1_700_000_000_000, (Voter(NodeId(1), UUID(int=11)),))
TWO, THREE = NodeId(2), NodeId(3)


class Replica:
    """One node's log: GENESIS and entries with payloads of the given sizes, all of term 1."""

    def __init__(self, *sizes: int) -> None:
        self.fs = MemoryFileSystem()
        self.fs.mkdir(DATA)
        self.log = SegmentedLog.create(self.fs, DATA, genesis=GENESIS.entry(), segment_size=SEGMENT_SIZE)
        self.entries = self.log.read_entries(0, 1, 1)
        for size in sizes:
            self.add(f"{self.log.tail.index};".encode() * (size // 2 + 1), size)
        self.log.write_idle_mark()
        self.commit_index = self.log.tail.index
        self.source: AnswerSource = log_source(self.log, lambda: self.commit_index)

    def add(self, text: bytes, size: int, term: int = 1) -> None:
        entry = make_entry(
            self.log.tail,
            term=term,
            entry_type=EntryType.MESSAGES,
            payload=text[:size],
            timestamp_ms=0,
            group_id=GROUP,
            segment_size=SEGMENT_SIZE,
        )
        self.log.append([entry])
        self.entries.append(entry)
        assert tail_after(self.log.tail, entry)

    def rot(self, index: int, where: int = 100) -> None:
        entry = self.entries[index]
        path = max(p for p in self.segments() if int(p.stem) <= entry.position)
        offset = LOCAL_HEADER_SIZE + entry.position - int(path.stem) + where
        self.fs.damage(path, offset, bytes([self.fs.open(path).pread(1, offset)[0] ^ 1]))

    def segments(self) -> list[Path]:
        return [DATA / "log" / name for name in self.fs.listdir(DATA / "log") if name.endswith(".seg")]

    def read(self, index: int) -> Entry:
        return self.log.read_entries(index, index + 1, 1 << 30)[0]


class Peers:
    """Answers fetches from the logs of others, or as the test says."""

    group = FIRST_GROUP
    busy_pause_s = 0.0

    def __init__(self, **sources: AnswerSource) -> None:
        self.sources = {NodeId(int(name[1:])): source for name, source in sources.items()}
        self.asked: list[tuple[int, list[Any]]] = []

    async def fetch(self, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        self.asked.append((peer, arguments))
        await asyncio.sleep(0)
        try:
            return self.sources[peer](arguments)
        except FetchRefused as error:
            raise FetchError(peer, what, error.status, str(error)) from error


class Mended:
    """A repairer over one log."""

    def __init__(self, replica: Replica, peers: Peers) -> None:
        self.alarms = Alarms(lambda: 0)
        self.changes = 0
        self.replica = replica
        self.repairer = LogRepairer(
            replica.log,
            peers,
            asyncio.get_running_loop(),
            peers=lambda: list(peers.sources),
            on_change=self.changed,
            alarms=self.alarms,
            retry_min_s=0.0,
        )

    def changed(self) -> None:
        self.changes += 1

    def value(self, name: str, **labels: str) -> float | None:
        return sample(self.repairer.metrics, name, **labels)

    def find(self, index: int) -> None:
        with pytest.raises(DamagedLogError):
            self.replica.read(index)

    async def whole(self) -> None:
        await until(lambda: not self.replica.log.damage and not self.alarms.raised(ALARM), every_s=0)


SIZES = [1000] * 6


async def test_damage_found_by_a_read_is_repaired_and_told(caplog: pytest.LogCaptureFixture) -> None:
    mine, other = Replica(*SIZES), Replica(*SIZES)
    mended = Mended(mine, Peers(n2=other.source))
    mended.repairer.start()
    assert mended.alarms.all() == []
    mine.rot(3)
    mended.find(3)
    await until(lambda: mended.alarms.raised(ALARM), every_s=0)
    assert "entries 3..3" in mended.alarms.all()[0].text
    await mended.whole()
    assert mine.read(3) == other.read(3)
    await until(lambda: mended.value("raftmq_log_repairs_total") == 1)
    assert mended.value("raftmq_log_damaged_bytes") == 0
    assert mended.value("raftmq_log_repaired_bytes_total") == mine.entries[3].size
    assert mended.changes >= 3
    assert "repaired from node 2" in caplog.text
    await mended.repairer.close()


async def test_damage_known_at_the_start_and_in_several_places() -> None:
    mine, other = Replica(*SIZES), Replica(*SIZES)
    for index in (1, 2, 5):
        mine.rot(index)
    mended = Mended(mine, Peers(n2=other.source))
    for index in (1, 5, 2):
        mended.find(index)
    mended.repairer.start()
    await mended.whole()
    assert [mine.read(index) for index in range(7)] == other.entries
    await mended.repairer.close()


async def test_an_entry_longer_than_a_reply_comes_in_pieces() -> None:
    sizes = [1000, 5 * PAYLOAD_MAX // 2, 1000]
    mine, other = Replica(*sizes), Replica(*sizes)
    mine.rot(2)
    peers = Peers(n2=other.source)
    mended = Mended(mine, peers)
    mended.find(2)
    mended.repairer.start()
    await mended.whole()
    assert mine.read(2) == other.read(2)
    position = mine.entries[2].position
    assert [arguments[:2] for _, arguments in peers.asked] == [[position, n * PAYLOAD_MAX] for n in range(3)]
    await mended.repairer.close()


async def test_a_disk_that_fails_as_a_repair_begins_is_tried_again() -> None:
    """What an earlier repair left cannot be removed at first. The damage stays known, and so does the repair's task."""
    mine, other = Replica(*SIZES), Replica(*SIZES)
    mine.fs.open(DATA / "log" / "repair-0.tmp", create=True)
    mine.rot(3)
    mended = Mended(mine, Peers(n2=other.source))
    mended.find(3)
    mine.fs.fail_call(mine.fs.calls + 1)
    mended.repairer.start()
    await mended.whole()
    assert mine.read(3) == other.read(3)
    assert mended.value("raftmq_log_repair_failures_total", peer="2") == 1
    await mended.repairer.close()


def another_history() -> Replica:
    other = Replica(1000, 1000)
    for _ in range(4):
        other.add(b"other" * 200, 1000)
    return other


async def test_whoever_has_it_not_or_lies_is_passed_over() -> None:
    mine, damaged, good = Replica(*SIZES), Replica(*SIZES), Replica(*SIZES)
    mine.rot(4)
    damaged.rot(4)
    short = Replica(*SIZES[:2])
    flipped = log_source(good.log, lambda: 99)

    def lie(arguments: list[Any]) -> Fetched:
        fields, payload = flipped(arguments)
        return Fetched(fields, payload[:200] + b"!" + payload[201:])

    peers = Peers(n2=damaged.source, n3=short.source, n4=lie, n5=another_history().source, n6=good.source)
    mended = Mended(mine, peers)
    mended.find(4)
    mended.repairer.start()
    await mended.whole()
    assert mine.read(4) == good.read(4)
    assert [peer for peer, _ in peers.asked] == [2, 3, 4, 5, 6]
    assert mended.value("raftmq_log_repair_failures_total", peer="4") == 1
    assert damaged.log.damage, "the peer found its own damage while serving"
    await mended.repairer.close()


async def test_it_goes_on_asking_until_a_peer_has_it() -> None:
    mine, good = Replica(*SIZES), Replica(*SIZES)
    mine.rot(4)
    rounds = 0

    def later(arguments: list[Any]) -> Fetched:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise FetchRefused(Status.BUSY, "busy")
        if rounds < 5:
            raise FetchRefused(Status.MISSING, "not yet")
        return good.source(arguments)

    mended = Mended(mine, Peers(n2=later))
    mended.find(4)
    mended.repairer.start()
    await until(lambda: "not yet" in "".join(alarm.text for alarm in mended.alarms.all()), every_s=0)
    await mended.whole()
    assert mine.read(4) == good.read(4)
    await mended.repairer.close()


async def test_a_range_without_a_frame_after_it_needs_a_peer_that_knows_it_committed() -> None:
    mine, doubtful, good = Replica(*SIZES), Replica(*SIZES), Replica(*SIZES)
    mine.rot(6)
    mended = Mended(mine, Peers(n2=doubtful.source, n3=good.source))
    mended.find(6)
    (damaged,) = mine.log.damage.ranges
    mine.log.damage.drop(damaged)
    mine.log.damage.add(damaged._replace(after=None))
    doubtful.commit_index = 5
    mended.repairer.start()
    await mended.whole()
    assert mine.read(6) == good.read(6)
    assert mended.value("raftmq_log_repair_failures_total", peer="2") == 1
    assert mended.value("raftmq_log_repair_failures_total", peer="3") is None
    await mended.repairer.close()


async def test_closing_in_the_middle_leaves_the_range_damaged() -> None:
    mine = Replica(*SIZES)
    mine.rot(4)
    asked = asyncio.Event()

    class Silent(Peers):
        async def fetch(self, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    mended = Mended(mine, Silent(n2=mine.source))
    mended.find(4)
    mended.repairer.start()
    await asked.wait()
    await mended.repairer.close()
    assert mine.log.damage
    assert mended.alarms.raised(ALARM)


def test_the_source_gives_slices_of_whole_frames() -> None:
    replica = Replica(*SIZES)
    first = replica.entries[1]
    raw = first.header + first.payload
    assert replica.source([first.position, 0, first.size]) == Fetched([6], raw)
    assert replica.source([first.position, 60, 10]).payload == raw[60:70]
    assert len(replica.source([0, 0, 1 << 40]).payload) == replica.log.tail.end_position
    with pytest.raises(FetchRefused, match="no frame begins"):
        replica.source([first.position + 1, 0, 10])
    with pytest.raises(FetchRefused, match="no byte"):
        replica.source([first.position, first.size, 1])
    for bad in ([1], [0, 0, "x"], [0, -1, 5], [None, 0, 0], [True, 0, 1]):
        with pytest.raises(ValueError, match=r"."):
            replica.source(bad)


@pytest.mark.ci
def test_seed_1900025() -> None:
    """A leader proposed that a node leaves which has the only sound copy of an entry that the other one still needs."""
    assert run_seed(1900025).violations == ()
