"""Readers on real files beside a trimmer, one that puts files back, and the writer: right bytes, or OutOfRangeError."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from raftlog.errors import OutOfRangeError
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.log_build import SegmentBuild
from raftlog.types import Entry, LogTail
from tests.support.background_threads import beside

Frames = Callable[..., list[Entry]]
ROUNDS = 8


class Shelf:
    """Every entry ever appended, and the segment files made of them."""

    def __init__(self, genesis: Entry) -> None:
        self.entries = [genesis]
        self.previous: dict[int, LogTail] = {}

    def prepend_all(self, log: SegmentedLog, built: Path, group_id: int, stop: int) -> None:
        """Puts files in front of the log down to position `stop`."""
        while (end := log.previous).end_position > stop:
            base = end.segment_base
            build = SegmentBuild(OsFileSystem(), built, group_id, self.previous[base])
            inside = [entry for entry in self.entries if base <= entry.position < end.end_position]
            build.append_raw(b"".join(entry.header + entry.payload for entry in inside))
            log.prepend(build.finish())


def test_readers_beside_trims_and_prepends(tmp_path: Path, genesis: Genesis, frames: Frames) -> None:
    fs = OsFileSystem()
    log = SegmentedLog.create(fs, tmp_path, genesis=genesis.entry(), segment_size=genesis.segment_size)
    shelf = Shelf(genesis.entry())
    counts = {"read": 0, "gone": 0, "raw": 0, "report": 0}

    def read(rng: Random) -> None:
        last = log.tail.index
        low = rng.randrange(last + 1)
        high = min(last + 1, low + rng.choice((1, 5, 40)))
        entry = shelf.entries[low]
        try:
            match rng.randrange(4):
                case 0:
                    assert log.read_entries(low, high, 1 << 30) == shelf.entries[low:high]
                    counts["read"] += 1
                case 1:
                    assert log.read_at(entry.position, entry.size) == entry.header + entry.payload
                    assert log.position_of(low) == entry.position
                case 2:
                    assert log.read_raw(entry.position, 1) == entry.header + entry.payload
                    assert log.segment_at(entry.position).previous.end_position <= entry.position
                    counts["raw"] += 1
                case _:
                    assert log.report_damage(entry.position, entry.size) is None
                    assert log.term_ranges()[-1][1] == 1
                    counts["report"] += 1
        except OutOfRangeError:
            counts["gone"] += 1

    def append() -> None:
        batch = frames(log.tail, [700] * 24)
        shelf.entries += batch
        log.append(batch)
        for segment in log.state.segments:
            shelf.previous[segment.base] = segment.header.previous

    append()
    rng = Random(7)
    with beside(*(partial(read, Random(seed)) for seed in range(3))) as failures:
        for number in range(20 * ROUNDS):
            if number >= ROUNDS and (failures or min(counts.values()) > 0):
                break
            if number:
                append()
            paths = log.trim(rng.randrange(log.tail.end_position))
            if rng.randrange(4):
                assert log.remove_files(paths) == len(paths)
            shelf.prepend_all(
                log, tmp_path / "install" / "backfill.tmp", genesis.group_id, rng.randrange(log.first_position + 1)
            )
    assert not log.damage.ranges
    assert min(counts.values()) > 0, counts
    log.close(clean=False)
    again = SegmentedLog.open(fs, tmp_path, group_id=genesis.group_id)
    assert again.read_entries(again.first_index, again.tail.index + 1, 1 << 30) == shelf.entries[again.first_index :]
