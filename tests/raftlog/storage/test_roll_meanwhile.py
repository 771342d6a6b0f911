"""The log rolls at the worst moment of another thread's repair or read: neither may lose the new file, or mix the two.

The other thread is played by a hook at that moment, so the order is the same in every run.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import OutOfRangeError
from raftlog.storage.log.log_reader import LogReader
from raftlog.storage.log.log_state import LogState
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import Entry, LogTail

Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]


READS = [
    "segment_at",
    "entry_at",
    "position_of",
    "tail_at",
    "read_at",
    "read_entries",
    "read_raw",
    "read_raw_into",
    "report_damage",
    "find_damage",
]
"""The ways to read the log."""


class Once:
    """Calls `then` once: the first time it is told to, or a later time, if so many are `skipped`."""

    def __init__(self, then: Callable[[], None], skipped: int = 0) -> None:
        self._then = then
        self._skipped = skipped
        self.done = False

    def now(self) -> None:
        self._skipped -= 1
        if self._skipped < 0 and not self.done:
            self.done = True
            self._then()


class HookedLock:
    """A lock; the hook runs as soon as it is released."""

    def __init__(self, lock: threading.Lock, hook: Once) -> None:
        self._lock, self._hook = lock, hook

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()
        self._hook.now()


class HookedState(LogState):
    """The state as a reader sees it; the hook runs when `segments` or `tail` was taken, before the reader goes on.

    It has no values of its own, so each attribute is that of the other state. Only the methods are its own."""

    def __init__(self, state: LogState, after: str, hook: Once) -> None:
        self._other, self._after, self._hook = state, after, hook

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._other, name)
        if name == self._after:
            self._hook.now()
        return value


Filled = tuple[MemoryFileSystem, SegmentedLog, list[Entry]]


@pytest.fixture
def filled(new_log: NewLog, frames: Frames) -> Callable[[], Filled]:
    """A function that makes a log of two full files; it returns their seven entries with the three of the next file."""

    def make() -> Filled:
        fs, log = new_log()
        entries = log.read_entries(0, 1, 1)
        entries += frames(log.tail, [1000] * 6)
        log.append(entries[1:])
        entries += frames(log.tail, [1000] * 3)
        assert len(log.state.segments) == 2
        return fs, log, entries

    return make


def test_a_repair_keeps_the_file_of_a_roll_beside_it(filled: Callable[[], Filled]) -> None:
    fs, log, entries = filled()
    roll = Once(lambda: log.append(entries[7:]))
    path: Path = log.state.segments[0].path
    fs.damage(path, LOCAL_HEADER_SIZE + entries[2].position + 100, b"\xee")
    damaged = log.find_damage(0, 7)
    assert damaged is not None
    log.state.publishing = HookedLock(log.state.publishing, roll)  # type: ignore[assignment]
    log.repair(damaged, entries[2].header + entries[2].payload)
    assert roll.done
    assert len(log.state.segments) == 3
    assert log.read_entries(0, 10, 1 << 20) == entries


def _read(log: SegmentedLog, reader: LogReader, what: str, span: list[Entry]) -> tuple[object, object]:
    """Returns the reader's answer about the entries, and the right one."""
    first, last = span[0], span[-1]
    size = last.end_position - first.position
    raw = b"".join(entry.header + entry.payload for entry in span)
    match what:
        case "segment_at":
            return reader.segment_at(last.position).end_position, last.end_position
        case "entry_at":
            return reader.entry_at(last.position)[2:], (last.position, last.end_position)
        case "position_of":
            return reader.position_of(last.index), last.position
        case "tail_at":
            tail = reader.tail_at(last.index)
            base = log.segment_at(last.position).previous.end_position
            return tail, LogTail(last.term, last.index, last.end_position, last.header_crc, base, last.timestamp_ms)
        case "read_at":
            return reader.read_at(first.position, size), raw
        case "read_entries":
            return reader.read_entries(first.index, last.index + 1, 1 << 20), span
        case "read_raw":
            return reader.read_raw(last.position, 1 << 20), last.header + last.payload
        case "read_raw_into":
            room = bytearray(last.size)
            return room[: reader.read_raw_into(last.position, memoryview(room))], last.header + last.payload
        case "report_damage":
            return reader.report_damage(first.position, size), None
        case "find_damage":
            return reader.find_damage(first.index, last.index + 1), None
        case _:
            raise AssertionError(what)


@pytest.mark.parametrize("after", ["segments", "tail"])
@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("stop", [7, 8])
def test_a_reader_sees_the_log_as_it_was_or_as_it_is(
    filled: Callable[[], Filled], after: str, what: str, stop: int
) -> None:
    """The last entry that is asked for is the last one before the roll, or the first one after it."""
    for skipped in itertools.count():
        _, log, entries = filled()
        roll = Once(partial(log.append, entries[7:8]), skipped)
        reader = LogReader(HookedState(log.state, after, roll))
        try:
            answer, right = _read(log, reader, what, entries[6:stop])
            assert answer == right
        except OutOfRangeError:
            assert stop == 8
        if not roll.done:
            assert skipped > 0
            break
