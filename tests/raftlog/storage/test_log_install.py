"""A log built aside takes the place of the one that nobody can continue: all of it or nothing, at every crash."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from damaged_disk import row
from google_crc32c import value as crc32c

from raftlog.errors import CorruptLogError, FrameError, IdentityError, OutOfSpaceError, StorageError
from raftlog.frame import tail_after
from raftlog.storage import install_file, vote_withheld
from raftlog.storage.fs import OsFileSystem, read_file
from raftlog.storage.genesis import Genesis
from raftlog.storage.hard_state import HardStateStore
from raftlog.storage.identity import Ancestor, Identity
from raftlog.storage.log_build import LogBuild
from raftlog.storage.memory_fs import MemoryFileSystem, PowerCut
from raftlog.storage.node_dir import NodeDir, create_joining_dir, create_node_dir, open_node_dir
from raftlog.types import EMPTY_TAIL, NOBODY, Entry, HardState, LogTail, NodeId

DATA = Path("/data")
GROUP = 7
CHECKPOINT = "00000000000000000037-2-0badcafe"
Frames = Callable[..., list[Entry]]
OLD = 10
"""Entries of the old log: what the node had when it went away."""


class Giver:
    """The peers' log, of term 2 from entry 6 on; the node's old one has entries 6.. of term 1 in their place."""

    def __init__(self, genesis: Genesis, frames: Frames) -> None:
        self.genesis = genesis
        self.first = genesis.entry()
        shared = frames(tail_after(EMPTY_TAIL, self.first), [900] * 5)
        after = self.tail([self.first, *shared])
        self.entries = [self.first, *shared, *frames(after, [900] * 40, term=2)]
        self.old = [self.first, *shared, *frames(after, [800] * (OLD - 6), term=1)]
        self.bases = [entry.position for entry in self.entries if entry.flags]

    @staticmethod
    def tail(entries: list[Entry]) -> LogTail:
        tail = EMPTY_TAIL
        for entry in entries:
            tail = tail_after(tail, entry)
        return tail

    def previous(self, base: int) -> LogTail:
        return self.tail([entry for entry in self.entries if entry.position < base])

    def raw(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the log."""
        return b"".join(entry.header + entry.payload for entry in self.entries)[start:stop]


@pytest.fixture(scope="session")
def giver(genesis: Genesis, frames: Frames) -> Giver:
    return Giver(genesis, frames)


BEGIN = 6
"""Number of the segment with which the new log begins."""
LAST = 37
"""Last entry of the checkpoint, and so of the new log."""


class Node:
    """A node that was away, and installs entries 25..37 of the peers' log."""

    def __init__(self, giver: Giver, fs: MemoryFileSystem | OsFileSystem, data: Path = DATA) -> None:
        self.giver = giver
        self.fs = fs
        self.data = data

    def create(self, old: list[Entry] | None = None) -> None:
        genesis = self.giver.genesis
        voter = genesis.voters[0]
        create_node_dir(self.fs, self.data, Identity(genesis.cluster_uuid, GROUP, voter.id, voter.uuid, 0), genesis)
        opened = self.open()
        opened.hard_state_store.save(HardState(1, NodeId(2), 5))
        opened.log.append((old or self.giver.old)[1:])
        opened.close(clean=False)

    def open(self) -> NodeDir:
        return open_node_dir(self.fs, self.data, now_ms=77)

    def build(self, piece: int = 2500) -> LogBuild:
        giver = self.giver
        build = LogBuild.resume(self.fs, self.data, GROUP)
        if build is None:
            build = LogBuild.begin(self.fs, self.data, GROUP, giver.previous(giver.bases[BEGIN]))
        end = giver.entries[LAST].end_position
        while build.next_position < end:
            build.append_raw(giver.raw(build.next_position, min(end, build.next_position + piece)))
        return build

    def commit(self, build: LogBuild) -> None:
        build.commit(CHECKPOINT, LAST, self.giver.entries[LAST].header_crc, 55)

    def install(self) -> NodeDir:
        self.commit(self.build())
        return self.open()

    def check_new(self, opened: NodeDir) -> None:
        giver, log = self.giver, opened.log
        assert (log.tail.index, log.tail.header_crc) == (LAST, giver.entries[LAST].header_crc)
        assert log.previous == giver.previous(giver.bases[BEGIN])
        assert log.read_entries(log.first_index, LAST + 1, 1 << 30) == giver.entries[log.first_index : LAST + 1]
        assert not log.damage.ranges
        assert opened.hard_state_store.load().term == 2
        assert log.genesis == giver.genesis
        names = self.fs.listdir(self.data)
        assert not {"install", "INSTALL"} & set(names)
        (aside,) = [name for name in self.fs.listdir(self.data / "trash") if name.endswith("-log")]
        report = json.loads(read_file(self.fs, self.data / "trash" / f"{aside}.json"))
        assert "replaced by a log from a peer, entries 25..37" in report["why"]
        log.append(giver.entries[LAST + 1 :])

    def check_old(self, opened: NodeDir, entries: list[Entry] | None = None) -> None:
        entries = entries or self.giver.old
        assert opened.log.read_entries(0, len(entries), 1 << 30) == entries
        assert opened.log.tail.index == len(entries) - 1


