"""The log rolls at the worst moment of another thread's repair or read: neither may lose the new file, or mix the two.

The other thread is played by a hook at that moment, so the order is the same in every run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.storage.log.log_reader import LogReader
from raftlog.storage.log.log_state import LogState
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import Entry

Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]


class Once:
    """Calls `then` the first time it is told to."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self.done = False

    def now(self) -> None:
        if not self.done:
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


class HookedState:
    """The state as a reader sees it; the hook runs when `segments` or `tail` was taken, before the reader goes on."""

    def __init__(self, state: LogState, after: str, hook: Once) -> None:
        self._state, self._after, self._hook = state, after, hook

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._state, name)
        if name == self._after:
            self._hook.now()
        return value


@pytest.fixture
def filled(new_log: NewLog, frames: Frames) -> tuple[MemoryFileSystem, SegmentedLog, list[Entry], Once]:
    """A log of two full files, its entries with the three of the next file, and the hook that appends those."""
    fs, log = new_log()
    entries = log.read_entries(0, 1, 1)
    entries += frames(log.tail, [1000] * 6)
    log.append(entries[1:])
    entries += frames(log.tail, [1000] * 3)
    assert len(log.state.segments) == 2
    return fs, log, entries, Once(lambda: log.append(entries[7:]))


def test_a_repair_keeps_the_file_of_a_roll_beside_it(filled: Any) -> None:
    fs, log, entries, roll = filled
    path: Path = log.state.segments[0].path
    fs.damage(path, LOCAL_HEADER_SIZE + entries[2].position + 100, b"\xee")
    damaged = log.find_damage(0, 7)
    log.state.publishing = HookedLock(log.state.publishing, roll)
    log.repair(damaged, entries[2].header + entries[2].payload)
    assert roll.done
    assert len(log.state.segments) == 3
    assert log.read_entries(0, 10, 1 << 20) == entries


@pytest.mark.parametrize("after", ["segments", "tail"])
@pytest.mark.parametrize("what", ["segment_at", "read_entries", "read_raw", "read_raw_into", "find_damage"])
def test_a_reader_sees_the_log_as_it_was_or_as_it_is(filled: Any, after: str, what: str) -> None:
    _, log, entries, roll = filled
    reader = LogReader(HookedState(log.state, after, roll))  # type: ignore[arg-type]
    last = entries[6]
    match what:
        case "segment_at":
            assert reader.segment_at(last.position).end_position == last.end_position
        case "read_entries":
            assert reader.read_entries(4, 7, 1 << 20) == entries[4:7]
        case "read_raw":
            assert reader.read_raw(last.position, 1 << 20) == last.header + last.payload
        case "read_raw_into":
            room = bytearray(len(last.header + last.payload))
            assert reader.read_raw_into(last.position, memoryview(room)) == len(room)
            assert room == last.header + last.payload
        case "find_damage":
            assert reader.find_damage(6, 10) is None
    assert roll.done
