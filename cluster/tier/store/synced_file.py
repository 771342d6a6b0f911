"""A new file, written past the page cache where the file system can do that, and synced.

Nobody reads an object of the tier soon, and the log's own pages are wanted in memory. Of 64 MiB, that takes a tenth of
the processor time of writing through the cache and syncing bit by bit; and an fdatasync of the log on the same disk
waits no longer than for one piece.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

from cluster.tier.store.direct_io import BLOCK, open_direct, through_the_cache
from cluster.tier.store.object_store import Data

PIECE_BYTES = 1 << 20
"""Written at once: the log may be on the same disk, and its fdatasync, of some KiB, waits for what is under way."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write_synced(path: Path, data: Data) -> None:
    """Makes the file; returns when its bytes are on disk. Raises OSError, FileExistsError too."""
    view = memoryview(data)
    whole = len(view) // BLOCK * BLOCK if len(view) >= PIECE_BYTES else 0
    fd, is_direct = open_direct(path, _NEW) if whole else (os.open(path, _NEW | os.O_CLOEXEC, 0o640), False)
    try:
        at = 0
        if is_direct:
            at = _write_direct(fd, view[:whole])
            through_the_cache(fd)
        while at < len(view):
            at += os.pwrite(fd, view[at : at + PIECE_BYTES], at)
            os.fdatasync(fd)
        os.fsync(fd)
        # Reading back proves something only from the disk.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _write_direct(fd: int, view: memoryview) -> int:
    """How many bytes were written: fewer than all if the file system takes no such writes, which is no error."""
    if _at_block(view):
        return _write_blocks(fd, view, None)
    with mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE) as block, memoryview(block) as aligned:
        return _write_blocks(fd, view, aligned)


def _write_blocks(fd: int, view: memoryview, aligned: memoryview | None) -> int:
    """See `_write_direct`. `aligned`: what bytes go through; None if they lie where blocks begin."""
    at = 0
    while at < len(view):
        piece = view[at : at + PIECE_BYTES]
        if aligned is not None:
            aligned[: len(piece)] = piece
            piece = aligned[: len(piece)]
        try:
            written = os.pwrite(fd, piece, at)
        except OSError as error:
            if error.errno == errno.EINVAL:
                break
            raise
        finally:
            piece.release()
        at += written - written % BLOCK
        if written < BLOCK:
            break
    return at


def _at_block(view: memoryview) -> bool:
    """Whether the memory begins where a block of a direct transfer may begin."""
    if view.readonly or not len(view):
        return False  # bytes: their contents never begin at a block
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) % BLOCK == 0
