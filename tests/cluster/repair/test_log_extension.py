"""A log is brought forward with a peer's committed frames: what is missing comes, what was never committed goes, what
is committed stays, and a crash at any call leaves a node that starts and can go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cluster.repair.fetch import LOG, PAYLOAD_MAX, AnswerSource, Fetched, FetchError, FetchRefused, Status
from cluster.repair.log_extension import LogForward, RolledForward
from cluster.repair.log_source import log_source
from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from raftlog.errors import FrameError, StorageError
from raftlog.frame import make_entry
from raftlog.storage.files import vote_withheld
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.node_dir import NodeDir, create_node_dir, open_node_dir
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import FIRST_GROUP, NOBODY, Entry, EntryType, HardState, NodeId
from statemachine.broker_state import AppliedMark

DATA = Path("/data")
GROUP = 7
SEGMENT_SIZE = 16 << 10
CLUSTER = UUID(int=1)
TWO = NodeId(2)


class Node:
    """A node's directory in memory, with entries of some payload sizes and terms."""

    def __init__(self, segment_size: int = SEGMENT_SIZE) -> None:
        voter = Voter(NodeId(1), UUID(int=11))
        genesis = Genesis(CLUSTER, GROUP, segment_size, 1_700_000_000_000, (voter,))
        self.segment_size = segment_size
        self.fs = MemoryFileSystem()
        self.commit_index = -1
        create_node_dir(self.fs, DATA, Identity(CLUSTER, GROUP, voter.id, voter.uuid, 0), genesis)
        self.open()

    def open(self) -> NodeDir:
        self.directory = open_node_dir(self.fs, DATA)
        self.log = self.directory.log
        return self.directory

    def add(self, term: int, *sizes: int, text: bytes = b"a") -> None:
        saved = self.directory.hard_state_store.load()
        if saved.term < term:
            self.directory.hard_state_store.save(HardState(term, NodeId(1), 0))
        for size in sizes:
            entry = make_entry(
                self.log.tail,
                term=term,
                entry_type=EntryType.MESSAGES,
                payload=text * size,
                timestamp_ms=0,
                group_id=GROUP,
                segment_size=self.segment_size,
            )
            self.log.append([entry])
        self.commit_index = self.log.tail.index

    @property
    def entries(self) -> list[Entry]:
        return self.log.read_entries(0, self.log.tail.index + 1, 1 << 40)

    def mark(self, index: int) -> AppliedMark:
        entry = self.entries[index]
        return AppliedMark(entry.term, index, entry.end_position, entry.timestamp_ms, entry.header_crc)

    def rot(self, index: int, where: int) -> None:
        entry = self.entries[index]
        segments = [DATA / "log" / name for name in self.fs.listdir(DATA / "log") if name.endswith(".seg")]
        path = max(path for path in segments if int(path.stem) <= entry.position)
        offset = LOCAL_HEADER_SIZE + entry.position - int(path.stem) + where
        self.fs.damage(path, offset, bytes([self.fs.open(path).pread(1, offset)[0] ^ 1]))

    def segments(self) -> list[str]:
        return sorted(name for name in self.fs.listdir(DATA / "log") if name.endswith(".seg"))

    def serve(self) -> AnswerSource:
        return log_source(self.log, lambda: self.commit_index)


