"""Witnesses of the bugs in logs that begin above GENESIS (see witnesses.py)."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog import membership
from raftlog.frame import make_entry
from raftlog.membership import Membership
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.log_build import LogBuild, SegmentBuild
from raftlog.storage.members import newest_above
from raftlog.storage.node_dir import NodeDir, create_node_dir, open_node_dir
from raftlog.types import NOBODY, EntryType, HardState, NodeId

DATA = Path("/data")
VOTER = Voter(NodeId(1), UUID(int=1))
GENESIS = Genesis(UUID(int=7), 1, 4096, 0, (VOTER,))


class Place:
    """A node's directory, open."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        create_node_dir(self.fs, DATA, Identity(GENESIS.cluster_uuid, 1, VOTER.id, VOTER.uuid, 0), GENESIS)
        self.node: NodeDir = open_node_dir(self.fs, DATA)
        self.log = self.node.log

    def write(self, count: int, term: int = 1, payload: bytes = bytes(900), kind: int = EntryType.MESSAGES) -> None:
        """Appends entries of a term that is saved before."""
        self.node.hard_state_store.save(HardState(term, NOBODY, 0))
        for _ in range(count):
            entry = make_entry(
                self.log.tail,
                term=term,
                entry_type=kind,
                payload=payload,
                timestamp_ms=0,
                group_id=1,
                segment_size=4096,
            )
            self.log.append([entry])

    def trim(self, files: int) -> int:
        """Trims up to the beginning of a file; returns its position."""
        base = self.log.state.segments[files].base
        self.log.remove_files(self.log.trim(base))
        return base

    def again(self) -> None:
        """kill -9, and the next start."""
        self.fs.restart()
        self.node = open_node_dir(self.fs, DATA)
        self.log = self.node.log


def witness_T01() -> None:
    place = Place()
    place.write(30)
    place.write(10, term=2)
    assert place.trim(4) == place.log.first_position


def witness_T02() -> None:
    place = Place()
    place.write(40)
    place.trim(4)
    place.write(40, term=2)
    place.trim(12)
    assert place.log.previous.term == 2
    place.again()
    assert not place.log.damage.ranges


def witness_T03() -> None:
    place = Place()
    place.write(40)
    place.write(1, term=2)
    place.write(1, term=3)
    place.trim(4)
    log = place.log
    assert log.read_entries(log.first_index, log.first_index + 1, 1)[0].position == log.first_position


def installing(*, trimmed: int = 0) -> tuple[Place, Place, LogBuild]:
    """A peer, a node that was away, of whose log `trimmed` files are gone, and the log that it builds of the peer's:
    it begins in term 2 and ends in term 3."""
    peer, away = Place(), Place()
    for each in (peer, away):
        each.write(20)
    away.trim(trimmed)
    peer.write(40, term=2)
    peer.write(1, term=3)
    log = peer.log
    build = LogBuild.begin(away.fs, DATA, 1, log.segment_at(log.tail.end_position - 1).previous)
    build.append_raw(log.read_raw(build.next_position, 1 << 20))
    return peer, away, build


def witness_T04() -> None:
    peer, away, build = installing()
    tail = peer.log.tail
    assert (build.previous.term, tail.term) == (2, 3)
    build.commit("c", tail.index, tail.header_crc)
    away.again()
    assert away.log.tail == tail


def witness_T05() -> None:
    peer, place = Place(), Place()
    for each in (peer, place):
        each.write(40)
    place.trim(4)
    log = place.log
    span = peer.log.segment_at(log.first_position - 1)
    build = SegmentBuild(place.fs, DATA / "staged", 1, span.previous)
    build.append_raw(peer.log.read_raw(span.previous.end_position, 1 << 20))
    log.prepend(build.finish())
    place.fs.damage(log.state.segments[0].path, 4096 + 100, b"\xee")
    assert log.find_damage(log.first_index, log.first_index + 1) in log.damage.ranges


def witness_T06() -> None:
    place = Place()
    place.write(40)
    place.trim(4)
    payload = membership.encode(Membership(GENESIS.cluster_uuid, (VOTER,), reason="add"))
    place.write(1, payload=payload, kind=EntryType.MEMBERSHIP)
    place.again()
    assert newest_above(place.log, 0) is not None


def witness_T07() -> None:
    _, away, _ = installing(trimmed=2)
    away.again()
    assert away.log.tail.index == 20
