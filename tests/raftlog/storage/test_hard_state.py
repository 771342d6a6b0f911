"""Term and vote: what a rotten, torn or missing slot does."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from raftlog.errors import CorruptLogError, InvariantViolationError, StorageError
from raftlog.storage.files.hard_state import SLOT_OFFSETS, HardStateStore
from raftlog.types import HardState, NodeId

PATH = Path("/data/hard_state")
ROTS = [(0, b"\x00" * 64), (0, b"\xff"), (5, b"\xff"), (20, b"\xff"), (63, b"\xff")]


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.mkdir(PATH.parent)
    return fs


def state(term: int, vote: int = 0, commit: int = 0) -> HardState:
    return HardState(term, NodeId(vote), commit)


@pytest.mark.parametrize("saves", [0, 1, 2])
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize(("at", "rot"), ROTS)
def test_one_rotten_slot_is_harmless(fs: MemoryFileSystem, saves: int, slot: int, at: int, rot: bytes) -> None:
    store = HardStateStore.create(fs, PATH, 7)
    for term in range(1, saves + 1):
        store.save(state(term, 2, 5))
    fs.damage(PATH, SLOT_OFFSETS[slot] + at, rot)
    fs.restart()
    store = HardStateStore.open(fs, PATH, 7)
    assert store.load() == (state(saves, 2, 5) if saves else state(0))
    assert store.healed
    fs.damage(PATH, SLOT_OFFSETS[1 - slot] + at, rot)
    fs.crash(0)
    assert HardStateStore.open(fs, PATH, 7).load().term == saves, "opening healed the first slot durably"


def test_two_rotten_slots_are_said(fs: MemoryFileSystem) -> None:
    HardStateStore.create(fs, PATH, 7).save(state(3, 1))
    for offset in SLOT_OFFSETS:
        fs.damage(PATH, offset + 30, b"\xee")
    with pytest.raises(CorruptLogError, match=r"both slots .* must not vote again"):
        HardStateStore.open(fs, PATH, 7)


def test_missing_file_and_other_group_are_said(fs: MemoryFileSystem) -> None:
    with pytest.raises(CorruptLogError, match="is missing"):
        HardStateStore.open(fs, PATH, 7)
    HardStateStore.create(fs, PATH, 7).close()
    with pytest.raises(CorruptLogError, match="both slots"):
        HardStateStore.open(fs, PATH, 8)


def test_every_call_of_a_save_may_be_the_last(fs: MemoryFileSystem) -> None:
    """Old or new after a power cut, new if the save returned; and a saved vote never changes within its term."""
    for number in range(1, 9):
        for seed in range(20):
            fs = MemoryFileSystem()
            fs.mkdir(PATH.parent)
            store = HardStateStore.create(fs, PATH, 7)
            saved = state(0)
            fs.cut_power_at(fs.calls + number)
            handed = saved
            try:
                for handed in (state(1, 2, 9), state(4, 3, 9)):
                    store.save(handed)
                    saved = handed
            except PowerCut:
                pass
            fs.crash(seed)
            found = HardStateStore.open(fs, PATH, 7).load()
            assert found in (saved, handed), (number, seed)
            fs.crash(seed + 1)
            assert HardStateStore.open(fs, PATH, 7).load() == found, "what was loaded stays"


def test_a_vote_read_from_memory_is_made_durable(fs: MemoryFileSystem) -> None:
    """A failed sync leaves the new vote readable but not on disk; who reads it must not believe it is saved."""
    store = HardStateStore.create(fs, PATH, 7)
    fs.fail_call(fs.calls + 2)
    with pytest.raises(StorageError, match="saving term and vote"):
        store.save(state(6, 3))
    with pytest.raises(StorageError):
        store.save(state(7, 1))
    fs.restart()
    assert HardStateStore.open(fs, PATH, 7).load() == state(6, 3)
    fs.crash(0)
    assert HardStateStore.open(fs, PATH, 7).load() == state(6, 3)


def test_commit_index_alone_costs_no_sync(fs: MemoryFileSystem) -> None:
    store = HardStateStore.create(fs, PATH, 7)
    store.save(state(1, 2, 3))
    calls = fs.calls
    store.save(state(1, 2, 99))
    assert fs.calls == calls
    store.close()
    assert HardStateStore.open(fs, PATH, 7).load() == state(1, 2, 99)


@pytest.mark.parametrize("worse", [state(4, 1), state(5, 3), state(5, 0)])
def test_a_term_never_falls_and_a_vote_never_changes(fs: MemoryFileSystem, worse: HardState) -> None:
    store = HardStateStore.create(fs, PATH, 7)
    store.save(state(5, 1))
    with pytest.raises(InvariantViolationError):
        store.save(worse)
    assert store.load() == state(5, 1)


def test_full_disk_is_named(fs: MemoryFileSystem) -> None:
    store = HardStateStore.create(fs, PATH, 7)
    fs.fail_call(fs.calls + 1, errno.ENOSPC)
    with pytest.raises(StorageError, match="no space left"):
        store.save(state(1, 1))
