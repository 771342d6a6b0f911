"""Files opened past the page cache, where the file system can do that (open(2), O_DIRECT)."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

from raftlog.checksums import crc32c

BLOCK = 4096
"""Memory, place and length of a direct transfer are multiples of the disk's block, which is no larger."""
READ_BYTES = 1 << 20
"""Read at once."""
PIECE_BYTES = 256 << 10
"""Read at once through the page cache: little enough that the next piece takes the memory of the last."""
_DIRECT = getattr(os, "O_DIRECT", 0)


def open_direct(path: Path, flags: int, mode: int = 0o640) -> tuple[int, bool]:
    """(descriptor, whether transfers go past the page cache). With O_EXCL the file is made. Raises OSError."""
    if _DIRECT:
        try:
            return os.open(path, flags | _DIRECT | os.O_CLOEXEC, mode), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        if flags & os.O_EXCL:
            with suppress(FileNotFoundError):  # it is made before the file system refuses the flag
                path.unlink()
    return os.open(path, flags | os.O_CLOEXEC, mode), False


def through_the_cache(fd: int) -> None:
    """From now on any place and length will do."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_DIRECT)


def checksum_from_disk(path: Path, start: int, stop: int, crc: int = 0) -> tuple[int, int]:
    """(CRC-32C of the bytes [start, stop) of the file, continuing `crc`; how many there were: fewer if the file ends
    before). Raises OSError.

    Nobody reads them again soon: they take no page of the cache, and half the processor time.
    """
    fd, is_direct = open_direct(path, os.O_RDONLY)
    try:
        at = start
        if is_direct:
            crc, at = _checksum_direct(fd, start, stop, crc)
            through_the_cache(fd)
        while at < stop and (piece := os.pread(fd, min(PIECE_BYTES, stop - at), at)):
            crc = crc32c(piece, crc)
            at += len(piece)
        os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return crc, at - start


def _checksum_direct(fd: int, start: int, stop: int, crc: int) -> tuple[int, int]:
    """(CRC-32C, where it ends): early at the end of the file, and where the file system takes no such reads."""
    at = start
    room = mmap.mmap(-1, READ_BYTES, flags=mmap.MAP_PRIVATE)
    while at < stop and at % BLOCK == 0:
        try:
            count = min(os.preadv(fd, [room], at), stop - at)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            break
        if not count:
            break
        with memoryview(room) as whole, whole[:count] as piece:
            crc = crc32c(piece, crc)
        at += count
    return crc, at
