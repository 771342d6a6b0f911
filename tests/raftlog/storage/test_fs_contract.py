"""The storage code's contract with the file system, on the real one and on the one the simulator uses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from raftlog.storage.files.fs import IOV_MAX, FileSystem, OsFileSystem, read_file, write_file, zero_fill
from raftlog.storage.files.trash import TrashReport, set_aside
from raftlog.work import CALL_UNITS, ITEM_UNITS, METER


@pytest.fixture(params=["real", "memory"])
def fs(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "real" else MemoryFileSystem()


@pytest.fixture
def directory(fs: FileSystem, tmp_path: Path) -> Path:
    path = tmp_path / "a" / "b"
    fs.mkdir(path)
    fs.mkdir(path)
    return path


def test_open_needs_a_file_or_create(fs: FileSystem, directory: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fs.open(directory / "x")
    with pytest.raises(FileNotFoundError):
        fs.open(directory / "no" / "x", create=True)
    assert fs.listdir(directory) == []
    fs.open(directory / "x", create=True).pwritev([b"abc"], 0)
    assert read_file(fs, directory / "x") == b"abc"
    fs.open(directory / "x", create=True)
    assert read_file(fs, directory / "x") == b"abc", "create keeps what is there"
    assert fs.listdir(directory) == ["x"]
    assert fs.exists(directory / "x")
    assert fs.exists(directory)
    assert not fs.exists(directory / "y")


def test_two_processes_may_make_the_same_directory_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, wanted = OsFileSystem(), tmp_path / "a" / "b"
    real = Path.mkdir

    def slower(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        real(path, mode, exist_ok=True)  # the other one was here first
        real(path, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", slower)
    fs.mkdir(wanted)
    assert wanted.is_dir()


def test_reads_and_writes(fs: FileSystem, directory: Path) -> None:
    file = fs.open(directory / "x", create=True)
    file.pwritev([b"ab", b"", b"cd"], 5)
    assert file.size() == 9
    assert file.pread(100, 0) == b"\0" * 5 + b"abcd"
    assert file.pread(2, 6) == b"bc"
    assert file.pread(10, 100) == b""
    room = bytearray(b"?" * 6)
    assert file.pread_into(memoryview(room)[1:5], 4) == 4
    assert room == b"?\0abc?"
    assert file.pread_into(memoryview(room), 7) == 2
    assert room == b"cdabc?", "what is beyond the end of the file stays as it was"
    assert file.pread_into(memoryview(room), 100) == file.pread_into(memoryview(bytearray()), 0) == 0
    file.drop_cached(3)
    file.drop_cached(0)
    file.drop_cached(None)
    assert file.pread(100, 5) == b"abcd"
    file.truncate(7)
    file.truncate(10)
    assert file.pread(100, 5) == b"ab\0\0\0"
    file.fdatasync()
    zero_fill(file, 4, 6)
    assert file.pread(3, 4) == b"\0\0b"
    many = [bytes([n % 251]) * 3 for n in range(2 * IOV_MAX + 5)]
    file.pwritev(many, 1)
    assert file.pread(len(many) * 3, 1) == b"".join(many)
    file.close()
    file.close()
    with pytest.raises(OSError, match=r"."):
        file.pread(1, 0)


def test_each_call_is_charged_by_its_bytes(fs: FileSystem, directory: Path) -> None:
    file = fs.open(directory / "x", create=True)
    before = METER.units
    file.pwritev([bytes(5000), bytes(5000)], 0)
    assert METER.units - before == CALL_UNITS + 9
    file.pread(4096, 0)
    assert METER.units - before == 2 * CALL_UNITS + 13
    file.pread_into(memoryview(bytearray(2048)), 0)
    assert METER.units - before == 3 * CALL_UNITS + 15
    fs.listdir(directory)
    assert METER.units - before == 4 * CALL_UNITS + 15 + ITEM_UNITS


def test_a_write_that_is_cut_short_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, short = os.pwrite, []

    def pwritev(fd: int, buffers: list[bytes], offset: int) -> int:
        short.append(offset)
        return real(fd, b"".join(buffers)[:5], offset)

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        return real(fd, data[:3], offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "pwrite", pwrite)
    file = OsFileSystem().open(tmp_path / "x", create=True)
    file.pwritev([b"abc", b"defg", b"hijklmn"], 2)
    assert file.pread(100, 0) == b"\0\0abcdefghijklmn"
    assert short == [2]


def test_names(fs: FileSystem, directory: Path) -> None:
    write_file(fs, directory / "x", b"one")
    write_file(fs, directory / "x", b"two")
    assert fs.listdir(directory) == ["x"]
    assert read_file(fs, directory / "x") == b"two"
    reader = fs.open(directory / "x")
    fs.rename(directory / "x", directory / "y")
    fs.unlink(directory / "y")
    fs.fsync_dir(directory)
    assert reader.pread(9, 0) == b"two", "an open file outlives its name"
    with pytest.raises(FileNotFoundError):
        fs.unlink(directory / "y")
    with pytest.raises(FileNotFoundError):
        fs.rename(directory / "y", directory / "z")
    with pytest.raises(FileNotFoundError):
        fs.listdir(directory / "nowhere")
    assert 0 < fs.free_bytes(directory) <= fs.total_bytes(directory)


def test_trash_never_overwrites(fs: FileSystem, directory: Path) -> None:
    for content in (b"1", b"2"):
        write_file(fs, directory / "x", content)
        set_aside(fs, directory / "x", directory / "trash", TrashReport("a test"))
    assert fs.listdir(directory / "trash") == ["000001-x", "000001-x.json", "000002-x", "000002-x.json"]
    assert read_file(fs, directory / "trash" / "000002-x") == b"2"


def test_lock_excludes_until_closed(fs: FileSystem, directory: Path) -> None:
    lock = fs.lock(directory / "LOCK", "12345")
    with pytest.raises(BlockingIOError):
        fs.lock(directory / "LOCK", "6")
    assert read_file(fs, directory / "LOCK") == b"12345"
    lock.close()
    fs.lock(directory / "LOCK", "6").close()


def test_memory_crash_keeps_what_was_synced_and_tears_the_rest() -> None:
    outcomes = set()
    for seed in range(40):
        fs = MemoryFileSystem()
        fs.mkdir(Path("/d"))
        file = fs.open(Path("/d/x"), create=True)
        file.pwritev([b"s" * 1024], 0)
        file.fdatasync()
        fs.fsync_dir(Path("/d"))
        file.pwritev([b"u" * 1024], 256)
        fs.open(Path("/d/y"), create=True)
        fs.crash(seed)
        with pytest.raises(OSError, match="crash"):
            file.pread(1, 0)
        data = read_file(fs, Path("/d/x"))
        assert data[:256] == b"s" * 256
        outcomes.add((data[256:512], data[512:1024], data[1024:], fs.exists(Path("/d/y"))))
    torn = {(a[:1], b[:1], c[:1]) for a, b, c, _ in outcomes}
    assert {(b"s", b"s", b""), (b"u", b"u", b"u")} < torn, "lost, kept"
    assert len(torn) > 4, "and torn"
    assert {exists for *_, exists in outcomes} == {True, False}


def test_memory_failed_sync_is_not_made_good_by_the_next() -> None:
    fs = MemoryFileSystem()
    fs.mkdir(Path("/d"))
    file = fs.open(Path("/d/x"), create=True)
    fs.fsync_dir(Path("/d"))
    file.pwritev([b"lost"], 0)
    fs.fail_call(fs.calls + 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.fdatasync()
    file.fdatasync()
    assert file.pread(4, 0) == b"lost"
    fs.crash(0)
    assert read_file(fs, Path("/d/x")) == b""


def test_memory_power_cut_stops_everything() -> None:
    fs = MemoryFileSystem()
    fs.mkdir(Path("/d"))
    file = fs.open(Path("/d/x"), create=True)
    fs.cut_power_at(fs.calls + 1)
    for call in (lambda: file.pwritev([b"abcd"], 0), file.fdatasync, lambda: fs.open(Path("/d/x"))):
        with pytest.raises(PowerCut):
            call()


def test_memory_space_runs_out() -> None:
    fs = MemoryFileSystem(space_left=10)
    fs.mkdir(Path("/d"))
    file = fs.open(Path("/d/x"), create=True)
    file.pwritev([b"12345678"], 0)
    file.pwritev([b"overwriting"[:8]], 0)
    with pytest.raises(OSError, match="No space"):
        file.pwritev([b"12345678"], 8)


def test_links_and_directories_move_and_go(fs: FileSystem, directory: Path) -> None:
    one, two = directory / "one", directory / "two"
    fs.mkdir(one / "inner")
    write_file(fs, one / "x", b"data")
    write_file(fs, one / "inner" / "y", b"more")
    fs.link(one / "x", directory / "kept")
    with pytest.raises(FileExistsError):
        fs.link(one / "x", directory / "kept")
    with pytest.raises(FileNotFoundError):
        fs.link(one / "no", directory / "z")
    fs.rename(one, two)
    fs.fsync_dir(directory)
    assert not fs.exists(one)
    assert fs.listdir(two) == ["inner", "x"]
    assert read_file(fs, two / "inner" / "y") == b"more"
    fs.mkdir(one)
    with pytest.raises(OSError, match=r"not empty"):
        fs.rename(one, two)
    fs.remove_tree(two)
    assert fs.listdir(directory) == ["kept", "one"]
    assert read_file(fs, directory / "kept") == b"data"


def test_a_directory_moves_as_a_whole_or_not_at_all() -> None:
    outcomes = set()
    for seed in range(20):
        fs = MemoryFileSystem()
        fs.mkdir(Path("/d/one"))
        for name in "xyz":
            write_file(fs, Path("/d/one") / name, b"data")
        fs.rename(Path("/d/one"), Path("/d/two"))
        fs.crash(seed)
        names = tuple(fs.listdir(Path("/d")))
        assert fs.listdir(Path("/d") / names[0]) == ["x", "y", "z"]
        outcomes.add(names)
    assert outcomes == {("one",), ("two",)}


def flip_on_real_disk(path: Path, flips: list[tuple[int, int]]) -> None:
    """Repeats on a real file what `MemoryFileSystem.rot` did."""
    data = bytearray(path.read_bytes())
    for offset, mask in flips:
        data[offset] ^= mask
    with path.open("r+b") as file:
        file.write(data)


def test_rot_reads_alike_on_both(tmp_path: Path) -> None:
    """The same writes, syncs and flips on the real file system and in memory: the same bytes are read at every step."""
    memory, real = MemoryFileSystem(), OsFileSystem()
    memory.mkdir(tmp_path)
    files = [fs.open(tmp_path / "x", create=True) for fs in (memory, real)]
    for seed in range(20):
        for file in files:
            file.pwritev([bytes([seed]) * 700], seed * 300)
            file.fdatasync()
        flips = memory.rot(tmp_path / "x", seed, 3)
        assert len(flips) == 3
        flip_on_real_disk(tmp_path / "x", flips)
        memory.fsync_dir(tmp_path)
        first, second = (file.pread(10_000, 0) for file in files)
        assert first == second
    memory.crash(1)
    assert read_file(memory, tmp_path / "x") == read_file(real, tmp_path / "x"), "a crash does not heal"


def test_memory_rot_spares_what_is_not_on_disk() -> None:
    fs = MemoryFileSystem()
    fs.mkdir(Path("/d"))
    file = fs.open(Path("/d/x"), create=True)
    assert fs.rot(Path("/d/x"), 1) == []
    file.pwritev([b"a" * 100], 0)
    file.fdatasync()
    file.pwritev([b"b" * 100], 100)
    flips = fs.rot(Path("/d/x"), 5, 50)
    assert all(offset < 100 for offset, _ in flips)
    assert file.pread(100, 100) == b"b" * 100
    file.pwritev([b"c" * 200], 0)
    assert file.pread(200, 0) == b"c" * 200


def test_memory_spoiled_sectors_are_unreadable_until_written_whole() -> None:
    fs = MemoryFileSystem()
    fs.mkdir(Path("/d"))
    file = fs.open(Path("/d/x"), create=True)
    file.pwritev([b"a" * 4096], 0)
    file.fdatasync()
    fs.fsync_dir(Path("/d"))
    fs.spoil(Path("/d/x"), 1000, 100)
    for size, offset in ((1, 512), (1, 1535), (4096, 0)):
        with pytest.raises(OSError, match="Input/output"):
            file.pread(size, offset)
    assert file.pread(512, 0) == b"a" * 512
    assert file.pread(999, 1536) == b"a" * 999
    file.pwritev([b"b" * 600], 512)
    assert file.pread(512, 512) == b"b" * 512
    fs.crash(0)
    file = fs.open(Path("/d/x"))
    with pytest.raises(OSError, match="Input/output"):
        file.pread(1, 1024)
    file.pwritev([b"c" * 1024], 1024)
    assert file.pread(2048, 1024)[:1024] == b"c" * 1024
