"""Trimming a log and putting segment files in front of it: what readers get, what a start finds, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import (
    CorruptLogError,
    DamagedLogError,
    DiskFullError,
    FrameError,
    OutOfRangeError,
    OutOfSpaceError,
    StorageError,
)
from raftlog.storage.files import log_first
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.log_build import SegmentBuild
from raftlog.storage.verify.verify_directory import verify_log
from raftlog.types import EMPTY_TAIL, Entry
from tests.support.damaged_disk import row

DATA = Path("/data")
LOG = DATA / "log"
GROUP = 7
BUILT = DATA / "install" / "backfill.tmp"
Build = Callable[..., Any]


class Trimmed:
    """A log of ten segments, of four entries each, that tests trim. `entries` is all it ever held."""

    def __init__(self, new_log: Build, frames: Build) -> None:
        self.frames = frames
        self.fs, self.log = new_log()
        self.entries: list[Entry] = self.log.read_entries(0, 1, 1)
        self.append(40)
        self.bases = [entry.position for entry in self.entries if entry.flags]
        self.whole = {base: self.fs.open(LOG / f"{base:020d}.seg").pread(1 << 20, 0) for base in self.bases}
        assert len(self.bases) == 10

    def append(self, count: int) -> None:
        entries = self.frames(self.log.tail, [900] * count)
        self.log.append(entries)
        self.entries += entries

    def trim(self, number: int) -> None:
        """Trims and removes the first `number` files."""
        assert self.log.remove_files(self.log.trim(self.bases[number])) == number

    def open(self) -> SegmentedLog:
        log = SegmentedLog.open(self.fs, DATA, group_id=GROUP, now_ms=77)
        self.log = log
        return log

    def files(self) -> list[int]:
        return [int(name[:20]) for name in self.fs.listdir(LOG) if name.endswith(".seg")]

    def build(self, base: int, fs: MemoryFileSystem | None = None) -> Path:
        """Builds the file at `base` again, as a node would fetch it from a peer."""
        first = next(entry for entry in self.entries if entry.position == base)
        previous = self.tail_before(first)
        build = SegmentBuild(fs or self.fs, BUILT, GROUP, previous)
        end = self.bases[self.bases.index(base) + 1]
        build.append_raw(b"".join(one.header + one.payload for one in self.entries if base <= one.position < end))
        return build.finish()

    def tail_before(self, first: Entry) -> Any:
        if first.index == 0:
            return EMPTY_TAIL
        before = self.entries[first.index - 1]
        base = max(base for base in self.bases if base <= before.position)
        return EMPTY_TAIL._replace(
            term=before.term,
            index=before.index,
            end_position=first.position,
            header_crc=before.header_crc,
            segment_base=base,
            timestamp_ms=before.timestamp_ms,
        )

    def check(self, first: int) -> None:
        """The log holds every entry from `first` on, knows what came before it, and nothing else."""
        log, count = self.log, len(self.entries)
        assert not log.damage.ranges
        assert (log.first_index, log.first_position) == (first, self.entries[first].position)
        assert log.previous == self.tail_before(self.entries[first])
        assert log.read_entries(first, count, 1 << 30) == self.entries[first:]
        assert log.term_ranges()[0] == (first, self.entries[first].term)
        assert log.position_of(first) == log.first_position
        if first:
            below = self.entries[first - 1]
            readings: list[Callable[[], object]] = [
                lambda: log.read_entries(below.index, count, 1 << 30),
                lambda: log.read_at(below.position, below.size),
                lambda: log.read_raw(below.position, 1),
                lambda: log.position_of(below.index),
                lambda: log.segment_at(below.position),
            ]
            for read in readings:
                with pytest.raises(OutOfRangeError):
                    read()
            assert log.find_damage(0, first) is None
            assert log.report_damage(below.position, below.size) is None


@pytest.fixture
def trimmed(new_log: Build, frames: Build) -> Trimmed:
    return Trimmed(new_log, frames)


@pytest.mark.parametrize("below", [0, 1])
def test_files_that_end_at_or_below_the_position_are_given_up(trimmed: Trimmed, below: int) -> None:
    log, bases = trimmed.log, trimmed.bases
    assert log.trim(bases[1] - 1) == []
    assert log.trim(bases[4] - below) == [LOG / f"{base:020d}.seg" for base in bases[: 4 - below]]
    trimmed.check(next(entry.index for entry in trimmed.entries if entry.position == bases[4 - below]))
    assert trimmed.files() == bases, "the files stay until they are removed"
    assert log.trim(bases[4] - below) == []


def test_the_active_file_stays(trimmed: Trimmed) -> None:
    log = trimmed.log
    paths = log.trim(1 << 60)
    assert [int(path.stem) for path in paths] == trimmed.bases[:-1]
    assert log.trim(1 << 60) == []
    assert log.remove_files(paths) == 9
    first = log.first_index
    trimmed.check(first)
    trimmed.open()
    trimmed.check(first)
    trimmed.append(5)
    trimmed.check(first)


def test_the_file_before_one_without_an_entry_stays(trimmed: Trimmed) -> None:
    log, fs = trimmed.log, trimmed.fs
    while not (rolls := trimmed.frames(log.tail, [900]))[0].flags:
        trimmed.append(1)
    fs.space_left = 4096 + 500  # for the new file and the sidecar of the one before, not for the entry
    with pytest.raises(OutOfSpaceError):
        log.append(rolls)
    segments = log.state.segments
    assert segments[-1].base == log.tail.end_position
    assert log.remove_files(log.trim(1 << 60)) == len(segments) - 2
    fs.crash(1)
    fs.space_left = 1 << 40
    log = trimmed.open()
    assert "last file without a frame" in log.report.rows
    trimmed.append(6)
    trimmed.check(log.first_index)


def test_the_first_entry_never_gives_way(trimmed: Trimmed) -> None:
    log = trimmed.log
    trimmed.trim(4)
    first = trimmed.entries[log.first_index]
    with pytest.raises(FrameError, match="it is committed"):
        log.append(trimmed.frames(trimmed.tail_before(first), [10], term=2))
    trimmed.check(log.first_index)


@row("trimmed")
@pytest.mark.parametrize("clean", [True, False])
def test_a_trimmed_log_opens_as_it_was(trimmed: Trimmed, clean: bool) -> None:
    trimmed.trim(4)
    first = trimmed.log.first_index
    trimmed.check(first)
    trimmed.append(3)
    trimmed.log.close(clean)
    trimmed.fs.crash(5)
    log = trimmed.open()
    assert "trimmed" in log.report.rows
    assert log.report.clean is clean
    trimmed.check(first)
    trimmed.append(9)
    trimmed.check(first)
    assert log.genesis.segment_size == 4096, "GENESIS is trimmed, its copy is not"
    names = trimmed.fs.listdir(LOG)
    assert not [name for name in names if name < f"{trimmed.bases[4]:020d}"], "sidecars go with their files"


def test_without_a_removal_the_files_count_again_after_a_start(trimmed: Trimmed) -> None:
    paths = trimmed.log.trim(trimmed.bases[3])
    trimmed.fs.crash(1)
    log = trimmed.open()
    trimmed.check(0)
    assert log.trim(trimmed.bases[3]) == paths


def test_removing_twice_and_removing_what_counts(trimmed: Trimmed) -> None:
    log = trimmed.log
    paths = log.trim(trimmed.bases[3])
    live = LOG / f"{trimmed.bases[5]:020d}.seg"
    assert log.remove_files([*paths, live, DATA / "IDENTITY"]) == 3
    assert log.remove_files([*paths, live]) == 0
    trimmed.check(log.first_index)


@row("leftovers of a trim")
def test_leftovers_below_a_gap_are_removed_and_others_count(trimmed: Trimmed) -> None:
    trimmed.trim(5)
    for number in (1, 2, 4):
        file = trimmed.fs.open(LOG / f"{trimmed.bases[number]:020d}.seg", create=True)
        file.pwritev([trimmed.whole[trimmed.bases[number]]], 0)
    trimmed.fs.open(LOG / f"{trimmed.bases[1]:020d}.idx", create=True)
    log = trimmed.open()
    assert "leftovers of a trim" in log.report.rows
    assert trimmed.files() == trimmed.bases[4:]
    trimmed.check(trimmed.log.first_index)
    assert log.first_position == trimmed.bases[4]


def verified(trimmed: Trimmed) -> dict[int, str]:
    """The base of each segment file about which the offline check says something -> what it says."""
    told = [each for each in verify_log(trimmed.fs, DATA, group_id=GROUP) if each.kind == "segment file"]
    return {int(each.path.stem): each.text for each in told}


def test_the_offline_check_says_what_a_start_does_with_files_below_FIRST(trimmed: Trimmed) -> None:
    trimmed.trim(5)
    for number in (2, 4):
        file = trimmed.fs.open(LOG / f"{trimmed.bases[number]:020d}.seg", create=True)
        file.pwritev([trimmed.whole[trimmed.bases[number]]], 0)
    assert verified(trimmed) == {trimmed.bases[2]: "left by a trim: the next start removes it"}
    for suffix in (".seg", ".idx"):
        trimmed.fs.unlink((LOG / f"{trimmed.bases[5]:020d}").with_suffix(suffix))
    told = verified(trimmed)
    kept = "below the first file of the log, which is missing: a start neither reads nor removes it"
    assert (told[trimmed.bases[2]], told[trimmed.bases[4]]) == (kept, kept)
    log = trimmed.open()
    assert log.first_position == trimmed.bases[5]
    assert {trimmed.bases[2], trimmed.bases[4]} < set(trimmed.files())


@row("FIRST damaged")
def test_a_damaged_FIRST_is_not_believed(trimmed: Trimmed) -> None:
    trimmed.trim(4)
    first = trimmed.log.first_index
    trimmed.fs.damage(LOG / "FIRST", 20, b"\xee")
    log = trimmed.open()
    assert "FIRST damaged" in log.report.rows
    trimmed.check(first)
    log.remove_files([])
    assert log_first.load(trimmed.fs, LOG, GROUP) == log.previous
    assert "FIRST damaged" not in trimmed.open().report.rows


def test_a_lost_first_file_of_a_trimmed_log_is_damage(trimmed: Trimmed) -> None:
    trimmed.trim(4)
    lost = [entry for entry in trimmed.entries if trimmed.bases[4] <= entry.position < trimmed.bases[5]]
    for suffix in (".seg", ".idx"):
        trimmed.fs.unlink((LOG / f"{trimmed.bases[4]:020d}").with_suffix(suffix))
    log = trimmed.open()
    assert "missing first segment" in log.report.rows
    (damaged,) = log.damage.ranges
    assert damaged[:4] == (lost[0].position, lost[-1].end_position, lost[0].index, lost[-1].index)
    assert (damaged.before, damaged.after) == (lost[0].parent, lost[-1].header_crc)
    with pytest.raises(DamagedLogError):
        log.read_entries(lost[0].index, lost[0].index + 1, 1)
    with pytest.raises(OutOfRangeError):
        log.read_entries(lost[0].index - 1, lost[0].index + 1, 1)
    log.repair(damaged, b"".join(entry.header + entry.payload for entry in lost))
    trimmed.check(lost[0].index)
    trimmed.open()
    trimmed.check(lost[0].index)


@pytest.mark.parametrize("active", [True, False])
def test_the_local_header_of_the_first_file_is_in_FIRST(new_log: Build, frames: Build, active: bool) -> None:
    trimmed = Trimmed(new_log, frames)
    trimmed.trim(8)
    if active:  # as after an install of one file
        trimmed.log.close(clean=False)
        trimmed.log = trimmed.open()
        trimmed.fs.unlink(LOG / f"{trimmed.bases[9]:020d}.seg")
        trimmed.entries = [entry for entry in trimmed.entries if entry.position < trimmed.bases[9]]
    trimmed.fs.damage(LOG / f"{trimmed.bases[8]:020d}.seg", 20, b"\xee")
    log = trimmed.open()
    assert f"local header of {'the active' if active else 'a sealed'} segment" in log.report.rows
    trimmed.check(log.first_index)
    assert log.first_position == trimmed.bases[8]


def test_damage_in_what_is_trimmed_is_forgotten(trimmed: Trimmed) -> None:
    log, told = trimmed.log, []
    log.damage.on_change(lambda: told.append(log.damage.ranges))
    for number in (2, 14, 30):
        base = trimmed.tail_before(trimmed.entries[number + 1]).segment_base
        path = LOG / f"{base:020d}.seg"
        trimmed.fs.damage(path, 4096 + trimmed.entries[number].position - base + 100, b"\xee")
        assert log.find_damage(number, number + 1) is not None
    assert len(log.damage.ranges) == 3
    log.trim(trimmed.bases[4])
    (left,) = log.damage.ranges
    assert left.first_index > 20
    assert told[-1] == (left,)
    assert log.damage.add(left._replace(first_position=0, end_position=50, first_index=0, last_index=0)) not in (
        log.damage.ranges
    ), "who read it before it was trimmed records it too late"


def test_a_missing_file_may_be_trimmed(trimmed: Trimmed) -> None:
    trimmed.fs.unlink(LOG / f"{trimmed.bases[2]:020d}.seg")
    log = trimmed.open()
    assert "missing middle segment" in log.report.rows
    assert log.remove_files(log.trim(trimmed.bases[4])) == 3
    trimmed.check(log.first_index)
    trimmed.open()
    trimmed.check(trimmed.log.first_index)


def test_a_trim_never_waits_for_a_repair(trimmed: Trimmed) -> None:
    with trimmed.log.state.cutting:
        assert trimmed.log.trim(trimmed.bases[4]) == []
    assert len(trimmed.log.trim(trimmed.bases[4])) == 4


def test_GENESIS_is_not_trimmed_without_its_copy(trimmed: Trimmed) -> None:
    fs = trimmed.fs
    fs.unlink(DATA / "GENESIS")  # as if there had been no space for it
    trimmed.trim(2)
    trimmed.open()
    trimmed.check(trimmed.log.first_index)


def test_GENESIS_that_is_damaged_everywhere_is_not_trimmed(trimmed: Trimmed) -> None:
    trimmed.fs.damage(DATA / "GENESIS", 70, b"\xee")
    trimmed.fs.damage(LOG / f"{0:020d}.seg", 4096 + 70, b"\xee")
    paths = trimmed.log.trim(trimmed.bases[2])
    with pytest.raises(CorruptLogError, match="is not removed: GENESIS is damaged there"):
        trimmed.log.remove_files(paths)
    assert trimmed.fs.exists(paths[0])


@pytest.mark.parametrize("how", ["entries", "bytes", "raw", "raw into", "place", "report"])
def test_who_reads_while_it_is_trimmed_gets_no_damage(trimmed: Trimmed, how: str) -> None:
    """The reader has looked up the file; when it opens it, or its index, the file is gone."""
    log = trimmed.open()
    entry = trimmed.entries[6]
    real_open, real_load = log.state.open_sealed, log.state.load_sealed

    def gone(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(segment: Any) -> Any:
            log.remove_files(log.trim(trimmed.bases[5]))
            return real(segment)

        call.cache_clear = real.cache_clear  # type: ignore[attr-defined]
        return call

    log.state.load_sealed(log.state.segments[1])
    log.state.open_sealed = gone(real_open)  # type: ignore[assignment]
    if how in ("raw", "raw into", "place", "report"):
        log.state.load_sealed = gone(real_load)  # type: ignore[assignment]
        real_load.cache_clear()
    reads: dict[str, Callable[[], object]] = {
        "entries": lambda: log.read_entries(6, 8, 1 << 20),
        "bytes": lambda: log.read_at(entry.position, entry.size),
        "raw": lambda: log.read_raw(entry.position, 1),
        "raw into": lambda: log.read_raw_into(entry.position, memoryview(bytearray(1 << 16))),
        "place": lambda: log.position_of(6),
        "report": lambda: log.report_damage(entry.position, entry.size),
    }
    with pytest.raises(OutOfRangeError):
        reads[how]()
    trimmed.check(log.first_index)


# Putting files in front


def test_files_are_put_in_front_newest_first(trimmed: Trimmed) -> None:
    log = trimmed.log
    trimmed.trim(6)
    for base in reversed(trimmed.bases[:6]):
        log.prepend(trimmed.build(base))
        trimmed.check(log.first_index)
        assert log.first_position == base
        assert log_first.load(trimmed.fs, LOG, GROUP) == log.previous
        trimmed.append(1)
        trimmed.fs.crash(base)
        log = trimmed.open()
        assert "leftovers of a trim" not in log.report.rows
        trimmed.check(log.first_index)
    assert not trimmed.fs.exists(BUILT)
    trimmed.check(0)


@pytest.mark.parametrize("at", [0, 3, 5])
def test_only_the_file_just_before_the_log_is_taken(trimmed: Trimmed, at: int) -> None:
    log = trimmed.log
    trimmed.trim(5)
    with pytest.raises(FrameError, match="begins at position"):
        log.prepend(trimmed.build(trimmed.bases[at]))
    trimmed.check(log.first_index)
    assert trimmed.files() == trimmed.bases[5:]


def test_a_file_of_another_history_is_refused(trimmed: Trimmed, new_log: Build, frames: Build) -> None:
    log = trimmed.log
    trimmed.trim(5)
    first = next(entry for entry in trimmed.entries if entry.position == trimmed.bases[4])
    other = frames(trimmed.tail_before(first), [899, 901, 900, 900], term=1)
    build = SegmentBuild(trimmed.fs, BUILT, GROUP, trimmed.tail_before(first))
    build.append_raw(b"".join(entry.header + entry.payload for entry in other))
    with pytest.raises(FrameError, match="the log begins at"):
        log.prepend(build.finish())
    trimmed.check(log.first_index)


@pytest.mark.parametrize("where", ["header", "payload", "cut", "more", "local header", "group"])
def test_a_damaged_file_is_refused(trimmed: Trimmed, where: str) -> None:
    log, fs = trimmed.log, trimmed.fs
    trimmed.trim(5)
    path = trimmed.build(trimmed.bases[4])
    file = fs.open(path)
    size = file.size()
    if where == "header":
        fs.damage(path, 4096 + 20, b"\xee")
    elif where == "payload":
        fs.damage(path, size - 3, b"\xee")
    elif where == "cut":
        file.truncate(size - 1)
    elif where == "more":
        file.pwritev([b"x" * 64], size)
    elif where == "local header":
        fs.damage(path, 20, b"\xee")
    else:
        SegmentBuild(fs, path, GROUP + 1, log.previous)
    with pytest.raises((FrameError, CorruptLogError)):
        log.prepend(path)
    trimmed.check(log.first_index)
    trimmed.open()
    trimmed.check(trimmed.log.first_index)


def test_a_file_that_was_never_synced_is_on_disk_when_it_is_in_front(trimmed: Trimmed) -> None:
    trimmed.trim(5)
    base = trimmed.bases[4]
    file = trimmed.fs.open(DATA / "unsynced", create=True)
    file.pwritev([trimmed.whole[base]], 0)
    trimmed.log.prepend(DATA / "unsynced")
    for seed in range(4):
        trimmed.fs.crash(seed)
        trimmed.open()
        trimmed.check(next(entry.index for entry in trimmed.entries if entry.position == base))


def test_what_a_failed_sync_left_in_memory_is_written_again(trimmed: Trimmed) -> None:
    """Such bytes can be read, and no later sync of the file brings them to the disk."""
    fs = trimmed.fs
    trimmed.trim(5)
    first = next(entry for entry in trimmed.entries if entry.position == trimmed.bases[4])
    build = SegmentBuild(fs, BUILT, GROUP, trimmed.tail_before(first))
    build.append_raw(b"".join(entry.header + entry.payload for entry in trimmed.entries[first.index : first.index + 4]))
    fs.fsync_dir(BUILT.parent)
    fs.fail_call(fs.calls + 1)
    with pytest.raises(StorageError):
        build.finish()
    found = SegmentBuild.resume(fs, BUILT, GROUP)
    assert found is not None
    assert found.tail.end_position == trimmed.bases[5]
    trimmed.log.prepend(found.finish())
    fs.crash(0)
    trimmed.open()
    trimmed.check(first.index)


def test_a_prepend_on_a_full_disk_changes_nothing(trimmed: Trimmed) -> None:
    log = trimmed.log
    trimmed.trim(5)
    path = trimmed.build(trimmed.bases[4])
    trimmed.fs.space_left = 0
    with pytest.raises(DiskFullError):
        log.prepend(path)
    trimmed.check(log.first_index)
    trimmed.fs.space_left = 1 << 40
    log.prepend(path)
    trimmed.check(log.first_index)
    assert log.first_position == trimmed.bases[4]


def test_a_file_that_is_missing_is_an_error(trimmed: Trimmed) -> None:
    trimmed.trim(1)
    with pytest.raises(StorageError, match="in front of"):
        trimmed.log.prepend(DATA / "nothing")


def test_a_segment_build_goes_on_after_a_stop(trimmed: Trimmed) -> None:
    log, fs = trimmed.log, trimmed.fs
    trimmed.trim(5)
    wanted = [entry for entry in trimmed.entries if trimmed.bases[4] <= entry.position < trimmed.bases[5]]
    raw = b"".join(entry.header + entry.payload for entry in wanted)
    assert SegmentBuild.resume(fs, BUILT, GROUP) is None
    build = SegmentBuild(fs, BUILT, GROUP, trimmed.tail_before(wanted[0]))
    build.append_raw(raw[:1000])
    assert build.next_position == trimmed.bases[4] + 1000
    with pytest.raises(FrameError):
        build.append_raw(b"\0" * 2000)
    assert build.next_position == build.tail.end_position == wanted[0].end_position
    build.append_raw(raw[build.next_position - trimmed.bases[4] : 2100])
    fs.restart()
    found = SegmentBuild.resume(fs, BUILT, GROUP)
    assert found is not None
    assert found.tail.index == wanted[1].index
    found.append_raw(raw[found.next_position - trimmed.bases[4] :])
    with pytest.raises(FrameError, match="does not lie in the segment file"):
        found.append_raw(log.read_raw(trimmed.bases[5], 1))
    assert found.next_position == trimmed.bases[5]
    trimmed.open()
    trimmed.log.prepend(found.finish())
    trimmed.check(wanted[0].index)