@pytest.fixture
def node(giver: Giver) -> Node:
    made = Node(giver, MemoryFileSystem())
    made.create()
    return made


@row("INSTALL")
def test_a_log_is_installed(node: Node) -> None:
    opened = node.install()
    assert opened.installed is not None
    assert opened.installed[:1] + opened.installed[2:] == (True, CHECKPOINT, "000001-log")
    node.check_new(opened)
    opened.close(clean=False)
    again = node.open()
    assert again.installed is None
    assert again.log.tail.index == len(node.giver.entries) - 1


def test_on_a_real_disk(giver: Giver, tmp_path: Path) -> None:
    node = Node(giver, OsFileSystem(), tmp_path / "n1")
    node.create()
    node.build().close()
    opened = node.install()
    node.check_new(opened)
    opened.close(clean=True)


def test_whoever_gives_other_bytes_is_found_out_and_left(node: Node, frames: Frames) -> None:
    giver = node.giver
    build = LogBuild.begin(node.fs, DATA, GROUP, giver.previous(giver.bases[BEGIN]))
    start = giver.bases[BEGIN]
    with pytest.raises(FrameError, match="of position"):
        build.append_raw(giver.raw(giver.bases[BEGIN + 1], giver.bases[BEGIN + 1] + 3000))
    assert build.next_position == start
    build.append_raw(giver.raw(start, start + 2000))
    assert build.next_position == start + 2000
    at = build.tail.end_position
    for bad in (b"\0" * 900, giver.raw(at + 700, at + 3000), b"RMQ1" * 300):
        with pytest.raises(FrameError):
            build.append_raw(bad)
        assert build.next_position == build.tail.end_position == at
    (other,) = frames(build.tail._replace(header_crc=7), [900], term=2)
    with pytest.raises(FrameError, match="does not follow"):
        build.append_raw(other.header + other.payload)
    node.check_new(node.install())


def test_a_build_that_does_not_begin_a_file_is_refused(node: Node) -> None:
    giver = node.giver
    second = next(entry for entry in giver.entries if entry.position > giver.bases[BEGIN])
    build = LogBuild.begin(node.fs, DATA, GROUP, giver.tail(giver.entries[: second.index]))
    with pytest.raises(FrameError, match="does not begin a segment file"):
        build.append_raw(giver.raw(second.position, second.end_position))


@pytest.mark.parametrize(("index", "crc"), [(LAST - 1, None), (LAST + 1, None), (LAST, 7)])
def test_a_build_that_ends_elsewhere_than_its_checkpoint_is_not_decided(
    node: Node, index: int, crc: int | None
) -> None:
    build = node.build()
    with pytest.raises(FrameError, match=f"the checkpoint was made at entry {index}"):
        build.commit(CHECKPOINT, index, crc or node.giver.entries[index].header_crc)
    assert node.open().installed is None


@row("install/ without INSTALL")
def test_what_was_built_is_built_upon_and_counts_for_nothing_before(node: Node) -> None:
    giver, start = node.giver, node.giver.bases[BEGIN]
    build = LogBuild.begin(node.fs, DATA, GROUP, giver.previous(start))
    node.fs.restart()  # type: ignore[union-attr]
    found = LogBuild.resume(node.fs, DATA, GROUP)
    assert found is not None
    assert (found.next_position, found.tail) == (start, build.previous)
    found.append_raw(giver.raw(start, start + 6000))
    durable = found.tail
    for seed in range(5):
        node.fs.crash(seed)  # type: ignore[union-attr]
        opened = node.open()
        assert opened.installed is None
        node.check_old(opened)
        opened.close(clean=False)
        again = LogBuild.resume(node.fs, DATA, GROUP)
        assert again is not None
        assert again.tail == durable
        again.close()
    node.check_new(node.install())


