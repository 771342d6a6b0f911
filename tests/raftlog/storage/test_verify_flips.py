"""Bytes flip on the disk of a stopped node: each flip is found by `verify_log`, or lies where nothing reads.

And a log opened on such a disk never serves a wrong byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import UUID

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import DamagedLogError, RaftLogError
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files import layout, vote_withheld
from raftlog.storage.files.fs import read_file
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.files.run_file import Run, RunFile, RunState
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.node_dir import create_node_dir, open_node_dir
from raftlog.storage.segments import active_index
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, MARK_OFFSETS
from raftlog.storage.segments.segment_index import decode_index, encode_index
from raftlog.storage.verify.verify_directory import Severity, irrelevant_ranges, verify_log
from raftlog.types import Entry, HardState, NodeId

DATA = Path("/data")
GROUP = 7
CLUSTER = UUID(int=1)


class Made(NamedTuple):
    """A stopped node's directory, and the entries in its log."""

    fs: MemoryFileSystem
    entries: list[Entry]
    clean: bool
    first: int = 0
    """Index of the first entry that is left."""


def make(segment_size: int, bytes_max: int, seed: int, *, clean: bool, trimmed: bool = False) -> Made:
    """A directory of some `bytes_max` bytes: terms change, sizes vary, the last batch lies above the mark."""
    rng = Random(seed)
    fs = MemoryFileSystem()
    fs.mkdir(DATA)
    voter = Voter(NodeId(1), UUID(int=11))
    genesis = Genesis(CLUSTER, GROUP, segment_size, 1_700_000_000_000, (voter,))
    create_node_dir(fs, DATA, Identity(CLUSTER, GROUP, voter.id, voter.uuid, 5), genesis)
    directory = open_node_dir(fs, DATA)
    log, term = directory.log, 1
    entries = log.read_entries(0, 1, 1)
    directory.hard_state_store.save(HardState(99, NodeId(1), 0))
    while log.tail.end_position < bytes_max:
        term += rng.random() < 0.02
        batch, tail = [], log.tail
        for _ in range(rng.randint(1, 4)):
            payload = rng.randbytes(rng.choice((0, 10, 300, 2000)) * segment_size // 16384)
            batch.append(
                make_entry(
                    tail,
                    term=term,
                    entry_type=3,
                    payload=payload,
                    timestamp_ms=0,
                    group_id=GROUP,
                    segment_size=segment_size,
                )
            )
            tail = tail_after(tail, batch[-1])
        log.append(batch)
        entries += batch
        if log.needs_next():
            log.prepare_next()
    run = RunFile(fs, DATA, group_id=GROUP)
    for number in (1, 2):
        run.write(Run(RunState.RUNNING, 1, bytes(16), number, 3, 1))
    if trimmed:
        log.remove_files(log.trim(entries[len(entries) // 2].position))
    directory.close(clean)
    fs.restart()
    return Made(fs, entries, clean, log.first_index)


def regions(made: Made) -> dict[str, list[tuple[Path, int, int]]]:
    """Name -> live bytes as (path, offset, size)."""
    fs, log = made.fs, DATA / layout.LOG
    bases = layout.segment_bases(fs.listdir(log))
    paths = [log / layout.segment_name(base) for base in bases]
    end = made.entries[-1].end_position
    ends = [*bases[1:], end]
    sidecars = [log / layout.index_name(base) for base in bases[:-1]]

    def whole(*names: Path) -> list[tuple[Path, int, int]]:
        return [(path, 0, len(read_file(fs, path))) for path in names]

    found = {
        "active segment": [(paths[-1], LOCAL_HEADER_SIZE, end - bases[-1])],
        "sealed segment": [
            (path, LOCAL_HEADER_SIZE, stop - base)
            for path, base, stop in zip(paths[:-1], bases[:-1], ends[:-1], strict=True)
        ],
        "sidecar": whole(*sidecars),
        "local header": [(path, 0, 64) for path in paths],
        "sync marks": [(paths[-1], offset, 48) for offset in MARK_OFFSETS],
        "hard state": [(DATA / layout.HARD_STATE, offset, 64) for offset in (0, 4096)],
        "IDENTITY, RUN, GENESIS": [
            *whole(DATA / "IDENTITY", DATA / "GENESIS"),
            (DATA / "RUN", 0, 512),
            (DATA / "RUN", 4096, 512),
        ],
        "kept index": whole(log / layout.ACTIVE_INDEX),
        "any byte": whole(*paths, DATA / "RUN", DATA / "hard_state"),
    }
    if made.first:
        found["FIRST"] = whole(log / layout.FIRST)
    if made.clean:
        found["CLEAN"] = whole(log / layout.CLEAN, log / layout.index_name(bases[-1]))
    return found


def flips(made: Made, name: str, rng: Random, count: int) -> Iterator[tuple[Path, int, int]]:
    """(path, offset, mask) of bytes of the region, spread over its parts by size."""
    parts = regions(made)[name]
    for _ in range(count):
        path, offset, size = rng.choices(parts, [size for *_, size in parts])[0]
        yield path, offset + rng.randrange(size), rng.randrange(1, 256)


def files(fs: MemoryFileSystem) -> dict[Path, bytes]:
    """All files of the directory, with their bytes."""
    paths = [folder / name for folder in (DATA, DATA / layout.LOG) for name in fs.listdir(folder)]
    return {path: read_file(fs, path) for path in paths if path != DATA / layout.LOG}


def copy(made: Made) -> MemoryFileSystem:
    """The same disk once more."""
    fs = MemoryFileSystem()
    for path, data in files(made.fs).items():
        fs.mkdir(path.parent)
        copied = fs.open(path, create=True)
        copied.pwritev([data], 0)
        copied.fdatasync()
        copied.close()
    fs.fsync_dir(DATA)
    fs.fsync_dir(DATA / "log")
    return fs


def check_flip(made: Made, path: Path, offset: int, mask: int, ranges: list[tuple[Path, int, int]]) -> str:
    """The verdict; asserts that it is one of the two allowed, and that opening serves nothing wrong."""
    fs = copy(made)
    old = fs.open(path).pread(1, offset)[0]
    fs.damage(path, offset, bytes([old ^ mask]))
    context = f"{path} byte {offset} ^ {mask:02x}"
    before, calls = files(fs), fs.calls
    findings = [finding for finding in verify_log(fs, DATA) if finding.kind != "vote withheld"]
    assert (files(fs), fs.calls) == (before, calls), f"{context}: it wrote"
    irrelevant = any(path == where and start <= offset < start + size for where, start, size in ranges)
    assert findings or irrelevant, f"{context}: not seen, and not irrelevant"
    for finding in findings:
        assert finding.path == path or finding.kind in ("segment file", "sidecar", "hard state", "clean marker"), (
            context,
            finding,
        )
    check_open(made, fs, context)
    return "found" if findings else "irrelevant"


def check_open(made: Made, fs: MemoryFileSystem, context: str) -> None:
    """Opening refuses, or shows a log of which every entry is right or damaged, and gives up its vote if it is shorter
    than what was durable."""
    try:
        directory = open_node_dir(fs, DATA)
    except RaftLogError:
        return
    log = directory.log
    low = log.first_index
    assert low <= made.first, context
    while low <= log.tail.index:
        try:
            found = log.read_entries(low, log.tail.index + 1, 4 << 20)
        except DamagedLogError as error:
            low = error.last_index + 1
            continue
        assert found == made.entries[low : low + len(found)], context
        low += len(found)
    for entry in made.entries[made.first : log.tail.index + 1 : 7]:
        try:
            assert log.read_at(entry.position, entry.size) == entry.header + entry.payload, context
        except DamagedLogError:
            assert log.damage.at_index(entry.index), context
    assert log.tail.index <= made.entries[-1].index
    if log.tail.index < made.entries[-1].index and vote_withheld.load(fs, DATA, GROUP) is None:
        assert not made.clean, context
        assert log.report.torn_bytes_cut, f"{context}: entries above the mark only"
    directory.close(clean=False)


REGIONS = (
    "active segment",
    "sealed segment",
    "sidecar",
    "local header",
    "sync marks",
    "hard state",
    "IDENTITY, RUN, GENESIS",
    "kept index",
    "any byte",
)


@pytest.fixture(scope="module", params=["clean", "killed", "trimmed"])
def small(request: pytest.FixtureRequest) -> Made:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(active_index, "DISTANCE", 2000)
        clean, trimmed = request.param == "clean", request.param == "trimmed"
        return make(8192, 80_000 if trimmed else 30_000, seed=1, clean=clean, trimmed=trimmed)


def test_a_sound_directory_has_no_findings(small: Made) -> None:
    assert list(verify_log(small.fs, DATA)) == []


@pytest.mark.parametrize("name", [*REGIONS, "CLEAN", "FIRST"])
def test_a_sample_of_flips(small: Made, name: str) -> None:
    if name == "CLEAN" and not small.clean:
        pytest.skip("no CLEAN after a kill")
    if name == "FIRST" and not small.first:
        pytest.skip("no FIRST without a trim")
    seed = 20261120
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    ranges = [(found.path, found.offset, found.size) for found in irrelevant_ranges(small.fs, DATA)]
    verdicts = Counter(check_flip(small, *flip, ranges) for flip in flips(small, name, Random(f"{seed} {name}"), 12))
    assert verdicts["found"] or name == "any byte"


def test_what_is_missing_or_lies_is_found(small: Made) -> None:
    """Files that are gone, and files whose checksums fit but whose content does not."""
    log = DATA / layout.LOG
    bases = layout.segment_bases(small.fs.listdir(log))
    sealed = log / layout.index_name(bases[0])

    def lying_sidecar(fs: MemoryFileSystem) -> None:
        head, index = decode_index(read_file(fs, sealed), GROUP)
        index.offsets[1] += 1
        fs.damage(sealed, 0, b"".join(encode_index(index, head.tail, GROUP)))

    def no_segments(fs: MemoryFileSystem) -> None:
        for base in bases:
            fs.unlink(log / layout.segment_name(base))

    def damaged(path: Path, *offsets: int) -> Callable[[MemoryFileSystem], None]:
        def do(fs: MemoryFileSystem) -> None:
            for offset in offsets:
                fs.damage(path, offset, b"??")

        return do

    cases: list[tuple[Callable[[MemoryFileSystem], object], str, Severity]] = [
        (lying_sidecar, "sidecar", Severity.NOTE),
        (lambda fs: fs.unlink(sealed), "sidecar", Severity.NOTE),
        (lambda fs: fs.unlink(log / layout.segment_name(bases[1])), "segment file", Severity.REPAIRABLE),
        (lambda fs: fs.unlink(log / layout.segment_name(0)), "segment file", Severity.REPAIRABLE),
        (lambda fs: fs.unlink(DATA / "hard_state"), "hard state", Severity.FATAL),
        (lambda fs: fs.unlink(DATA / "IDENTITY"), "identity", Severity.FATAL),
        (lambda fs: fs.unlink(DATA / "GENESIS"), "genesis copy", Severity.NOTE),
        (no_segments, "segment file", Severity.FATAL),
        (damaged(DATA / "hard_state", 20, 4096 + 20), "hard state", Severity.FATAL),
        (
            damaged(log / layout.segment_name(bases[-1]), *(at + 20 for at in MARK_OFFSETS)),
            "sync mark",
            Severity.NOTE if small.clean else Severity.REPAIRABLE,
        ),
        (
            lambda fs: vote_withheld.withhold(fs, DATA, VoteWithheld("why", 1, 1), GROUP),
            "vote withheld",
            Severity.REPAIRABLE,
        ),
    ]
    if small.first:
        cases[3] = (lambda fs: fs.unlink(log / layout.segment_name(bases[0])), "segment file", Severity.REPAIRABLE)
        cases[6] = (lambda fs: fs.unlink(DATA / "GENESIS"), "genesis copy", Severity.FATAL)
        cases += [
            (lambda fs: fs.damage(log / "FIRST", 20, b"??"), "first", Severity.NOTE),
            (lambda fs: fs.open(log / layout.segment_name(77), create=True), "segment file", Severity.NOTE),
            (lambda fs: fs.open(DATA / "INSTALL", create=True), "install", Severity.NOTE),
        ]
    for number, (harm, kind, severity) in enumerate(cases):
        fs = copy(small)
        harm(fs)
        everything = list(verify_log(fs, DATA))
        found = [finding for finding in everything if finding.kind == kind]
        assert found, (number, kind)
        for each in everything:
            assert each.offset >= 0, each
            assert 0 <= each.size <= max(0, len(read_file(fs, each.path)) - each.offset if each.size else 0), each
        assert max(found, key=lambda finding: list(Severity).index(finding.severity)).severity == severity, found


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REGIONS, "CLEAN"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_two_hundred_flips_of_each_region(name: str, clean: bool) -> None:
    """A directory of 16 MiB, 200 flips in the live bytes of each region."""
    if name == "CLEAN" and not clean:
        pytest.skip("no CLEAN after a kill")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(active_index, "DISTANCE", 1 << 20)
        made = make(4 << 20, 15 << 20, seed=7, clean=clean)
    ranges = [(found.path, found.offset, found.size) for found in irrelevant_ranges(made.fs, DATA)]
    rng = Random(f"42 {name}")
    verdicts = Counter(check_flip(made, *flip, ranges) for flip in flips(made, name, rng, 200))
    print(f"{name}, {'clean' if clean else 'killed'}, seed '42 {name}': {dict(verdicts)}")  # noqa: T201 - the figures
    assert sum(verdicts.values()) == 200
