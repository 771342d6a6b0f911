"""The work beside apply: RUN never ahead of the disk, checkpoints when they are due, alarms when they fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cluster.state import table_checksums
from cluster.state.checkpointer import AGAIN_MS, ALARM, head_start_ms
from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import StorageError
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.run_file import RunFile, RunState, load_run
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from statemachine.rows.kv import KVCorruptError

Place = Any


def test_run_tells_of_this_life_and_of_the_one_before(place: Place) -> None:
    storage = place.open()
    assert storage.recovery.status(storage.checkpointer.run).previous is None
    run = load_run(place.fs, place.path, 1)
    assert run is not None
    assert (run.state, run.pid, run.synced_index, run.checkpoint_index) == (RunState.RUNNING, 42, -1, -1)
    place.write(storage, 10)
    place.clock.now_ms = 5000
    storage.checkpointer.drain([True])
    run = load_run(place.fs, place.path, 1)
    assert run is not None
    assert run.synced_index == 10
    assert run.log_flushed_ms == run.queues_flushed_ms == run.index_flushed_ms == place.clock.wall_ms()
    storage.close(clean=True)
    run = load_run(place.fs, place.path, 1)
    assert run is not None
    assert (run.state, run.synced_index, run.checkpoint_index) == (RunState.STOPPED, 10, 10)


@pytest.mark.parametrize(("boot", "ended"), [(bytes(16), "process_died"), (b"\1" * 16, "machine_restarted")])
def test_how_the_run_before_ended(place: Place, boot: bytes, ended: str) -> None:
    place.run(5, clean=False)
    place.environment["boot_id"] = lambda: boot
    storage = place.open()
    previous = storage.recovery.status(storage.checkpointer.run).previous
    assert (previous.ended, previous.pid, previous.synced_index) == (ended, 42, 5)
    storage.close(clean=True)


def test_checkpoints_are_made_by_bytes_by_time_and_at_the_end(tmp_path: Path, new_place: Any) -> None:
    place = new_place(tmp_path / "n1", checkpoint_bytes=20_000, checkpoint_every_ms=60_000)
    storage = place.open()
    checkpointer, made = storage.checkpointer, []

    def tick(entries: int, ms: int) -> None:
        place.write(storage, entries)
        place.clock.now_ms += ms
        checkpointer.drain([True])
        made.append(checkpointer.run.checkpoint_index)

    tick(2, 1000)
    tick(60, 1000)  # over 20,000 bytes
    tick(1, 1000)
    tick(0, 56_000)
    assert not checkpointer.due
    tick(0, 4_000)  # a minute since the last try, one entry since the last checkpoint
    tick(0, 100_000)  # nothing new
    tick(1, 0)
    assert made == [-1, 62, 62, 62, 63, 63, 64]
    place.write(storage, 1)
    storage.close(clean=True)
    assert [name[:20].lstrip("0") for name in place.checkpoints().names()] == ["65", "64"]


def test_groups_that_start_together_make_their_checkpoints_one_after_the_other() -> None:
    for groups in range(1, GROUPS_MAX + 1):
        moments = sorted(60_000 - head_start_ms(group, 60_000) for group in range(FIRST_GROUP, groups + 1))
        gaps = [after - before for before, after in pairwise([*moments, moments[0] + 60_000])]
        assert min(gaps) >= 60_000 // groups // 3
    assert head_start_ms(FIRST_GROUP, 60_000) == 0


class FullDisk(OsFileSystem):
    """Has no space for another name while it is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.refused: Callable[[], object] = lambda: None
        """Called when it refuses one."""

    def link(self, source: Path, target: Path) -> None:
        if self.is_full:
            self.refused()
            raise OSError(errno.ENOSPC, "no space left", str(target))
        super().link(source, target)


def test_a_failed_checkpoint_raises_an_alarm_and_the_next_one_ends_it(tmp_path: Path, new_place: Any) -> None:
    disk = FullDisk()
    place = new_place(tmp_path / "n1", disk)
    storage, alarms = place.open(), place.alarms
    place.write(storage, 10)
    disk.is_full = True
    storage.checkpointer.checkpoint()
    (alarm,) = alarms.all()
    assert alarm.key == ALARM
    assert "no space left" in alarm.text
    assert place.fs.listdir(place.path / "checkpoints") == []
    assert storage.checkpointer.run.checkpoint_index == -1
    disk.is_full = False
    storage.checkpointer.checkpoint()
    assert alarms.all() == []
    assert storage.checkpointer.run.checkpoint_index == 10
    storage.close(clean=True)


def test_a_checkpoint_that_failed_is_not_tried_again_at_every_look(tmp_path: Path, new_place: Any) -> None:
    """Each attempt flushes all tables. The log has grown enough at every look until one succeeds."""
    disk = FullDisk()
    place = new_place(tmp_path / "n1", disk, checkpoint_bytes=10_000, checkpoint_every_ms=60_000)
    storage = place.open()
    checkpointer = storage.checkpointer
    tried: list[int] = []
    disk.is_full, disk.refused = True, lambda: tried.append(place.clock.now_ms)
    place.write(storage, 60)
    begun_ms = place.clock.now_ms
    for _ in range(25):
        checkpointer.drain([True])
        place.clock.now_ms += AGAIN_MS // 10
    assert tried == [begun_ms, begun_ms + AGAIN_MS, begun_ms + 2 * AGAIN_MS]
    disk.is_full = False
    checkpointer.want_checkpoint()
    checkpointer.drain([True])
    assert checkpointer.run.checkpoint_index == 60, "who asks does not wait"
    place.write(storage, 60)
    checkpointer.drain([True])
    assert checkpointer.run.checkpoint_index == 120, "after a success the bytes count at once"
    storage.close(clean=True)


def test_a_run_that_cannot_be_written_stops_the_node(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = place.open()
    place.write(storage, 3)

    def failing(self: RunFile, run: Any) -> None:
        raise StorageError("fdatasync failed")

    monkeypatch.setattr(RunFile, "write", failing)
    with pytest.raises(StorageError):
        storage.checkpointer.drain([True])
    storage.close(clean=True)  # says why it could not, and lets go of everything
    monkeypatch.undo()
    run = load_run(place.fs, place.path, 1)
    assert run is not None
    assert run.state is RunState.RUNNING
    place.run(0)


def test_damage_met_by_the_keeper_stops_the_node(place: Place, alarms: Any) -> None:
    storage = place.open()
    told: list[KVCorruptError] = []
    storage.corrupted.add(told.append)
    place.write(storage, 3)

    def corrupt() -> None:
        error = KVCorruptError("rotten")
        storage.kv.on_corruption(error)
        raise error

    storage.kv.flush_wal, flush = corrupt, storage.kv.flush_wal
    with pytest.raises(KVCorruptError):
        storage.checkpointer.drain([True])
    storage.kv.flush_wal = flush
    assert len(told) == 1
    storage.close(clean=False)
    assert (place.path / "STATE_SUSPECT").exists()


def test_the_list_of_tables_follows_the_tables(place: Place) -> None:
    storage = place.open()
    place.write(storage, 20)
    storage.kv.flush_tables()
    storage.checkpointer.sync()
    listed = table_checksums.load(place.fs, place.path / "state", 1)
    assert listed is not None
    assert sorted(listed) == sorted(storage.kv.tables())
    storage.close(clean=True)
    assert table_checksums.load(MemoryFileSystem(), Path("/no"), 1) == {}
