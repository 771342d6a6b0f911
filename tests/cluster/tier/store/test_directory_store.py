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

from cluster.tier.store.directory_store import DirectoryFiles, DirectoryStore
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


class Calls:
    """Records fsync, link, rename and mkdir in order, by the path that they are about."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        self._sync, self._link, self._rename, self._mkdir = os.fsync, os.link, Path.rename, Path.mkdir
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "link", self.link)
        monkeypatch.setattr(Path, "rename", lambda source, target: self.rename(source, target))
        monkeypatch.setattr(Path, "mkdir", lambda path, mode: self.mkdir(path, mode))

    def fsync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        self.seen.append(("sync", "temporary" if path.parent.name == "tmp" else path.name))
        self._sync(fd)

    def link(self, source: Path, target: Path) -> None:
        self.seen.append(("link", target.name))
        self._link(source, target)

    def rename(self, source: Path, target: Path) -> Path:
        self.seen.append(("rename", target.name))
        return self._rename(source, target)

    def mkdir(self, path: Path, mode: int) -> None:
        self._mkdir(path, mode)
        self.seen.append(("mkdir", path.name))


def test_bytes_name_and_new_folders_are_synced_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    files = DirectoryFiles(tmp_path / "root")
    files.create("c1/log/a", b"1")
    seen = calls.seen
    top = tmp_path.name
    for folder, parent in (("root", top), ("c1", "root"), ("log", "c1")):
        assert seen.index(("mkdir", folder)) < seen.index(("sync", parent))
        assert seen.index(("sync", parent)) < seen.index(("link", "a"))
    assert seen.index(("sync", "temporary")) < seen.index(("link", "a"))
    assert seen[-2:] == [("link", "a"), ("sync", "log")]
    files.replace("c1/log/a", b"1", files.get("c1/log/a", 10).tag)  # makes the folder of the lock
    del seen[:]
    files.replace("c1/log/a", b"2", files.get("c1/log/a", 10).tag)
    assert seen == [("sync", "temporary"), ("rename", "a"), ("sync", "log")]


def test_folders_of_another_process_are_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have made them and then have lost power before it synced them."""
    (tmp_path / "c1" / "log").mkdir(parents=True)
    calls = Calls(monkeypatch)
    DirectoryFiles(tmp_path).create("c1/log/a", b"1")
    assert {("sync", tmp_path.name), ("sync", "c1"), ("sync", "log")} <= set(calls.seen)


def test_what_exists_is_durable_before_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = DirectoryFiles(tmp_path)
    files.create("log/a", b"1")
    calls = Calls(monkeypatch)
    with pytest.raises(AlreadyExists):
        files.create("log/a", b"1")
    assert calls.seen == [("sync", "a"), ("sync", "log")]


@pytest.mark.parametrize("point", ["fsync", "link"])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    files = DirectoryFiles(tmp_path)
    files.create("log/a", b"1")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, point, fail)
    with pytest.raises(Unreachable, match="Input/output"):
        files.create("log/b", b"2")
    assert files.list("", "", 10) == files.list("log", "", 10)
    assert [info.name for info in files.list("", "", 10)] == ["log/a"]
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


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    files = DirectoryFiles(tmp_path)
    files.create("a", b"1")
    with pytest.raises(AlreadyExists):
        files.create("a", b"2")
    with pytest.raises(FileExistsError):  # the name was taken between the look and the naming
        files._name_it(tmp_path / "b", tmp_path / "a")
    assert files.get("a", 1).data == b"1"


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


def test_a_temporary_file_that_vanishes_is_no_answer_about_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DirectoryFiles(tmp_path)

    def swept(temporary: Path, path: Path) -> None:
        temporary.unlink()
        os.link(temporary, path)

    monkeypatch.setattr(files, "_name_it", swept)
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


async def test_a_dead_disk_does_not_hold_up_the_loop_or_the_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(DirectoryFiles, "head", lambda self, name: os.read(read, 1))
    store = DirectoryStore(tmp_path)
    hung = asyncio.ensure_future(store.head("a"))
    with pytest.raises(NotFound):
        await store.get("b", 1)  # another thread
    await store.close()
    hung.cancel()
    os.close(write)
    with pytest.raises(asyncio.CancelledError):
        await hung
