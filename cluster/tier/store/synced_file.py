"""A new file, written past the page cache where the file system can do that, and synced.

Nobody reads an object of the tier soon, and the log's own pages are wanted in memory. Of 64 MiB, that takes a tenth of
the processor time of writing through the cache and syncing bit by bit; and an fdatasync of the log on the same disk
waits no longer than for one piece.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

from cluster.tier.store.object_store import Data

PIECE_BYTES = 1 << 20
"""Written at once: the log may be on the same disk, and its fdatasync, of some KiB, waits for what is under way."""
_BLOCK = 4096
"""Memory, place and length of a direct write are multiples of the disk's block, which is no larger."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_synced(path: Path, data: Data) -> None:
    """Makes the file; returns when its bytes are on disk. Raises OSError, FileExistsError too."""
    view = memoryview(data)
    whole = len(view) // _BLOCK * _BLOCK if len(view) >= PIECE_BYTES else 0
    fd, is_direct = _open(path, _DIRECT if whole else 0)
    try:
        at = 0
        if is_direct:
            at = _write_direct(fd, view[:whole])
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_DIRECT)
        while at < len(view):
            at += os.pwrite(fd, view[at : at + PIECE_BYTES], at)
            os.fdatasync(fd)
        os.fsync(fd)
        # Reading back proves something only from the disk.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _open(path: Path, direct: int) -> tuple[int, bool]:
    """Descriptor of the new file, and whether its writes go past the page cache."""
    try:
        return os.open(path, _NEW | direct, 0o640), bool(direct)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
    with suppress(FileNotFoundError):  # it is made before the file system refuses the flag
        path.unlink()
    return os.open(path, _NEW, 0o640), False


def _write_direct(fd: int, view: memoryview) -> int:
    """How many bytes were written: fewer than all if the file system takes no such writes, which is no error."""
    at = 0
    with mmap.mmap(-1, PIECE_BYTES) as block, memoryview(block) as aligned:
        while at < len(view):
            size = min(PIECE_BYTES, len(view) - at)
            aligned[:size] = view[at : at + size]
            try:
                with aligned[:size] as piece:
                    written = os.pwrite(fd, piece, at)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    break
                raise
            at += written - written % _BLOCK
            if written < _BLOCK:
                break
    return at
