"""A read from the disk returns the file's content, whichever way the file system lets it be read."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from cluster.tier.store.synced_file import READ_BYTES, READ_PIECE_BYTES, checksum_from_disk

SIZES = [0, 1, 4095, 4096, READ_BYTES, READ_BYTES + 1, 3 * READ_BYTES + 5000]


def file_of(folder: Path, size: int) -> tuple[Path, bytes]:
    data = random.Random(size).randbytes(size)
    path = folder / "a"
    path.write_bytes(data)
    return path, data


@pytest.mark.parametrize("size", SIZES)
def test_all_of_a_file(tmp_path: Path, size: int) -> None:
    path, data = file_of(tmp_path, size)
    wanted = google_crc32c.value(data), size
    assert checksum_from_disk(path, 0, size) == wanted
    assert checksum_from_disk(path, 0, size + 10_000) == wanted, "it ends where the file ends"


def test_a_checksum_goes_on_from_another(tmp_path: Path) -> None:
    path, data = file_of(tmp_path, 2 * READ_PIECE_BYTES)
    begun, _ = checksum_from_disk(path, 0, READ_PIECE_BYTES)
    assert checksum_from_disk(path, READ_PIECE_BYTES, len(data), begun) == (google_crc32c.value(data), READ_PIECE_BYTES)


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (4096, 4097), (3, 700), (READ_BYTES, 2 * READ_BYTES + 7)])
def test_a_part_of_a_file(tmp_path: Path, start: int, stop: int) -> None:
    path, data = file_of(tmp_path, 3 * READ_BYTES + 5000)
    assert checksum_from_disk(path, start, stop) == (google_crc32c.value(data[start:stop]), stop - start)


@pytest.mark.parametrize("where", ["open", "read", "second read", "short"])
def test_a_file_system_that_takes_no_direct_reads_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path, data = file_of(tmp_path, 3 * READ_BYTES + 5000)
    real_open, real_preadv = os.open, os.preadv
    calls: list[str] = []

    def opens(name: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT and where == "open":
            calls.append("open")
            raise OSError(errno.EINVAL, "no")
        return real_open(name, flags, mode)

    def preadv(fd: int, views: Any, at: int) -> int:
        calls.append("read")
        if where == "short":
            return real_preadv(fd, views, at) - 5
        if where == "read" or len(calls) == 2:
            raise OSError(errno.EINVAL, "no")
        return real_preadv(fd, views, at)

    monkeypatch.setattr(os, "open", opens)
    monkeypatch.setattr(os, "preadv", preadv)
    assert checksum_from_disk(path, 0, len(data)) == (google_crc32c.value(data), len(data))
    assert calls, "it was tried"


def test_what_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = file_of(tmp_path, READ_BYTES)

    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(os, "preadv", broken)
    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(OSError, match="bad sector"):
        checksum_from_disk(path, 0, len(data))
    with pytest.raises(FileNotFoundError):
        checksum_from_disk(tmp_path / "absent", 0, 1)
