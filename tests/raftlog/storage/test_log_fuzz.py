"""Mutated bytes never raise anything but the documented errors, and never make entries below the mark disappear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import CorruptLogError, DamagedLogError, FrameError
from raftlog.frame import HEADER_SIZE, FrameHeader, decode_entries
from raftlog.storage.files import genesis as genesis_format
from raftlog.storage.files import layout
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.files.hard_state import decode_slot
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.segment import decode_mark, newest_mark
from raftlog.storage.segments.segment_index import decode_index
from raftlog.storage.verify.verify_directory import irrelevant_ranges, verify_log
from raftlog.types import EMPTY_TAIL, Entry

DATA = Path("/data")
GROUP = 7
Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]

mutations = st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=80)), min_size=1, max_size=4)


def mutate(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    mutated = bytearray(data)
    for at, new in changes:
        at %= len(data)
        mutated[at : at + len(new)] = new[: len(data) - at]
    return bytes(mutated)


@given(st.binary(max_size=200))
@example(b"")
def test_random_bytes_are_frames_or_frame_errors(data: bytes) -> None:
    for decode in (FrameHeader, lambda raw: list(decode_entries(raw))):
        try:
            decode(data)
        except FrameError:
            continue
        assert decode is not FrameHeader or len(data) == HEADER_SIZE
    assert decode_slot(data, GROUP) is None
    assert decode_mark(data) is None
    try:
        decode_index(data, GROUP)
    except FrameError:
        return
    raise AssertionError("random bytes passed for an index")


@settings(max_examples=300, deadline=None)
@given(changes=mutations)
def test_mutated_frames_decode_to_a_prefix(frames: Frames, changes: list[tuple[int, bytes]]) -> None:
    entries = frames(EMPTY_TAIL, [0, 100, 5, 300])
    data = b"".join(entry.header + entry.payload for entry in entries)
    got: list[Entry] = []
    try:
        for entry in decode_entries(mutate(data, changes), GROUP):
            got.append(entry)  # noqa: PERF402 - what came before the error counts
    except FrameError:
        assert len(got) < len(entries)
    assert got == entries[: len(got)]


@settings(max_examples=300, deadline=None)
@given(payload=st.binary(max_size=100), changes=mutations)
def test_mutated_genesis_is_read_or_refused(genesis: Genesis, payload: bytes, changes: list[tuple[int, bytes]]) -> None:
    entry = genesis.entry()
    assert genesis_format.decode(entry) == genesis
    for data in (payload, mutate(entry.payload, changes)):
        try:
            genesis_format.decode(entry._replace(payload=data))
        except FrameError:
            continue


@settings(max_examples=400, deadline=None)
@given(number=st.integers(0, 2), changes=mutations, near_frames=st.booleans(), clean=st.booleans())
@example(number=2, changes=[(0, bytes(1100))], near_frames=False, clean=True)
@example(number=2, changes=[(0, bytes(1100))], near_frames=False, clean=False)
def test_recovery_of_mutated_files(
    new_log: NewLog, frames: Frames, number: int, changes: list[tuple[int, bytes]], near_frames: bool, clean: bool
) -> None:
    fs, log = new_log()
    entries = log.read_entries(0, 1, 1)
    for entry in frames(log.tail, [1000] * 9):
        log.append([entry])
        entries.append(entry)
    log.close(clean=clean)
    paths = [DATA / "log" / name for name in fs.listdir(DATA / "log") if name.endswith(".seg")]
    raw = fs.open(paths[number]).pread(1 << 20, 0)
    start = 4096 if near_frames else 0
    stop = start + 3500 if near_frames else 1100
    fs.damage(paths[number], start, mutate(raw[start:stop], changes))
    list(verify_log(fs, DATA))  # says what it finds; raises nothing
    list(irrelevant_ranges(fs, DATA))
    mark = newest_mark(fs.open(paths[2]).pread(4096, 0))
    if mark is None and clean:  # both copies in the segment are damaged: an orderly stop left a third
        mark = decode_mark(fs.open(DATA / "log" / layout.CLEAN).pread(4096, 0))
    fs.restart()
    try:
        log = SegmentedLog.open(fs, DATA, group_id=GROUP)
    except CorruptLogError:
        return
    # A rotten newest mark next to a good older one lowers the promise by one batch: no other damage does, unless the
    # vote is withheld.
    if log.report.vote_withheld is None:
        assert mark is not None
        assert log.tail.index + 1 >= mark.next_index
    for entry in entries[: log.tail.index + 1]:
        try:
            assert log.read_entries(entry.index, entry.index + 1, 1 << 20) == [entry]
        except DamagedLogError:
            assert entry.index in range(*((0, 4), (4, 7), (7, 10))[number])