@pytest.mark.parametrize("what", ["FIRST", "GENESIS", "segment", "no FIRST", "first segment", "header"])
def test_a_build_that_rotted_is_begun_again(node: Node, what: str) -> None:
    fs, log = node.fs, DATA / "install" / "log"
    assert isinstance(fs, MemoryFileSystem)
    build = node.build()
    build.close()
    segments = [log / name for name in fs.listdir(log) if name.endswith(".seg")]
    if what == "FIRST":
        fs.damage(log / "FIRST", 20, b"\xee")
    elif what == "no FIRST":
        fs.unlink(log / "FIRST")
    elif what == "GENESIS":
        fs.damage(DATA / "install" / "GENESIS", 70, b"\xee")
    elif what == "segment":
        fs.unlink(segments[1])
    elif what == "first segment":
        fs.unlink(segments[0])
    else:
        fs.damage(segments[-1], 4096 + 3, b"\xee")
        fs.unlink(log / "CLEAN")
    assert LogBuild.resume(fs, DATA, GROUP) is None
    node.check_new(node.install())


def test_a_full_disk_lets_the_build_go_on_later(node: Node) -> None:
    fs, giver = node.fs, node.giver
    assert isinstance(fs, MemoryFileSystem)
    build = LogBuild.begin(fs, DATA, GROUP, giver.previous(giver.bases[BEGIN]))
    build.append_raw(giver.raw(build.next_position, build.next_position + 3000))
    fs.space_left = 0
    at = build.tail.end_position
    with pytest.raises(OutOfSpaceError):
        build.append_raw(giver.raw(build.next_position, build.next_position + 9000))
    assert build.next_position == build.tail.end_position >= at
    fs.space_left = 1 << 40
    end = giver.entries[LAST].end_position
    build.append_raw(giver.raw(build.next_position, end))
    node.commit(build)
    node.check_new(node.open())


def test_discarding(node: Node) -> None:
    node.build().discard()
    assert not node.fs.exists(DATA / "install")
    assert LogBuild.resume(node.fs, DATA, GROUP) is None


# When the old log went on


@row("INSTALL, and the log went on")
@pytest.mark.parametrize("upto", [LAST, LAST + 3])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_log_that_a_leader_brought_forward_stays(giver: Giver, upto: int, damaged: bool) -> None:
    """Between the decision and the stop a leader, perhaps a new one with a longer log, went on with the old one."""
    node = Node(giver, MemoryFileSystem())
    node.create()
    opened = node.open()
    node.commit(node.build())
    opened.hard_state_store.save(HardState(2, NOBODY, 5))
    opened.log.append(giver.entries[6 : upto + 1])
    opened.close(clean=True)
    if damaged:
        base = max(base for base in giver.bases if base <= giver.entries[LAST].position)
        offset = 4096 + giver.entries[LAST].position - base + 100
        node.fs.damage(DATA / "log" / f"{base:020d}.seg", offset, b"\xee")  # type: ignore[union-attr]
    opened = node.open()
    assert opened.installed is not None
    assert not opened.installed.done
    assert "brought forward meanwhile" in opened.installed.why
    assert opened.log.tail.index == upto
    if not damaged:
        node.check_old(opened, giver.entries[: upto + 1])
    assert not {"install", "INSTALL"} & set(node.fs.listdir(DATA))
    assert opened.hard_state_store.load() == HardState(2, NOBODY, 5)


def test_a_log_that_begins_above_stays(giver: Giver) -> None:
    node = Node(giver, MemoryFileSystem())
    node.create(old=giver.entries)
    node.fs.unlink(DATA / "hard_state")
    store = HardStateStore.create(node.fs, DATA / "hard_state", GROUP)
    store.save(HardState(2, NOBODY, 0))
    opened = node.open()
    node.commit(node.build())
    opened.log.remove_files(opened.log.trim(giver.bases[-2]))
    assert opened.log.first_index > LAST
    opened.close(clean=True)
    opened = node.open()
    assert opened.installed is not None
    assert "begins above entry 37" in opened.installed.why
    assert opened.log.tail.index == len(giver.entries) - 1


