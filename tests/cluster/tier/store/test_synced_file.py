"""A file holds what was written, whichever way the file system let it be written."""

from __future__ import annotations

import errno
import mmap
import os
import random
from pathlib import Path
from typing import Any

import pytest

from cluster.tier.store.synced_file import PIECE_BYTES, write_synced

SIZES = [0, 1, 4095, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, PIECE_BYTES + 4096, 3 * PIECE_BYTES + 5000]


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_is_there(tmp_path: Path, size: int) -> None:
    data = content(size)
    write_synced(tmp_path / "a", memoryview(bytearray(data)))
    assert (tmp_path / "a").read_bytes() == data
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "a", data)


@pytest.mark.parametrize("begins", [0, 512, 4096])
def test_memory_goes_to_the_disk_from_where_it_lies_if_it_begins_at_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: int
) -> None:
    data = content(2 * PIECE_BYTES + 5000)
    room = mmap.mmap(-1, 3 * PIECE_BYTES, flags=mmap.MAP_PRIVATE)
    room[begins : begins + len(data)] = data
    real, from_there = os.pwrite, []

    def pwrite(fd: int, piece: Any, at: int) -> int:
        from_there.append(piece.obj is room)
        return real(fd, piece, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    write_synced(tmp_path / "a", memoryview(room)[begins : begins + len(data)])
    assert (tmp_path / "a").read_bytes() == data
    assert from_there[0] == (begins % 4096 == 0)


def refuse(patch: pytest.MonkeyPatch, where: str) -> list[int]:
    """A file system that does not take direct writes, and says so at `where`; what was tried."""
    tried: list[int] = []
    real_open, real_pwrite = os.open, os.pwrite

    def opens(path: Any, flags: int, mode: int = 0o777) -> int:
        fd = real_open(path, flags & ~os.O_DIRECT, mode)
        if flags & os.O_DIRECT and where == "open":
            tried.append(fd)
            os.close(fd)
            raise OSError(errno.EINVAL, "no")
        return fd

    def pwrite(fd: int, data: Any, at: int) -> int:
        if not tried or (where == "second write" and len(tried) == 1):
            tried.append(fd)
            if where == "write" or len(tried) == 2:
                raise OSError(errno.EINVAL, "no")
        return real_pwrite(fd, data, at)

    patch.setattr(os, "open", opens)
    if where != "open":
        patch.setattr(os, "pwrite", pwrite)
    return tried


@pytest.mark.parametrize("where", ["open", "write", "second write"])
def test_a_file_system_that_takes_no_direct_writes_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    data = content(3 * PIECE_BYTES + 5000)
    with monkeypatch.context() as patch:
        tried = refuse(patch, where)
        write_synced(tmp_path / "a", data)
    assert tried, "it was tried"
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.parametrize("short", [0, 1, 4096, 5000])
def test_a_write_that_takes_less_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int) -> None:
    """A write that ends within a block writes the block once more."""
    data = content(2 * PIECE_BYTES)
    real, cut = os.pwrite, [short]

    def pwrite(fd: int, piece: Any, at: int) -> int:
        if not cut:
            return real(fd, piece, at)
        with Path(f"/proc/self/fd/{fd}").open("r+b") as file:
            file.seek(at)
            return file.write(piece[: cut.pop()])

    monkeypatch.setattr(os, "pwrite", pwrite)
    write_synced(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data
