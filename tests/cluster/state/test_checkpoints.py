"""Checkpoints: a copy of one moment although rows are written, its manifest, the two that stay, what a crash leaves."""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from cluster.state import manifest as manifests
from cluster.state.checkpoints import NEXT, Checkpoints, mark_of
from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import CorruptLogError
from raftlog.storage.files.fs import OsFileSystem
from statemachine.broker_state import AppliedMark
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.rows import meta_keys
from statemachine.rows.kv import CQ, META, OFFSETS, Batch
from statemachine.rows.live_copy import CheckpointBusyError, copy_database
from statemachine.rows.rocksdb_store import RocksKV

Place = Any


def write(kv: Any, n: int) -> None:
    batch = Batch()
    batch.put(CQ, struct.pack(">IIQ", 1, n % 3, n), n.to_bytes(8) * 16)
    batch.put(META, meta_keys.APPLIED_KEY, meta_keys.APPLIED.pack(1, n, n * 100, 0, n))
    batch.put(OFFSETS, b"g\0" + n.to_bytes(8), n.to_bytes(8))
    kv.write(batch)


@pytest.mark.parametrize("flushes", [False, True])
def test_a_copy_is_of_one_moment_whatever_is_written(tmp_path: Path, flushes: bool) -> None:
    """Also while tables are flushed by somebody else: those copies are made again, or given up."""
    kv = RocksKV(str(tmp_path / "state"))
    checkpoints = Checkpoints(OsFileSystem(), tmp_path, 1)
    stop, pause = threading.Event(), threading.Event()
    written = 0

    def writer() -> None:
        nonlocal written
        while not stop.is_set():
            write(kv, written)
            written += 1
            pause.wait(0.0002)
            if flushes and written % 200 == 0:
                kv.flush_tables()

    thread = threading.Thread(target=writer)
    thread.start()
    made = 0
    try:
        while made < 3:
            try:
                checkpoint = checkpoints.make(kv, {}, 0)
            except CheckpointBusyError:
                continue
            made += 1
            mark = checkpoint.manifest.mark
            copy = tmp_path / "copy"
            shutil.copytree(checkpoint.path, copy)
            with CheckpointReader(copy, strict=True) as reader:
                assert reader.mark == mark
                count = mark.index + 1
                assert sum(1 for _ in reader.rows(CQ)) == count
                assert sum(1 for _ in reader.rows(OFFSETS)) == count
            opened = RocksKV(str(copy))
            assert mark_of(opened) == mark
            opened.close()
            shutil.rmtree(copy)
            assert list(checkpoints.problems(checkpoint)) == []
            checkpoints.prune()
    finally:
        stop.set()
        thread.join()
    assert written > 0
    kv.close()


@pytest.mark.parametrize("flushes", [False, True])
def test_what_changes_while_it_is_copied_is_copied_again(tmp_path: Path, flushes: bool) -> None:
    """A write before the look moves the cut; tables that came, and a WAL that went, make it begin anew."""
    kv = RocksKV(str(tmp_path / "state"))
    for n in range(5):
        write(kv, n)
    kv.flush_tables()
    looks = 0

    def look() -> AppliedMark:
        nonlocal looks
        looks += 1
        if looks == 1:
            for n in range(5, 9):
                write(kv, n)
            if flushes:
                kv.flush_tables()
        return mark_of(kv)

    mark = copy_database(OsFileSystem(), kv, tmp_path / "state", tmp_path / "copy", look)
    kv.close()
    assert mark.index == 8
    assert looks >= 2
    with CheckpointReader(tmp_path / "copy", strict=True) as reader:
        assert reader.mark == mark
        assert sum(1 for _ in reader.rows(CQ)) == 9
        assert sum(1 for _ in reader.rows(OFFSETS)) == 9


def test_two_are_kept_and_tables_are_shared(place: Place) -> None:
    for _ in range(4):
        place.run(5, checkpoint=True)
    first, second = place.checkpoints().names()
    assert [manifests.index_of(first), manifests.index_of(second)] == [20, 15]
    tables = [file for file in (place.path / "checkpoints" / first).glob("*.sst") if file.stat().st_nlink > 1]
    assert tables
    assert place.checkpoints().names() == [one.path.name for one in place.checkpoints().all()]


def test_an_installed_checkpoint_stays_as_it_was(place: Place) -> None:
    place.run(20, checkpoint=True)
    (checkpoint, *_) = place.checkpoints().all()
    shutil.rmtree(place.path / "state")
    place.run(30)
    assert list(place.checkpoints().problems(checkpoint)) == []


def test_a_manifest_is_its_own_proof(place: Place) -> None:
    place.run(20, checkpoint=True)
    (checkpoint, *_) = place.checkpoints().all()
    data = manifests.encode(checkpoint.manifest, 1)
    assert manifests.decode(data, 1, Path("x")) == checkpoint.manifest
    assert manifests.decode(data, 2, Path("x")) is None
    for at in range(len(data)):
        if at not in (8, 9):
            assert manifests.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 1, Path("x")) is None
    from raftlog.storage.files.sealed_map import seal

    assert manifests.decode(seal(manifests.MAGIC, 10, 1, {"index": 1}), 1, Path("x")) is None
    with pytest.raises(CorruptLogError, match="a newer RaftMQ"):
        manifests.decode(seal(manifests.MAGIC, 11, 1, {}), 1, Path("x"))


def test_problems_name_what_is_missing_changed_or_too_much(place: Place) -> None:
    place.run(20, checkpoint=True)
    (checkpoint, *_) = place.checkpoints().all()
    (checkpoint.path / "CURRENT").unlink()
    (checkpoint.path / "new").write_bytes(b"x")
    place.flip(f"checkpoints/{checkpoint.path.name}/MANIFEST-*", 5)
    found = {path.name.split("-")[0]: why for path, why in place.checkpoints().problems(checkpoint)}
    assert found == {
        "CURRENT": "is missing",
        "new": "is not in the manifest",
        "MANIFEST": "does not have the size and CRC in the manifest",
    }


def test_a_crash_at_any_call_leaves_whole_checkpoints(tmp_path: Path) -> None:
    """The crash comes at every call that changes the disk: checkpoints that have a name are whole, and the next one can
    be made."""
    number = 0
    outcomes = set()
    while True:
        fs = MemoryFileSystem()
        fs.mkdir(Path("/d"))
        kv = MemoryKV(fs=fs)
        checkpoints = Checkpoints(fs, Path("/d"), 1)
        for n in range(3):
            write(kv, n)
            checkpoints.make(kv, {}, 0)
            checkpoints.prune()
        before = fs.calls
        fs.cut_power_at(before + 1 + number)
        write(kv, 3)
        try:
            checkpoints.make(kv, {}, 0)
            checkpoints.prune()
            break
        except PowerCut:
            fs.crash(number)
        names = checkpoints.names()
        assert len(names) >= 2, number
        for one in checkpoints.all():
            assert list(checkpoints.problems(one)) == [], number
            loaded = MemoryKV.load(fs, one.path)
            assert mark_of(loaded) == one.manifest.mark
        assert len(checkpoints.all()) >= 2, number
        outcomes.add(manifests.index_of(checkpoints.all()[0].path.name))
        checkpoints.make(kv, {}, 0)
        checkpoints.prune()
        assert manifests.index_of(checkpoints.all()[0].path.name) == 3
        assert not fs.exists(checkpoints.path / NEXT)
        number += 1
    assert outcomes == {2, 3}