@row("INSTALL, and the log does not open")
def test_a_log_that_does_not_open_is_replaced_and_the_vote_withheld(node: Node) -> None:
    node.commit(node.build())
    fs = node.fs
    assert isinstance(fs, MemoryFileSystem)
    for name in fs.listdir(DATA / "log"):
        if name.endswith(".seg"):
            fs.unlink(DATA / "log" / name)
    opened = node.open()
    withheld = vote_withheld.load(fs, DATA, GROUP)
    assert withheld is not None
    assert (withheld.index, withheld.term) == (LAST, 2)
    assert "could not be opened" in withheld.reason
    node.check_new(opened)


@row("INSTALL damaged")
@pytest.mark.parametrize("moved", [False, True])
def test_a_damaged_INSTALL_begins_nothing_and_finishes_what_was_begun(node: Node, moved: bool) -> None:
    fs = node.fs
    assert isinstance(fs, MemoryFileSystem)
    node.commit(node.build())
    if moved:
        fs.fail_call(fs.calls + _calls_until_moved(node.giver), errno.EIO)
        with pytest.raises(StorageError):
            node.open()
        assert not fs.exists(DATA / "log")
    fs.damage(DATA / "INSTALL", 30, b"\xee")
    fs.restart()
    opened = node.open()
    assert opened.installed is not None
    assert opened.installed.done is moved
    if moved:
        node.check_new(opened)
    else:
        node.check_old(opened)
        assert "INSTALL is damaged" in opened.installed.why
    assert not fs.exists(DATA / "INSTALL")


def _calls_until_moved(giver: Giver) -> int:
    """Calls of an opening up to the rename that gives the new log its name."""
    node = Node(giver, MemoryFileSystem())
    node.create()
    node.commit(node.build())
    before = node.fs.calls  # type: ignore[union-attr]
    real, counted = node.fs.rename, []

    def rename(source: Path, target: Path) -> None:
        if target == DATA / "log":
            counted.append(node.fs.calls + 1 - before)  # type: ignore[union-attr]
        real(source, target)

    node.fs.rename = rename  # type: ignore[method-assign]
    node.open()
    return counted[0]


def test_INSTALL_of_a_newer_release_is_refused(node: Node) -> None:
    node.commit(node.build())
    data = bytearray(read_file(node.fs, DATA / "INSTALL"))
    data[9] += 1
    data[4:8] = crc32c(bytes(data[8:])).to_bytes(4)
    node.fs.damage(DATA / "INSTALL", 0, bytes(data))  # type: ignore[union-attr]
    with pytest.raises(CorruptLogError, match="start a newer RaftMQ"):
        node.open()
    assert node.fs.exists(DATA / "install" / "log")


# Crashes


def fail_each_call(giver: Giver, kind: str, step: int, seeds: int) -> None:
    """An installation for every `step`-th call of the file system, in which that one fails."""

    def run(node: Node) -> None:
        node.build(piece=6000).close()
        node.commit(node.build(piece=6000))
        node.open().close(clean=False)

    node = Node(giver, MemoryFileSystem())
    node.create()
    before = node.fs.calls  # type: ignore[union-attr]
    run(node)
    total, outcomes = node.fs.calls, set()  # type: ignore[union-attr]
    for number in range(before + 1, total + 1, step):
        for seed in range(seeds):
            node = Node(giver, fs := MemoryFileSystem())
            node.create()
            fs.cut_power_at(number) if kind == "cut" else fs.fail_call(number, errno.EIO)
            with pytest.raises((StorageError, PowerCut)):
                run(node)
            context = f"{kind}, call {number} of {before}..{total}, seed {seed}, last calls {fs.trace[-5:]}"
            fs.restart() if "kill" in kind else fs.crash(seed)
            opened = node.open()
            done = opened.log.tail.index == LAST
            outcomes.add((done, opened.installed is not None))
            assert opened.installed is None or opened.installed.done, context
            assert vote_withheld.load(fs, DATA, GROUP) is None, context
            if not done:
                node.check_old(opened)
                opened.close(clean=False)
                fs.crash(seed)
                opened = node.install()
            node.check_new(opened)
            fs.crash(seed)
            assert node.open().log.tail.index == len(giver.entries) - 1, context
    assert outcomes >= {(False, False), (True, True)}


