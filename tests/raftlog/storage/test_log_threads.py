"""Readers beside the writer and the preparer, on real files: a read is right, or says that the range is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import DamagedLogError, OutOfRangeError
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import Entry
from tests.support.background_threads import beside
from tests.support.pace import at_most

Frames = Callable[..., list[Entry]]
STABLE = 40
"""Entries that no conflict touches."""


@pytest.mark.ci
@pytest.mark.parametrize("terms", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_readers_see_only_whole_entries(tmp_path: Path, genesis: Genesis, frames: Frames, terms: int) -> None:
    log = SegmentedLog.create(OsFileSystem(), tmp_path, genesis=genesis.entry(), segment_size=genesis.segment_size)
    log.append(frames(log.tail, [700] * (STABLE - 1)))
    stable = log.read_entries(0, STABLE, 1 << 30)
    counts = {"stable": 0, "moving": 0, "gone": 0}

    def read_stable(rng: Random) -> None:
        low = rng.randrange(STABLE)
        high = rng.randint(low + 1, STABLE)
        assert log.read_entries(low, high, 1 << 30) == stable[low:high]
        entry = stable[low]
        assert log.read_at(entry.position, entry.size) == entry.header + entry.payload
        counts["stable"] += 1

    def read_moving(rng: Random) -> None:
        tail = log.tail
        low = rng.randint(STABLE, max(STABLE, tail.index))
        try:
            entries = log.read_entries(low, tail.index + 1, 1 << 30)
        except OutOfRangeError:
            counts["gone"] += 1
            return
        for entry in entries:
            assert entry.payload == (f"{entry.term}:{entry.index};".encode() * len(entry.payload))[: len(entry.payload)]
        counts["moving"] += 1

    def prepare() -> None:
        if log.needs_next():
            log.prepare_next()

    readers = [partial(read, Random(seed)) for seed, read in enumerate((read_stable, read_moving, read_moving))]
    rng = Random(99)
    with beside(*readers, prepare):
        for term in range(2, 2 + terms):
            for _ in range(3):
                log.append(frames(log.tail, [rng.choice((0, 300, 900, 2500))] * rng.randint(1, 4), term=term))
            cut = rng.randint(STABLE, log.tail.index)
            log.append(frames(log.tail_at(cut - 1), [100, 1200], term=term + 1))
    final = log.read_entries(0, log.tail.index + 1, 1 << 30)
    log.close(clean=True)
    again = SegmentedLog.open(OsFileSystem(), tmp_path, group_id=genesis.group_id)
    assert again.read_entries(0, again.tail.index + 1, 1 << 30) == final
    assert counts["stable"] > 0
    assert counts["moving"] > 0


def test_close_waits_for_a_preparation(
    new_log: Callable[..., tuple[MemoryFileSystem, SegmentedLog]], frames: Frames
) -> None:
    """Otherwise the next owner of the directory could roll into a file that this one is still zeroing."""
    _, log = new_log()
    log.append(frames(log.tail, [3000]))
    events: list[str] = []
    zeroing, go_on = threading.Event(), threading.Event()

    def clock() -> float:
        """What the preparation looks at before and after each piece that it fills with zeroes."""
        zeroing.set()
        go_on.wait(at_most(30))
        events.append("zeroing")
        return 0.0

    preparer = threading.Thread(target=partial(log.prepare_next, clock=clock))
    preparer.start()
    assert zeroing.wait(at_most(30))

    def close() -> None:
        log.close(clean=False)
        events.append("closed")

    closer = threading.Thread(target=close)
    closer.start()
    closer.join(0.05)
    go_on.set()
    closer.join()
    preparer.join()
    assert (events[0], events[-1]) == ("zeroing", "closed")


def test_rot_and_repairs_beside_readers_and_appends(tmp_path: Path, genesis: Genesis, frames: Frames) -> None:
    """Bytes rot and are repaired while others read and append: a read is right or says damaged, and all is healed."""
    log = SegmentedLog.create(OsFileSystem(), tmp_path, genesis=genesis.entry(), segment_size=genesis.segment_size)
    log.append(frames(log.tail, [700] * (STABLE - 1)))
    stable = log.read_entries(0, STABLE, 1 << 30)
    served = [0, 0]

    def read(rng: Random) -> None:
        low = rng.randrange(STABLE)
        try:
            found = log.read_entries(low, rng.randint(low + 1, STABLE), 1 << 30)
        except DamagedLogError as error:
            if not error.first_index <= low <= error.last_index:
                raise
            served[1] += 1
        else:
            assert found
            assert found == stable[low : low + len(found)]
            served[0] += 1

    def rot_and_repair(rng: Random) -> None:
        entry = stable[rng.randrange(STABLE)]
        base = max(segment.base for segment in log.state.segments if segment.base <= entry.position)
        with (tmp_path / "log" / f"{base:020d}.seg").open("r+b") as file:
            offset = 4096 + entry.position - base + rng.randrange(entry.size)
            file.seek(offset)
            old = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([old ^ 1 << rng.randrange(8)]))
        log.report_damage(entry.position, entry.size)
        for damaged in log.damage.ranges:
            lost = stable[damaged.first_index : damaged.last_index + 1]
            with suppress(OutOfRangeError):  # a reader found that its neighbour is damaged too
                log.repair(damaged, b"".join(each.header + each.payload for each in lost))

    rng = Random(7)
    with beside(*(partial(body, Random(seed)) for seed, body in enumerate((read, read, rot_and_repair)))):
        for _ in range(150):
            log.append(frames(log.tail, [rng.randint(0, 900)]))
            if log.needs_next():
                log.prepare_next()
    while (damaged := log.find_damage(0, STABLE)) is not None:
        lost = stable[damaged.first_index : damaged.last_index + 1]
        log.repair(damaged, b"".join(each.header + each.payload for each in lost))
    assert log.read_entries(0, STABLE, 1 << 30) == stable
    assert served[0]
    log.close(clean=True)
    again = SegmentedLog.open(OsFileSystem(), tmp_path, group_id=7)
    assert again.read_entries(0, STABLE, 1 << 30) == stable