class Peer:
    """Stands for a FetchClient of one peer."""

    group = FIRST_GROUP

    busy_pause_s = 0.0

    def __init__(self, source: AnswerSource) -> None:
        self.source = source
        self.asked = 0

    async def fetch(self, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        assert what == LOG
        self.asked += 1
        try:
            return self.source(arguments)
        except FetchRefused as error:
            raise FetchError(peer, what, error.status, str(error)) from error


def forward(node: Node, source: AnswerSource, mark: AppliedMark, committed_index: int = -1) -> RolledForward:
    return asyncio.run(LogForward(node.directory, Peer(source), TWO, committed_index).run(mark))


def shared(node: Node, *others: Node) -> None:
    """The first five entries, which all have."""
    for one in (node, *others):
        one.add(1, 100, 0, 3000, 5, 900)


@pytest.fixture
def pair() -> tuple[Node, Node]:
    """A node that stopped after five entries, and a peer that went on over several segments and a second term."""
    node, peer = Node(), Node()
    shared(node, peer)
    peer.add(1, 4000, 4000, 10)
    peer.add(2, *[5000] * 6, 1, 2)
    return node, peer


def test_what_is_missing_comes(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    assert forward(node, peer.serve(), peer.mark(14)) == RolledForward(6, 14, 5)
    assert node.entries == peer.entries[:15]
    assert len(node.segments()) >= 3
    assert node.segments() == peer.segments()
    assert node.directory.hard_state_store.load() == HardState(2, NOBODY, 14)
    node.directory.close(clean=True)
    node.open()
    assert node.log.tail.index == 14
    assert forward(node, peer.serve(), peer.mark(15)).first == 15
    assert forward(node, peer.serve(), peer.mark(15)).first == 16, "nothing was missing"


def test_the_vote_of_the_saved_term_stays(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    node.directory.hard_state_store.save(HardState(2, NodeId(3), 0))
    withheld = VoteWithheld("lost its end", 9, 1, 0)
    vote_withheld.withhold(node.fs, DATA, withheld, GROUP)
    forward(node, peer.serve(), peer.mark(16))
    assert node.directory.hard_state_store.load() == HardState(2, NodeId(3), 16)
    assert vote_withheld.load(node.fs, DATA, GROUP) == withheld


def test_what_was_never_committed_gives_way(pair: tuple[Node, Node], caplog: pytest.LogCaptureFixture) -> None:
    node, peer = pair
    node.add(1, 4000, text=b"a")  # as the peer has it
    node.add(1, *[6000] * 20, text=b"b")  # of a leader that nobody else followed
    assert node.log.tail.index > 20
    done = forward(node, peer.serve(), peer.mark(12))
    assert done == RolledForward(7, 12, 26)
    assert node.entries == peer.entries[:13]
    assert "entries 7..12 of the log come from node 7/2; it ended at 26 before" in caplog.text
    node.directory.close(clean=False)
    node.open()
    assert node.entries == peer.entries[:13]


def test_what_is_committed_here_never_gives_way(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    node.add(1, 50, 60, text=b"b")
    before = node.entries
    with pytest.raises(FrameError, match="entry 6 is committed on this node and another one on node 7/2"):
        forward(node, peer.serve(), peer.mark(12), committed_index=6)
    assert node.entries == before
    assert node.directory.hard_state_store.load().term == 1
    forward(node, peer.serve(), peer.mark(12), committed_index=5)
    assert node.entries == peer.entries[:13]


def test_an_entry_longer_than_a_reply_comes_in_pieces() -> None:
    node, peer = Node(8 << 20), Node(8 << 20)
    shared(node, peer)
    peer.add(1, PAYLOAD_MAX * 2 + 77, 10)
    source = Peer(peer.serve())
    asyncio.run(LogForward(node.directory, source, TWO, -1).run(peer.mark(7)))
    assert node.entries == peer.entries
    assert source.asked >= 4


def test_what_the_peer_does_not_know_to_be_committed_is_not_taken(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    peer.commit_index = 8
    with pytest.raises(FrameError, match="knows only entries up to 8 to be committed"):
        forward(node, peer.serve(), peer.mark(12))
    assert node.entries == peer.entries[:9]


def _bit(data: bytes) -> bytes:
    return data[:70] + bytes([data[70] ^ 1]) + data[71:] if len(data) > 70 else data


@pytest.mark.parametrize("lie", [_bit, lambda data: data[64:], lambda data: data[:-1] if len(data) > 64 else data])
def test_frames_that_are_not_sound_are_refused(pair: tuple[Node, Node], lie: Callable[[bytes], bytes]) -> None:
    node, peer = pair
    source = peer.serve()

    def lying(arguments: list[Any]) -> Fetched:
        fields, payload = source(arguments)
        return Fetched(fields, lie(payload))

    with pytest.raises(FrameError):
        forward(node, lying, peer.mark(14))
    assert node.entries == peer.entries[:6]


def test_another_cluster_of_the_same_group_is_refused(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    other = Node(SEGMENT_SIZE * 2)
    other.add(1, *[100] * 10)
    with pytest.raises(FrameError, match="does not have entry 0"):
        forward(node, other.serve(), other.mark(10))
    wrong = peer.mark(9)._replace(header_crc=1)
    with pytest.raises(FrameError, match="has applied another entry 9"):
        forward(node, peer.serve(), wrong)
    assert node.entries == peer.entries[: len(node.entries)], "committed entries below it may have come"
    assert node.log.tail.index < 9


def test_damage_where_the_logs_meet_is_in_nobodys_way(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    entries = peer.entries
    mark = peer.mark(12)
    node.rot(5, 100)
    peer.rot(5, 100)
    forward(node, peer.serve(), mark)
    assert node.log.tail.index == 12
    assert node.log.read_entries(6, 13, 1 << 30) == entries[6:13]


def test_damage_where_the_logs_part_is_compared_around(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    entries, mark = peer.entries, peer.mark(12)
    node.add(1, 500, text=b"b")
    node.rot(5, 100)
    forward(node, peer.serve(), mark)
    assert node.log.tail.index == 12
    assert node.log.read_entries(6, 13, 1 << 30) == entries[6:13]
    assert node.log.damage.at_index(5) is not None, "it is repaired when the node runs"


def test_what_is_damaged_on_the_peer_too_is_left_to_another(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    mark = peer.mark(12)
    peer.rot(9, 100)
    with pytest.raises(FetchError) as told:
        forward(node, peer.serve(), mark)
    assert told.value.status is Status.MISSING
    assert node.log.tail.index == 8


def test_a_peer_that_is_busy_is_asked_again(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    source, calls = peer.serve(), [0]

    def busy(arguments: list[Any]) -> Fetched:
        calls[0] += 1
        if calls[0] == 2:
            raise FetchRefused(Status.BUSY, "4 requests are not answered yet")
        return source(arguments)

    assert forward(node, busy, peer.mark(14)).last == 14


@pytest.mark.parametrize("kind", ["cut", "kill"])
def test_a_crash_at_any_call_leaves_a_node_that_starts_and_goes_on(kind: str) -> None:
    peer = Node()
    shared(peer)
    peer.add(2, 4000, 9000, 9000, 10)
    peer.add(3, 9000, 9000, 1)

    def victim() -> Node:
        node = Node()
        shared(node)
        node.add(1, 9000, 9000, 50, text=b"b")
        return node

    node = victim()
    before = node.fs.calls
    mark = peer.mark(12)
    forward(node, peer.serve(), mark)
    total = node.fs.calls - before
    assert total > 20
    for number in range(1, total + 1):
        node = victim()
        old = node.entries
        (node.fs.cut_power_at if kind == "cut" else node.fs.fail_call)(node.fs.calls + number)
        with pytest.raises((PowerCut, StorageError)):
            forward(node, peer.serve(), mark)
        node.fs.crash(number) if kind == "cut" else node.fs.restart()
        node.open()  # refuses an entry of a term that hard_state does not have
        found, new = node.entries, peer.entries
        assert found[:6] == new[:6], number
        assert found in (old[: len(found)], new[: len(found)]), number
        forward(node, peer.serve(), mark)
        assert node.entries == new[:13], number
        saved = node.directory.hard_state_store.load()
        assert (saved.term, saved.vote) == (3, NOBODY)
