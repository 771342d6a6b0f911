"""A log built aside takes the place of the one that nobody can continue: all of it or nothing, at every crash."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from raftlog.errors import CorruptLogError, StorageError
from raftlog.storage.files import install_file, vote_withheld
from raftlog.storage.files.fs import OsFileSystem, read_file
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.types import NOBODY, HardState
from tests.support.damaged_disk import row
from tests.support.install_node import CHECKPOINT, DATA, GROUP, LAST, Giver, Node


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


class Noting(MemoryFileSystem):
    """Notes what happens to names, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Path]] = []

    def rename(self, source: Path, target: Path) -> None:
        self.seen.append(("named", target))
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.seen.append(("gone", path))
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        self.seen.append(("gone", path))
        super().remove_tree(path)

    def fsync_dir(self, path: Path) -> None:
        self.seen.append(("synced", path))
        super().fsync_dir(path)


def test_the_new_log_has_its_name_on_disk_before_anything_goes(giver: Giver) -> None:
    """Not every file system brings the names of all directories to disk in one order, as the one in memory does."""
    fs = Noting()
    node = Node(giver, fs)
    node.create()
    node.commit(node.build())
    fs.seen.clear()
    node.check_new(node.open())
    seen = fs.seen
    named = seen.index(("named", DATA / "log"))
    gone = next(at for at, (what, _) in enumerate(seen) if what == "gone" and at > named)
    assert {("synced", DATA), ("synced", DATA / "install")} <= set(seen[named:gone])
    assert seen[gone:].index(("gone", DATA / "INSTALL")) < len(seen) - 1 - seen[::-1].index(("synced", DATA)) - gone


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
    with pytest.raises(CorruptLogError, match="newer RaftMQ"):
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
