"""The CRC of a whole file, read in pieces."""

from __future__ import annotations

from pathlib import Path

from raftlog.checksums import crc32c
from raftlog.storage.fs import FileSystem

_READ_BYTES = 256 * 1024
"""What is read and summed at a time: short enough to hold nobody up."""


def file_crc(fs: FileSystem, path: Path) -> tuple[int, int]:
    """(size, crc32c) of a file. Raises OSError."""
    file = fs.open(path)
    size = crc = 0
    while data := file.pread(_READ_BYTES, size):
        crc = crc32c(data, crc)
        size += len(data)
    file.close()
    return size, crc
