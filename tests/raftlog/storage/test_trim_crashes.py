"""Every file-system call of trims, removals and prepends fails once, and the power goes in every one.

Afterwards the log opens, is one piece without damage, begins no higher than where it was trimmed, holds all that was
acknowledged above that, and can be trimmed, put together and appended to as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import StorageError
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.log.log_trimmer import LogTrimmer
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.log_build import SegmentBuild
from raftlog.types import EMPTY_TAIL, Entry, LogTail
from tests.support.failing_calls import DATA, KINDS, failed_lives, seeds_of

GROUP = 7
BUILT = DATA / "install" / "backfill.tmp"
Frames = Callable[..., list[Entry]]


class Life:
    """Appends, trims, removals in two steps, restarts, files put in front again, down to GENESIS."""

    def __init__(self, fs: MemoryFileSystem, genesis: Genesis, frames: Frames) -> None:
        self.fs = fs
        self.genesis = genesis
        self.frames = frames
        self.acked: list[Entry] = []
        self.handed: list[Entry] = []
        self.trimmed = 0
        """Position up to which entries may be gone."""

    def run(self) -> None:
        log = SegmentedLog.create(self.fs, DATA, genesis=self.genesis.entry(), segment_size=self.genesis.segment_size)
        self.acked = self.handed = [self.genesis.entry()]
        log.prepare_next()
        self.append(log, 26)
        bases = self.bases()
        self.trim(log, bases[2])
        self.append(log, 1)
        first = self.trimmed_files(log, bases[3])
        second = self.trimmed_files(log, bases[4])
        log.remove_files(second)
        log.remove_files(first)
        log.close(clean=True)
        log = SegmentedLog.open(self.fs, DATA, group_id=GROUP)
        self.append(log, 6)
        for number in (3, 2):
            self.prepend(log, bases[number])
        log.close(clean=False)
        log = SegmentedLog.open(self.fs, DATA, group_id=GROUP)
        self.prepend(log, bases[1])
        self.trim(log, bases[2])
        for number in (1, 0):
            self.prepend(log, bases[number])
        self.append(log, 2)
        log.close(clean=True)

    def bases(self) -> list[int]:
        return [entry.position for entry in self.handed if entry.flags]

    def append(self, log: SegmentedLog, count: int) -> None:
        batch = self.frames(log.tail, [900] * count)
        self.handed = self.acked + batch
        log.append(batch)
        self.acked = self.handed

    def trimmed_files(self, log: SegmentedLog, position: int) -> list[Path]:
        self.trimmed = max(self.trimmed, position)
        return log.trim(position)

    def trim(self, log: SegmentedLog, position: int) -> None:
        log.remove_files(self.trimmed_files(log, position))

    def prepend(self, log: SegmentedLog, base: int) -> None:
        bases = self.bases()
        end = bases[bases.index(base) + 1]
        wanted = [entry for entry in self.acked if base <= entry.position < end]
        build = SegmentBuild(self.fs, BUILT, GROUP, self.tail_before(wanted[0], bases))
        build.append_raw(b"".join(entry.header + entry.payload for entry in wanted))
        log.prepend(build.finish())
        self.trimmed = min(self.trimmed, base)

    def tail_before(self, entry: Entry, bases: list[int]) -> LogTail:
        if entry.index == 0:
            return EMPTY_TAIL
        last = self.acked[entry.index - 1]
        base = max(base for base in bases if base <= last.position)
        return LogTail(last.term, last.index, entry.position, last.header_crc, base, last.timestamp_ms)


def check(life: Life, context: str) -> SegmentedLog:
    log = SegmentedLog.open(life.fs, DATA, group_id=GROUP)
    assert not log.damage.ranges, context
    assert log.report.vote_withheld is None, context
    assert log.first_position <= life.trimmed, context
    found = log.read_entries(log.first_index, log.tail.index + 1, 1 << 30)
    assert found == life.handed[log.first_index : log.first_index + len(found)], context
    assert log.tail.index >= life.acked[-1].index, context
    return log


def check_after(life: Life, seed: int, context: str) -> None:
    if not life.acked:
        return
    log = check(life, context)
    life.handed = life.acked = life.handed[: log.tail.index + 1]
    bases = life.bases()
    life.fs.crash(seed)
    log = check(life, context)
    life.trim(log, bases[min(3, len(bases) - 1)])
    life.fs.crash(seed + 1)
    log = check(life, context)
    while log.first_index:
        life.prepend(log, log.previous.segment_base)
    life.append(log, 5)
    life.fs.crash(seed + 2)
    log = check(life, context)
    assert log.read_entries(0, log.tail.index + 1, 1 << 30) == life.acked, context


def fail_each_call(kind: str, genesis: Genesis, frames: Frames, step: int = 1, seeds: int = 1) -> None:
    """A life for every `step`-th call, in which that one fails."""
    lives = failed_lives(
        kind, lambda fs: Life(fs, genesis, frames), first=3 + KINDS.index(kind), calls_min=150, step=step, seeds=seeds
    )
    for life, seed, context in lives:
        check_after(life, seed, context)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_fail_once(kind: str, genesis: Genesis, frames: Frames) -> None:
    fail_each_call(kind, genesis, frames, step=1 if kind == "cut" else 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_fails_once(kind: str, genesis: Genesis, frames: Frames) -> None:
    fail_each_call(kind, genesis, frames, seeds=seeds_of(kind))


def test_files_removed_before_FIRST_says_so_are_missed(
    genesis: Genesis, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness itself."""

    def remove_files(self: Any, paths: list[Path]) -> int:
        removed: int = sum(self._unlink(path) for path in sorted(paths))
        self._state.fs.fsync_dir(self._state.log)
        self._save_first(lower=False)
        return removed

    monkeypatch.setattr(LogTrimmer, "remove_files", remove_files)
    with pytest.raises((AssertionError, StorageError)):
        fail_each_call("cut", genesis, frames)
