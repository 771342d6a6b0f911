"""Writes a new, synced file, past the page cache where the file system allows it.

An object of the tier is not read soon, and the log's own pages are wanted in memory. For 64 MiB this takes a tenth of
the processor time of writing through the cache and syncing bit by bit, and an fdatasync of the log on the same disk
waits for at most one piece.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

from cluster.tier.store.object_store import Data
from raftmq_wire.checksums import crc32c

PIECE_BYTES = 1 << 20
"""Bytes of one write. The log may be on the same disk, and its fdatasync, of some KiB, waits for the write under
way."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write_synced(path: Path, data: Data) -> None:
    """Makes the file; returns when its bytes are on disk. Raises OSError, also FileExistsError."""
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
        # The cached pages are dropped: reading the file back proves something only if the bytes come from the disk.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _write_direct(fd: int, view: memoryview) -> int:
    """Writes past the page cache; returns the number of bytes written. It is less than all, without an error, if the
    file system does not support such writes."""
    if _at_block(view):
        return _write_blocks(fd, view, None)
    with mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE) as block, memoryview(block) as aligned:
        return _write_blocks(fd, view, aligned)


def _write_blocks(fd: int, view: memoryview, aligned: memoryview | None) -> int:
    """Writes whole blocks; returns the number of bytes written, as `_write_direct` does. `aligned`: the memory through
    which bytes are copied; None if `view` begins at a block boundary."""
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
    """Returns True if the memory begins where a block of a direct transfer may begin."""
    if view.readonly or not len(view):
        return False  # a `bytes` object: its content never begins at a block boundary
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) % BLOCK == 0


BLOCK = 4096
"""Address, offset and length of a direct transfer are multiples of this size; the disk's block is no larger."""
READ_BYTES = 1 << 20
"""Bytes of one direct read."""
READ_PIECE_BYTES = 256 << 10
"""Bytes of one read through the page cache: few enough that the next piece reuses the memory of the last."""
_DIRECT = getattr(os, "O_DIRECT", 0)


def open_direct(path: Path, flags: int, mode: int = 0o640) -> tuple[int, bool]:
    """Opens a file; returns (descriptor, True if transfers go past the page cache). If `flags` has O_EXCL, the call
    creates the file. Raises OSError."""
    if _DIRECT:
        try:
            return os.open(path, flags | _DIRECT | os.O_CLOEXEC, mode), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        if flags & os.O_EXCL:
            with suppress(FileNotFoundError):  # the file may be created before the flag is refused
                path.unlink()
    return os.open(path, flags | os.O_CLOEXEC, mode), False


def through_the_cache(fd: int) -> None:
    """Ends direct I/O on the file; afterwards any address, offset and length may be used."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_DIRECT)


def checksum_from_disk(path: Path, start: int, stop: int, crc: int = 0) -> tuple[int, int]:
    """Returns the CRC-32C of bytes [start, stop) of the file, continuing `crc`, and their number, which is smaller if
    the file ends before `stop`. Raises OSError.

    Where the system allows it, the bytes are read past the page cache, because they are not read again soon. That takes
    half the processor time.
    """
    fd, is_direct = open_direct(path, os.O_RDONLY)
    try:
        at = start
        if is_direct:
            crc, at = _checksum_direct(fd, start, stop, crc)
            through_the_cache(fd)
        while at < stop and (piece := os.pread(fd, min(READ_PIECE_BYTES, stop - at), at)):
            crc = crc32c(piece, crc)
            at += len(piece)
        os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return crc, at - start


def _checksum_direct(fd: int, start: int, stop: int, crc: int) -> tuple[int, int]:
    """Returns the CRC-32C and the position up to which it goes. That position is below `stop` if the file ends, if a
    read would not begin at a block boundary, or if the file system does not support direct reads."""
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