@pytest.mark.parametrize("kind", ["cut", "EIO then kill", "EIO then power cut"])
def test_calls_of_an_installation_fail_once(giver: Giver, kind: str) -> None:
    fail_each_call(giver, kind, step=1 if kind == "cut" else 3, seeds=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cut", "EIO then kill", "EIO then power cut"])
def test_every_call_of_an_installation_fails_once(giver: Giver, kind: str) -> None:
    fail_each_call(giver, kind, step=1, seeds=1 if "kill" in kind else 8)


# Fuzz


def test_any_flipped_or_missing_byte_of_INSTALL_is_damage(node: Node) -> None:
    node.commit(node.build())
    data = read_file(node.fs, DATA / "INSTALL")
    for at in range(len(data)):
        for bad in (data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :], data[:at]):
            assert install_file.decode(bad, GROUP) is None
    assert install_file.decode(data, GROUP + 1) is None


@pytest.mark.parametrize("seed", range(30))
def test_raw_frames_are_taken_whole_and_in_order_or_not_at_all(giver: Giver, seed: int) -> None:
    """Pieces of any size, flipped, doubled, left out, from elsewhere: what counts in the end is the peers' log."""
    rng = Random(seed)
    node = Node(giver, MemoryFileSystem())
    node.create()
    build = LogBuild.begin(node.fs, DATA, GROUP, giver.previous(giver.bases[BEGIN]))
    end = giver.entries[LAST].end_position
    refused = 0
    while build.next_position < end:
        at = build.next_position
        data = giver.raw(at, min(end, at + rng.choice((1, 63, 64, 65, 700, 3000, 9000))))
        match rng.randrange(8):
            case 0:
                flip = rng.randrange(len(data))
                data = data[:flip] + bytes([data[flip] ^ 1 << rng.randrange(8)]) + data[flip + 1 :]
            case 1:
                data = giver.raw(start := rng.randrange(end), start + 500)
            case 2:
                data = rng.randbytes(rng.randrange(300))
            case 3:
                data += data
        try:
            build.append_raw(data[: end - at])
        except FrameError:
            refused += 1
            assert build.next_position == build.tail.end_position
        if rng.randrange(6) == 0:
            node.fs.restart()  # type: ignore[union-attr]
            found = LogBuild.resume(node.fs, DATA, GROUP)
            assert found is not None
            assert found.tail == build.tail
            build = found
    node.commit(build)
    node.check_new(node.open())
    assert refused


# Joining


def joiner(genesis: Genesis, **change: object) -> Identity:
    return Identity(genesis.cluster_uuid, GROUP, NodeId(4), UUID(int=44), 0)._replace(**change)  # type: ignore[arg-type]


def test_a_joining_node_takes_the_log_from_where_it_begins(giver: Giver) -> None:
    node = Node(giver, MemoryFileSystem())
    create_joining_dir(node.fs, DATA, joiner(giver.genesis), giver.genesis)
    opened = node.open()
    assert opened.hard_state_store.load() == HardState(0, NOBODY, 0)
    assert opened.log.read_entries(0, opened.log.tail.index + 1, 1 << 20) == [giver.first]
    opened.close(clean=True)
    node.check_new(node.install())


def test_a_joining_node_of_a_cluster_that_went_on_from_another(giver: Giver) -> None:
    node = Node(giver, MemoryFileSystem())
    identity = joiner(giver.genesis, cluster_uuid=UUID(int=9), origin=(Ancestor(giver.genesis.cluster_uuid, 30),))
    create_joining_dir(node.fs, DATA, identity, giver.genesis)
    assert node.open().identity == identity


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cluster_uuid": UUID(int=9)}, "different clusters"),
        ({"origin": (Ancestor(UUID(int=9), 3),)}, "different clusters"),
        ({"group_id": 8}, "different clusters or groups"),
        ({"node_id": NodeId(1)}, "(?s)is a voter of this cluster since it began.*raftmq node replace 1"),
        ({"node_id": NodeId(1), "node_uuid": UUID(int=11)}, "is a voter of this cluster since it began"),
    ],
)
def test_who_cannot_join(giver: Giver, change: dict[str, object], says: str) -> None:
    with pytest.raises(IdentityError, match=says):
        create_joining_dir(MemoryFileSystem(), DATA, joiner(giver.genesis, **change), giver.genesis)


def test_a_directory_that_is_used_is_refused(node: Node) -> None:
    with pytest.raises(IdentityError, match="is not empty"):
        create_joining_dir(node.fs, DATA, joiner(node.giver.genesis), node.giver.genesis)
