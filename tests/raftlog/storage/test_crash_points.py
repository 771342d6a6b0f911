"""Every file-system call of a scripted life fails once, and the power goes in every one: nothing acknowledged is lost.

After each failure the log is opened again and must be a prefix of what was handed to it that contains everything
acknowledged, must take appends, and must survive a second opening.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import StorageError
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import Entry
from tests.support.failing_calls import DATA, KINDS, failed_lives, seeds_of

GROUP = 7
Frames = Callable[..., list[Entry]]


class Life:
    """A log's life, step by step: appends, rolls, idle marks, a conflict over two files, orderly restarts."""

    def __init__(self, fs: MemoryFileSystem, genesis: Genesis, frames: Frames) -> None:
        self.fs = fs
        self.genesis = genesis
        self.frames = frames
        self.acked: list[Entry] = []
        """Entries that a returned call made durable."""
        self.handed: list[Entry] = []
        """The log as it should become if the call under way succeeds."""
        self.before: list[Entry] = []
        """The log as it was before that call; differs from `acked` only where the call cuts a conflict."""

    def run(self) -> None:
        log = SegmentedLog.create(self.fs, DATA, genesis=self.genesis.entry(), segment_size=self.genesis.segment_size)
        self.handed = self.acked = [self.genesis.entry()]
        self.append(log, [100, 0, 700])
        log.write_idle_mark()
        self.append(log, [900] * 3)
        log.prepare_next()
        self.append(log, [1500, 1500, 600, 600])
        self.append(log, [600] * 8)
        log.close(clean=True)
        log = SegmentedLog.open(self.fs, DATA, group_id=GROUP)
        self.append(log, [50])
        self.append(log, [60, 60], cut_to=6, term=2)
        self.append(log, [700] * 9, term=2)
        self.append(log, [800] * 3, term=2)
        log.write_idle_mark()
        self.append(log, [800, 10], cut_to=log.tail.index - 1, term=3)
        self.append(log, [100], cut_to=log.tail.index - 3, term=4)
        log.close(clean=False)
        log = SegmentedLog.open(self.fs, DATA, group_id=GROUP)
        self.append(log, [6000, 20], term=5)
        log.close(clean=True)
        SegmentedLog.open(self.fs, DATA, group_id=GROUP).close(clean=False)

    def append(self, log: SegmentedLog, sizes: list[int], cut_to: int | None = None, term: int = 1) -> None:
        if cut_to is not None:
            self.acked = self.acked[:cut_to]  # a conflict: what it removes was never committed
            tail = log.tail_at(cut_to - 1)
        else:
            tail = log.tail
        batch = self.frames(tail, sizes, term=term)
        before, self.handed = self.handed, self.acked + batch
        self.before = before
        log.append(batch)
        self.acked = self.before = self.handed


def check_after(life: Life, seed: int, context: str) -> None:
    """The invariant: acked is a prefix of what is there, and what is there is a prefix of something handed over."""
    fs = life.fs
    if not life.acked:
        return
    log = SegmentedLog.open(fs, DATA, group_id=GROUP)
    shown = log.read_entries(0, log.tail.index + 1, 1 << 30)
    assert shown[: len(life.acked)] == life.acked, context
    assert any(shown == whole[: len(shown)] for whole in (life.handed, life.before)), context
    fs.crash(seed)
    log = SegmentedLog.open(fs, DATA, group_id=GROUP)
    found = log.read_entries(0, log.tail.index + 1, 1 << 30)
    # What an open log shows it may vouch for to others, so no power cut may take it away again. More may come back: a
    # cut whose sync failed is undone, as if the conflict had not been met yet.
    assert found[: len(shown)] == shown, context
    assert any(found == whole[: len(found)] for whole in (life.handed, life.before)), context
    more = life.frames(log.tail, [10, 300, 3000, 3000], term=9)
    log.append(more)
    log.close(clean=False)
    log = SegmentedLog.open(fs, DATA, group_id=GROUP)
    assert log.read_entries(0, log.tail.index + 1, 1 << 30) == found + more, context


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds_max", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_every_call_fails_once(kind: str, seeds_max: int, genesis: Genesis, frames: Frames) -> None:
    seeds = min(seeds_max, seeds_of(kind))
    lives = failed_lives(kind, lambda fs: Life(fs, genesis, frames), first=2, calls_min=100, seeds=seeds)
    for life, seed, context in lives:
        check_after(life, seed, context)


def test_a_log_that_does_not_sync_is_caught(genesis: Genesis, frames: Frames) -> None:
    """The harness itself: on a disk whose syncs do nothing the same check must fail."""
    fs = MemoryFileSystem()
    fs.syncs_lie = True
    fs.mkdir(DATA)
    life = Life(fs, genesis, frames)
    life.run()
    fs.syncs_lie = False
    fs.crash(1)
    with pytest.raises((AssertionError, StorageError)):
        check_after(life, 1, "no syncs")
