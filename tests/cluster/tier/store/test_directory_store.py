"""The directory store: nothing is visible before it is whole, and everything that is answered is on the disk."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.tier.store.directory_store import DirectoryFiles, DirectoryStore, Disk
from cluster.tier.store.errors import AlreadyExists, Denied, Full, NotFound, StoreError, Throttled, Unreachable
from tests.support.pace import at_most

RACERS, INCREMENTS = 8, 50
RACER = """
import asyncio, sys
from pathlib import Path
from cluster.tier.store.directory_store import DirectoryStore
from cluster.tier.store.errors import Conflict

async def main(root, increments):
    store, done = DirectoryStore(Path(root)), 0
    while done < increments:
        now = await store.get("counter", 100)
        try:
            await store.replace("counter", str(int(now.data) + 1).encode(), now.tag)
            done += 1
        except Conflict:
            pass
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


class NotedDisk(Disk):
    """Records sync, link, rename and mkdir in order, by the path that they are about."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def sync(self, path: Path) -> None:
        self.seen.append(("sync", path.name))
        super().sync(path)

    def link(self, source: Path, target: Path) -> None:
        self.seen.append(("link", target.name))
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self.seen.append(("rename", target.name))
        super().rename(source, target)

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self.seen.append(("mkdir", path.name))


def test_names_and_new_folders_are_synced_in_order(tmp_path: Path) -> None:
    disk = NotedDisk()
    files = DirectoryFiles(tmp_path / "root", disk=disk)
    files.create("c1/log/a", b"1")
    seen = disk.seen
    top = tmp_path.name
    for folder, parent in (("root", top), ("c1", "root"), ("log", "c1")):
        assert seen.index(("mkdir", folder)) < seen.index(("sync", parent))
        assert seen.index(("sync", parent)) < seen.index(("link", "a"))
    assert seen[-2:] == [("link", "a"), ("sync", "log")]
    files.replace("c1/log/a", b"1", files.get("c1/log/a", 10).tag)  # makes the folder of the lock
    del seen[:]
    files.replace("c1/log/a", b"2", files.get("c1/log/a", 10).tag)
    assert seen == [("rename", "a"), ("sync", "log")]


def test_bytes_are_synced_before_they_have_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        seen.append(Path(f"/proc/self/fd/{fd}").readlink().parent)
        real(fd)

    class Naming(Disk):
        def link(self, source: Path, target: Path) -> None:
            assert source.parent in seen
            super().link(source, target)

        def rename(self, source: Path, target: Path) -> None:
            assert source.parent in seen
            super().rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    files = DirectoryFiles(tmp_path, disk=Naming())
    files.create("a", b"1")
    del seen[:]
    files.replace("a", b"2", files.get("a", 10).tag)
    assert seen


def test_folders_of_another_process_are_synced_too(tmp_path: Path) -> None:
    """It may have made them and then have lost power before it synced them."""
    (tmp_path / "c1" / "log").mkdir(parents=True)
    disk = NotedDisk()
    DirectoryFiles(tmp_path, disk=disk).create("c1/log/a", b"1")
    assert {("sync", tmp_path.name), ("sync", "c1"), ("sync", "log")} <= set(disk.seen)


def test_what_exists_is_durable_before_that_is_said(tmp_path: Path) -> None:
    disk = NotedDisk()
    files = DirectoryFiles(tmp_path, disk=disk)
    files.create("log/a", b"1")
    del disk.seen[:]
    with pytest.raises(AlreadyExists):
        files.create("log/a", b"1")
    assert disk.seen == [("sync", "a"), ("sync", "log")]


class BadDisk(Disk):
    """Fails at one call, once the test says so."""

    def __init__(self) -> None:
        self.fails_at = ""

    def link(self, source: Path, target: Path) -> None:
        self._look("link")
        super().link(source, target)

    def sync(self, path: Path) -> None:
        self._look("sync")
        super().sync(path)

    def _look(self, point: str) -> None:
        if point == self.fails_at:
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("point", ["sync", "link"])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, point: str) -> None:
    """At most a whole object whose name may not last."""
    disk = BadDisk()
    files = DirectoryFiles(tmp_path, disk=disk)
    files.create("log/a", b"1")
    disk.fails_at = point
    with pytest.raises(Unreachable, match="Input/output"):
        files.create("log/b", b"2")
    whole = {"link": ["log/a"], "sync": ["log/a", "log/b"]}
    assert files.list("", "", 10) == files.list("log", "", 10)
    assert [info.name for info in files.list("", "", 10)] == whole[point]
    assert list((tmp_path / ".raftmq" / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, Full),
        (errno.EDQUOT, Full),
        (errno.EROFS, Denied),
        (errno.EACCES, Denied),
        (errno.EIO, Unreachable),
    ],
)
def test_errors_of_the_system_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(kind) as raised:
        DirectoryFiles(tmp_path).create("a", b"1")
    assert raised.value.fix
    assert not (tmp_path / "a").exists()
    assert list((tmp_path / ".raftmq" / "tmp").iterdir()) == []


class NoLinks(Disk):
    """A file system without hard links. Another process may make a file between two calls."""

    other: Path | None = None

    def link(self, source: Path, target: Path) -> None:
        if self.other is not None:
            self.other.write_bytes(b"of another one")
        raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_file_system_without_hard_links_will_do(tmp_path: Path) -> None:
    disk = NoLinks()
    files = DirectoryFiles(tmp_path, disk=disk)
    files.create("a", b"1")
    with pytest.raises(AlreadyExists):
        files.create("a", b"2")
    assert files.get("a", 1).data == b"1"
    disk.other = tmp_path / "b"  # the name is taken between the look and the naming
    with pytest.raises(AlreadyExists):
        files.create("b", b"2")
    assert files.get("b", 99).data == b"of another one"


def test_a_lock_that_is_not_let_go_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    files = DirectoryFiles(tmp_path, lock_tries=2)
    files.create("a", b"1")
    tag = files.get("a", 1).tag
    files.replace("a", b"1", tag)  # makes the lock file
    with (tmp_path / ".raftmq" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Throttled, match="fuser"):
            files.replace("a", b"2", tag)
    files.replace("a", b"2", tag)
    assert files.get("a", 1).data == b"2"


def test_the_sweep_takes_old_temporary_files_and_nothing_else(tmp_path: Path) -> None:
    files = DirectoryFiles(tmp_path)
    files.create("a", b"1")
    folder = tmp_path / ".raftmq" / "tmp"
    old, new = folder / "old", folder / "new"
    old.write_bytes(b"part")
    new.write_bytes(b"part")
    os.utime(old, (1, 1))
    assert files.sweep(3_600_000) == 1
    assert list(folder.iterdir()) == [new]
    assert files.get("a", 1).data == b"1"
    assert DirectoryFiles(tmp_path / "absent").sweep(0) == 0


class SweptDisk(Disk):
    """Another process sweeps the temporary files too early."""

    def link(self, source: Path, target: Path) -> None:
        source.unlink()
        super().link(source, target)


def test_a_temporary_file_that_vanishes_is_no_answer_about_the_object(tmp_path: Path) -> None:
    files = DirectoryFiles(tmp_path, disk=SweptDisk())
    with pytest.raises(Unreachable, match="vanished"):
        files.create("a", b"1")


def test_the_time_of_an_object_is_that_of_its_file(tmp_path: Path) -> None:
    files = DirectoryFiles(tmp_path)
    files.create("a", b"1")
    os.utime(tmp_path / "a", (1_700_000_000.25, 1_700_000_000.25))
    assert files.head("a").modified_ms == 1_700_000_000_250
    assert files.list("", "", 9) == [files.head("a")]


def test_processes_that_race_lose_no_increment(tmp_path: Path) -> None:
    files = DirectoryFiles(tmp_path)
    files.create("counter", b"0")
    command = [sys.executable, "-c", RACER, str(tmp_path), str(INCREMENTS)]
    racers = [subprocess.Popen(command) for _ in range(RACERS)]
    assert [racer.wait(at_most(60)) for racer in racers] == [0] * RACERS
    assert files.get("counter", 100).data == str(RACERS * INCREMENTS).encode()


async def test_a_dead_disk_does_not_hold_up_the_loop_or_the_close(tmp_path: Path) -> None:
    """Who opens a named pipe waits for its other end."""
    os.mkfifo(tmp_path / "a")
    store = DirectoryStore(tmp_path)
    hung = asyncio.ensure_future(store.get("a", 1))
    with pytest.raises(NotFound):
        await store.get("b", 1)  # another thread
    assert not hung.done()
    await store.close()
    hung.cancel()
    with (tmp_path / "a").open("wb"), pytest.raises(asyncio.CancelledError):
        await hung
