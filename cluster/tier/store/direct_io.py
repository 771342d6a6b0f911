"""Files opened past the page cache, where the file system can do that (open(2), O_DIRECT)."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

BLOCK = 4096
"""Memory, place and length of a direct transfer are multiples of the disk's block, which is no larger."""
READ_BYTES = 1 << 20
"""Read at once."""
PIECE_BYTES = 256 << 10
"""Handed out at once: little enough that the next piece takes the memory of the last."""
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


def read_from_disk(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """The bytes [start, stop) of the file in pieces; fewer if the file ends before. Raises OSError.

    Nobody reads them again soon: they take no page of the cache, and half the processor time.
    """
    fd, is_direct = open_direct(path, os.O_RDONLY)
    try:
        at = start
        if is_direct:
            for piece in _direct_pieces(fd, start, stop):
                yield piece
                at += len(piece)
            through_the_cache(fd)
        while at < stop and (piece := os.pread(fd, min(PIECE_BYTES, stop - at), at)):
            yield piece
            at += len(piece)
        os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _direct_pieces(fd: int, start: int, stop: int) -> Iterator[bytes]:
    """Ends early at the end of the file, and where the file system takes no such reads."""
    at = start
    with closing(mmap.mmap(-1, READ_BYTES, flags=mmap.MAP_PRIVATE)) as room, memoryview(room) as view:
        while at < stop and at % BLOCK == 0:
            try:
                count = min(os.preadv(fd, [view], at), stop - at)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                return
            if not count:
                return
            for begin in range(0, count, PIECE_BYTES):
                yield bytes(view[begin : min(begin + PIECE_BYTES, count)])
            at += count
