"""A stopped log on a disk in memory that tests damage, and what must hold of it afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import DamagedLogError
from raftlog.frame import tail_after
from raftlog.storage.files import vote_withheld
from raftlog.storage.files.fs import read_file
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.recovery.recovery_table import BY_NAME
from raftlog.storage.segments.segment import (
    LOCAL_HEADER_SIZE,
)
from raftlog.types import EMPTY_TAIL, Entry, LogTail

DATA = Path("/data")
LOG = DATA / "log"
GROUP = 7
Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]

Test = TypeVar("Test", bound=Callable[..., None])


def row(*names: str) -> Callable[[Test], Test]:
    """The test is one of these rows of raftlog/storage/recovery/recovery_table.py."""
    assert set(names) <= set(BY_NAME), names
    return lambda test: test


class Disk:
    """A stopped log of three segments: [0..3], [4..6], [7, 8 | mark | 9]. `entries` is all of it."""

    def __init__(self, new_log: NewLog, frames: Frames, *, clean: bool = False) -> None:
        self.fs, log = new_log()
        self.frames = frames
        self.entries = log.read_entries(0, 1, 1)
        for entry in frames(log.tail, [1000] * 9):
            log.append([entry])
            self.entries.append(entry)
        if clean:
            log.close(clean=True)
        self.fs.restart()
        self.paths = [LOG / name for name in self.fs.listdir(LOG) if name.endswith(".seg")]
        assert [int(path.stem) for path in self.paths] == [0, self.entries[4].position, self.entries[7].position]

    def offset(self, index: int) -> int:
        """Returns the offset of entry `index` in its file."""
        base = max(int(path.stem) for path in self.paths if int(path.stem) <= self.entries[index].position)
        return LOCAL_HEADER_SIZE + self.entries[index].position - base

    def open(self, committed_index: int = -1) -> SegmentedLog:
        return SegmentedLog.open(self.fs, DATA, group_id=GROUP, now_ms=77, committed_index=committed_index)

    def entries_tail(self, last: int) -> LogTail:
        """The tail after entry `last`."""
        tail = EMPTY_TAIL
        for entry in self.entries[: last + 1]:
            tail = tail_after(tail, entry)
        return tail

    def file(self, number: int) -> bytes:
        return self.fs.open(self.paths[number]).pread(1 << 20, 0)

    def raw(self, first: int, last: int) -> bytes:
        """The frames of entries first..last as they were written."""
        return b"".join(entry.header + entry.payload for entry in self.entries[first : last + 1])

    def trash(self) -> list[str]:
        """Names of what was set aside; each has a report beside it that says when and why."""
        names = self.fs.listdir(DATA / "trash") if self.fs.exists(DATA / "trash") else []
        things = [name for name in names if not name.endswith(".json")]
        for name in things:
            report = json.loads(read_file(self.fs, DATA / "trash" / f"{name}.json"))
            assert report["name"] == name
            assert report["time_ms"] == 77
            assert report["why"]
        return things

    def check_damaged(self, log: SegmentedLog, first: int, last: int, row: str) -> None:
        """Entries first..last are one damaged range, nothing else is lost, the log goes on, a copy heals it."""
        assert row in log.report.rows
        assert log.tail.index == 9
        assert (log.tail.term, log.tail.header_crc) == (1, self.entries[9].header_crc)
        assert log.report.vote_withheld is None
        (damaged,) = log.damage.ranges
        lost = self.entries[first : last + 1]
        assert damaged[:4] == (lost[0].position, lost[-1].end_position, first, last)
        assert (damaged.before, damaged.after) == (lost[0].parent, lost[-1].header_crc)
        for index in range(10):
            if first <= index <= last:
                with pytest.raises(DamagedLogError):
                    log.read_entries(index, index + 1, 1 << 20)
            else:
                assert log.read_entries(index, index + 1, 1 << 20) == [self.entries[index]]
        more = self.frames(log.tail, [5, 900], term=3)
        log.append(more)
        self.fs.crash(3)
        log = self.open()
        found = log.damage.ranges[0] if log.damage.ranges else log.find_damage(0, 12)
        assert found is not None
        log.repair(found, self.raw(first, last))
        assert not log.damage
        self.fs.crash(4)
        log = self.open()
        assert log.read_entries(0, 12, 1 << 30) == self.entries + more
        assert log.find_damage(0, 12) is None
        assert log.term_ranges() == [(0, 0), (1, 1), (10, 3)]

    def check_withheld(self, log: SegmentedLog, index: int, term: int, row: str) -> None:
        """The vote is withheld, across restarts."""
        assert row in log.report.rows
        assert not BY_NAME[row].votes.startswith("yes")
        for withheld in (log.report.vote_withheld, vote_withheld.load(self.fs, DATA, GROUP)):
            assert withheld is not None
            assert (withheld.index, withheld.term, withheld.since_ms) == (index, term, 77)

    def check(self, log: SegmentedLog, count: int) -> None:
        """The first `count` entries are there, the log goes on, and all of it survives a power cut."""
        assert log.tail.index == count - 1
        assert log.read_entries(0, count, 1 << 30) == self.entries[:count]
        more = self.frames(log.tail, [5, 900, 3000, 1000], term=3)
        for entry in more:
            log.append([entry])
        self.fs.crash(0)
        again = self.open()
        assert again.read_entries(0, again.tail.index + 1, 1 << 30) == self.entries[:count] + more
        ranges = [(0, 0)] + ([(1, 1)] if count > 1 else []) + [(count, 3)]
        assert again.term_ranges() == ranges
